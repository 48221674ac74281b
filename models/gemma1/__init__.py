"""Gemma 1: two norms a layer, no window, no cap."""
