"""Score text: label logits and token log-probabilities of causal and masked models."""
