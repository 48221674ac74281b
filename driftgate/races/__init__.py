"""Races in GPU kernels, found without a GPU: a kernel is lowered by TVM, run on the CPU, and every access is judged."""
