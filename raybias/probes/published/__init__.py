"""Public data sets, one file each: probes, pairs, questions and training sets."""
