"""Statistics: predictions to cells to rates, gaps and accuracies, without a model or cluster."""
