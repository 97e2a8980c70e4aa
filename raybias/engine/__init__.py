"""Plain torch: a frozen backbone, soft prompts tuned on it, label logits read from it.

It runs in one process, or in one process group when a backbone is sharded. It knows
nothing of Ray, probes, groups or statistics.
"""

import logging

# They warn, when transformers imports them, of nothing that a user can act on.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
