"""Backbones whose weights are elsewhere: one file a provider.

It holds the provider's options, abilities and client. To add one, see docs/extending.md.
"""
