"""Training sets: SST-5, SemEval-2018, a user's own files, and the hub."""
