"""Scores of answers to questions with options, one per file."""
