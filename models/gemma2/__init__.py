"""Gemma 2: softcapped attention scores and logits, every other layer with a window."""
