"""What answers for backbones whose weights are not in hand: one file a provider.

A provider's file holds its options, what it can do and what asks it. To add one, see
docs/extending.md.
"""
