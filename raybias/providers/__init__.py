"""Backbones served elsewhere, one file a provider; docs/extending.md shows how to add one."""
