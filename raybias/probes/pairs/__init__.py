"""Probes made of pairs of sentences: CrowS-Pairs, WinoBias, and a user's own."""
