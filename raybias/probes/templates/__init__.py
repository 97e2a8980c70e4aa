"""Probes made of templates and group terms, and probes of a user's own sentences."""
