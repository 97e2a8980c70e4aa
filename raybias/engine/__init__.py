"""Compute with models in plain torch, without knowledge of Ray, probes or statistics."""

import logging

# They warn, when transformers imports them, of nothing that a user can act on.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
