"""driftgate: the chunked-prefill regression gate for Gemma-class models on TVM."""

__version__ = "0.1.0"
