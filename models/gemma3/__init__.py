"""Gemma 3 text."""
