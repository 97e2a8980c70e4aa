"""Decisions about people: reading, and contrasts of groups with intervals over decisions."""

from raybias.stats.decisions.measures import decision_measures
from raybias.stats.decisions.reading import read_decision_answers

__all__ = ["decision_measures", "read_decision_answers"]
