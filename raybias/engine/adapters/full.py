"""Full fine-tuning of a classifier (Kohankhaki2024): every weight of a run is its own.

The model's code is run with a run's weights put in its place, so one model serves any
number of runs; they are stepped one at a time, because each is as large as the model.
Shapes: R rows, T tokens, N rows, L labels.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from raybias.engine.adapters.base import TrainingBatch, Weights
from raybias.engine.batching import Batcher
from raybias.engine.classifier import Classifier, initial_head
from raybias.engine.packing import Batch, PackedSequence, Placed, pack, stack
from raybias.errors import ModelError
from raybias.seeding import key
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.methods import Full

_WEIGHTS: Final = "model.safetensors"


class FullTrainer:
    """A `trainer` of whole models; the weights of a run are all the model's, float32.

    Parameters
    ----------
    classifier: loaded in float32.
    half: compute in bfloat16 where autocast allows it; weights stay float32.
    tokens_per_batch: token budget of an evaluation's forward pass. A training step is one
        pass over its batch, padded as a textbook has it, since dropout falls on it.
    """

    max_packed: int | None = 1

    def __init__(
        self, classifier: Classifier, method: Full, *, half: bool, tokens_per_batch: int
    ) -> None:
        self.classifier = classifier
        self.method = method
        self.device = classifier.device
        self.half = half
        self.batcher = Batcher(
            where=classifier.encoder.spec.id,
            device=self.device,
            tokens_per_batch=tokens_per_batch,
        )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text in the method's template."""
        return self.classifier.encode(texts)

    def init_weights(self, seed: int) -> dict[str, Tensor]:
        """The pretrained weights, with a head keyed by the seed."""
        model = self.classifier.model
        weights = {name: tensor.float() for name, tensor in model.named_parameters()}
        head = initial_head(self.classifier, seed)
        return {name: head.get(name, tensor).clone() for name, tensor in weights.items()}

    def prepare(self, rows: Sequence[Sequence[int]]) -> list[PackedSequence]:
        """Every row by itself."""
        return pack(rows, max_tokens=0)

    def gradients(self, shares: Sequence[TrainingBatch]) -> tuple[list[dict[str, Tensor]], Tensor]:
        """The gradient of each share's mean loss by name, and the losses [S].

        A weight that the loss does not depend on has none.
        """
        found = [self._gradient(share) for share in shares]
        return [gradient for gradient, _ in found], torch.stack([loss for _, loss in found])

    def logits(
        self, weights: Sequence[Weights], sequences: Sequence[Sequence[PackedSequence]]
    ) -> list[Tensor]:
        """Per run, the label logits [N, L] of its sequences' rows."""
        return [self._read(own, rows) for own, rows in zip(weights, sequences, strict=True)]

    def save(self, store: Store, folder: str, weights: Weights, record: dict[str, Any]) -> None:
        """Write a checkpoint that transformers opens with `from_pretrained`."""
        # Not the model's own save_pretrained, which writes on the first rank alone, and here
        # every rank has runs of its own.
        model, tokenizer = self.classifier.model, self.classifier.encoder.tokenizer
        names = dict(model.named_parameters())
        held = {name: weights.get(name, t) for name, t in model.state_dict().items()}
        tied = {name for name, t in model.state_dict().items() if _tied(name, t, names)}
        tensors = {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in held.items()
            if name not in tied
        }
        store.write_bytes(f"{folder}/{_WEIGHTS}", save(tensors, metadata={"format": "pt"}))
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        with tempfile.TemporaryDirectory() as place:
            config.save_pretrained(place)
            tokenizer.save_pretrained(place)
            for path in sorted(Path(place).iterdir()):
                store.write_bytes(f"{folder}/{path.name}", path.read_bytes())
        store.write_text(f"{folder}/raybias.json", json.dumps(record, indent=2))

    def load(self, store: Store, folder: str) -> dict[str, Tensor]:
        """The weights of a checkpoint that `save` wrote.

        Raises
        ------
        ModelError: not there, or of another model.
        """
        where = store.uri_of(f"{folder}/{_WEIGHTS}")
        if not store.exists(f"{folder}/{_WEIGHTS}"):
            raise ModelError("no such checkpoint", where=where, cure="tune it first")
        try:
            held = load(store.read_bytes(f"{folder}/{_WEIGHTS}"))
        except SafetensorError as error:
            raise ModelError("does not hold a model", where=where) from error
        names = dict(self.classifier.model.named_parameters())
        fits = all(name in held and held[name].shape == p.shape for name, p in names.items())
        if not fits:
            raise ModelError("is a checkpoint of another model", where=where)
        return {name: held[name].float().to(self.device) for name in names}

    def label_metadata(self) -> dict[str, Any]:
        """The label tokens, where labels are read from tokens."""
        return {"verbalizer_ids": list(self.classifier.label_ids), "prompt_token_id": None}

    def _call(self, weights: Weights, batch: Batch) -> Tensor:
        named = {f"model.{name}": tensor for name, tensor in weights.items()}
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.half):
            logits_RL: Tensor = functional_call(
                self.classifier, named, self.classifier.read(batch), tie_weights=True
            )
        return logits_RL.float()

    def _gradient(self, share: TrainingBatch) -> tuple[dict[str, Tensor], Tensor]:
        in_order = sorted(self.prepare(share.rows), key=lambda each: each.members)
        batch = stack([Placed(0, 0, each) for each in in_order])
        target_N = torch.tensor([share.labels[row] for _, row in batch.rows], device=self.device)
        leaves = {name: each.detach().requires_grad_() for name, each in share.weights.items()}
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.enable_grad():
            torch.manual_seed(key(share.seed, "dropout", share.step))
            self.classifier.train(share.dropout)
            try:
                loss = cross_entropy(self._call(leaves, batch), target_N)
            finally:
                self.classifier.eval()
            # A pooler that no head reads, and XLNet's `mask_emb`, have no gradient.
            parts = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        gradient = {
            name: part for name, part in zip(leaves, parts, strict=True) if part is not None
        }
        return gradient, loss.detach()

    def _read(self, weights: Weights, sequences: Sequence[PackedSequence]) -> Tensor:
        def read(batch: Batch) -> Tensor:
            with torch.no_grad():
                return self._call(weights, batch).cpu()

        # Rows come one to a sequence, and `members` holds each one's place.
        keyed = [Placed(0, 0, each) for each in sequences]
        logits_NL = torch.zeros(len(keyed), 3)
        for batch, found_RL in self.batcher.each(read, keyed):
            logits_NL[[row for _, row in batch.rows]] = found_RL
        return logits_NL


def _tied(name: str, tensor: Tensor, parameters: Mapping[str, Tensor]) -> bool:
    """Whether a tensor is another name of a parameter, as a tied LM head is."""
    if name in parameters:
        return False
    return any(tensor.data_ptr() == own.data_ptr() for own in parameters.values())
