"""Tune on Ray Train: the driver, its workers, and what they report."""
