"""Answers become sums by unit, sums become estimates: one chain for every kind of measurement."""
