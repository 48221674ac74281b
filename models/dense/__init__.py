"""Gemma 1, 2 and 3: the families whose norms multiply by ``1 + w``."""
