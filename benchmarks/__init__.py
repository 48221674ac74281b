"""Speed and memory, as ratios to a peer measured in the same run: ``python -m benchmarks``."""
