"""Gemma 4 text."""
