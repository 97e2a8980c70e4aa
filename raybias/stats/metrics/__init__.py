"""Metrics, one per file: what gaps between groups are taken of."""
