"""Kernels of the KV cache in our own words: corrections that are swapped in for TVM's."""
