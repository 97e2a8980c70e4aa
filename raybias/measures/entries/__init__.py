"""Every kind of measurement, one per module."""
