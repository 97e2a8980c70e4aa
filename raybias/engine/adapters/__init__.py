"""Tune adapters: one training loop for many runs at once, and a trainer per kind of weights."""
