"""Answers to questions with options: reading, scores, and intervals over question templates."""

from raybias.stats.options.measures import option_measures
from raybias.stats.options.reading import read_option_answers

__all__ = ["option_measures", "read_option_answers"]
