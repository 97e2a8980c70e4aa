"""Scores of triples of sentences, one per file."""
