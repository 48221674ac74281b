"""Faults put into kernels, and whether the detector names them."""
