"""Triples of sentences: reading, scores, and intervals over target terms."""

from raybias.stats.triples.measures import triple_measures
from raybias.stats.triples.reading import read_triple_scores

__all__ = ["read_triple_scores", "triple_measures"]
