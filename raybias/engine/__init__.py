"""Plain torch: a frozen backbone, soft prompts tuned on it, label logits read from it.

It runs in one process, or in one process group when a backbone is sharded. It knows
nothing of Ray, probes, groups or statistics.
"""
