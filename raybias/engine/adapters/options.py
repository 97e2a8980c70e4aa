"""Options of adapters, and how runs are tuned: rows of a step, learning rate, when a run stops.

Pure functions of a run's seed, step and losses (Tian2023 section 3, Kohankhaki2024); no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from raybias.config import MethodFields
from raybias.config.section import Amount, Count, Section
from raybias.seeding import generator


class EarlyStop(Section):
    """When tuning stops before its last step."""

    rule: Literal["exceeds_max_of_last", "patience"] = "exceeds_max_of_last"
    """exceeds_max_of_last: the newest evaluation loss exceeds each of the last `window` before
    it; patience: none of the last `window` losses is below the lowest before them."""
    after_step: Amount = Field(2500, ge=0)
    """Nothing stops at or before this step (soft prompts and prefixes 2500, others 0)."""
    window: Count = Field(5, ge=1)
    """How many evaluation losses the rule looks back on (full 7, others 5)."""
    count_early: bool = True
    """Whether losses seen before `after_step` belong to the window."""
    stored: Count = Field(default_factory=lambda fields: int(fields["window"]), ge=1)
    """How many losses must have been seen before the newest; `window`, and one more in the
    paper profile of full and lora, as the paper's code has it."""


class SweepCut(Section):
    """Where a sweep gives up the combinations that are behind."""

    step: Amount = Field(ge=1)
    """Step of an evaluation at which all runs of the sweep wait for one another."""
    keep: Count = Field(ge=1)
    """How many combinations go on, best by mean validation accuracy over the sweep's seeds."""


class AdapterSize(NamedTuple):
    """Size of one run's adapter; None for what its kind does not have.

    adapter_rank: of LoRA's factors.
    target: name of the layers that are adapted, see `target_name`.
    prompt_length: number of vectors of a soft prompt or a prefix.
    """

    adapter_rank: int | None = None
    target: str | None = None
    prompt_length: int | None = None


class PromptOptions(MethodFields):
    """A soft prompt."""

    prompt_length: Count = Field(8, ge=1)
    """Number P of prompt vectors."""
    prompt_lengths: tuple[Annotated[Count, Field(ge=1)], ...] = ()
    """Numbers of prompt vectors to sweep over, in every combination with the learning rates and
    decays, in the same packs."""
    init: Literal["normal", "zeros"] = "normal"
    """Initial delta: Normal(0, init_std), keyed by the seed, or zeros."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the initial delta."""
    append_eos: bool = False
    """Put EOS after the text, so that the label is read there."""

    @property
    def adapter_sizes(self) -> list[AdapterSize]:
        """The sizes that its runs may have."""
        lengths = self.prompt_lengths or (self.prompt_length,)
        return [AdapterSize(prompt_length=length) for length in lengths]

    @property
    def longest_prompt(self) -> int:
        """Vectors of the longest prompt that a run may have."""
        return max(self.prompt_lengths or (self.prompt_length,))


class PrefixOptions(PromptOptions):
    """A prefix: keys and values before a text in every layer."""

    prompt_length: Count = Field(8, ge=1)
    """Number P of vectors of the prefix, each with a key and a value in every layer."""
    init: Literal["normal", "zeros"] = "normal"
    """Initial keys and values: Normal(0, init_std), keyed by the seed, or zeros."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the initial keys and values; PEFT's is 1."""


class ClassifierOptions(MethodFields):
    """A classifier made of a backbone."""

    head: Literal["classification", "label_tokens"] = "classification"
    """A new head with an output for each label, or the label words' rows of a causal model's LM
    head."""
    template: str = "{text}"
    """What the model reads; `{text}` stands for the sentence."""
    label_words: tuple[str, ...] | None = None
    """For label_tokens: the words in label order, instead of the study's verbalizer."""

    loads_as: ClassVar[str | None] = None
    """The dtype of loaded weights; None for the backbone's."""


Target = Literal["all_linear", "peft_default"] | tuple[str, ...]


def target_name(target: Target) -> str:
    """Name target layers in the id of a run."""
    return target if isinstance(target, str) else "-".join(target)


class LayerOptions(ClassifierOptions):
    """A frozen classifier whose linear layers are adapted."""

    target: Target = "all_linear"
    """Layers to adapt: all linear ones but embeddings and head, PEFT's choice for the
    architecture (query and value mostly), or names such as [q_proj, v_proj]. all_linear leaves
    out layers that the model reads without calling them, and those that PEFT would take for fused
    experts."""

    @property
    def each_target(self) -> dict[str, Self]:
        """The options for each choice of layers that a run may have, by its name."""
        return {target_name(self.target): self}

    def peft_names(self, architecture: str) -> Sequence[str]:
        """Return PEFT's choice of layers for an architecture; none if it makes none."""
        return ()

    def misread_by_peft(self, model: Any, paths: Sequence[str]) -> dict[str, str]:
        """Return the layers that PEFT would not adapt under their paths, with the reason."""
        return {}


class LoraOptions(LayerOptions):
    """Low-rank adapters."""

    rank: Count = Field(8, ge=1)
    """Rank of the factors."""
    ranks: tuple[Annotated[Count, Field(ge=1)], ...] = ()
    """Ranks to sweep over, in every combination with the others, in the same packs."""
    targets: tuple[Target, ...] = ()
    """Layers to sweep over, each as `target`, likewise."""
    alpha: float = Field(32, gt=0)
    """The product of the factors is scaled by alpha / rank."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout before the factors; the frozen backbone itself runs without."""

    @property
    def adapter_sizes(self) -> list[AdapterSize]:
        """The sizes that its runs may have."""
        sizes = product(self.ranks or (self.rank,), self.each_target)
        return [AdapterSize(rank, target) for rank, target in sizes]

    @property
    def each_target(self) -> dict[str, Self]:
        """The options for each choice of layers that a run may have, by its name."""
        targets = self.targets or (self.target,)
        return {target_name(each): self.model_copy(update={"target": each}) for each in targets}

    def peft_names(self, architecture: str) -> Sequence[str]:
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TARGETS

        names: Sequence[str] = TARGETS.get(architecture, ())
        return names

    def misread_by_peft(self, model: Any, paths: Sequence[str]) -> dict[str, str]:
        from peft import LoraConfig
        from peft.utils.transformers_weight_conversion import (
            convert_peft_config_for_transformers,
            get_model_conversion_mapping,
        )

        # PEFT renames weights as transformers does those of older checkpoints.
        renamings = [
            conversion
            for conversion in get_model_conversion_mapping(model)
            if type(conversion).__name__ != "WeightConverter"
        ]
        misread: dict[str, str] = {}
        for path in paths:
            name = f"{path}.weight"
            if any(renaming.rename_source_key(name)[0] != name for renaming in renamings):
                misread[path] = "PEFT renames when it opens an adapter, so that it would be lost"
                continue
            config = LoraConfig(target_modules=[path])
            # Raised for a name that PEFT takes for a part of fused weights.
            with suppress(ValueError):
                convert_peft_config_for_transformers(config, model=model, conversions=None)
                if set(config.target_modules) == {path}:
                    continue
            misread[path] = (
                "PEFT takes for the model's fused experts, so that it could not open the adapter"
            )
        return misread


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the runs of a method are tuned, whatever the adapter."""

    batch_size: int
    eval_every: int
    validation_rows: int
    early_stop: EarlyStop
    restore_best: bool
    max_steps: int | None
    epochs: int | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = None
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: float = 0.0
    dropout_after_first_eval: bool = True

    def last_step(self, rows: int) -> int | None:
        """Return the last step of tuning on `rows` rows; None without one."""
        ends = [] if self.max_steps is None else [self.max_steps]
        if self.epochs is not None:
            ends.append(self.epochs * -(-rows // self.batch_size))
        return min(ends, default=None)

    def rate_share(self, step: int, end: int | None) -> float:
        """Return the share of the learning rate at `step` (from 0) of `end` steps."""
        if end is None:
            return 1.0
        rising = round(self.warmup * end)
        if step < rising:
            return step / rising
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, end - rising)))

    @property
    def first_stop(self) -> int:
        """The first step at which the early-stop rule can end a run."""
        rule, every = self.early_stop, self.eval_every
        stored, after = max(rule.window, rule.stored), rule.after_step
        # Losses before `after_step` count only where asked; the newest is compared with `stored`.
        counted = 0 if rule.count_early else after // every
        return every * max(after // every + 1, counted + stored + 1)


def should_stop(losses: Sequence[float], steps: Sequence[int], rule: EarlyStop) -> bool:
    """Decide from the evaluation losses whether tuning ends (Tian2023, Kohankhaki2024).

    exceeds_max_of_last: the newest exceeds each of the `window` before it. patience: none of the
    last `window`, the newest included, is below the lowest before them. Only after step
    `after_step`, and with `stored` losses before it; without `count_early` only losses after that
    step count.
    """
    after_step, window = rule.after_step, rule.window
    if not steps or steps[-1] <= after_step:
        return False
    before = [
        loss
        for loss, step in zip(losses[:-1], steps[:-1], strict=True)
        if rule.count_early or step > after_step
    ]
    if len(before) < max(window, rule.stored):
        return False
    if rule.rule == "patience":
        recent = [*before, losses[-1]][-window:]
        return min(recent) >= min(before[: len(before) + 1 - window])
    return losses[-1] > max(before[-window:])


def batch_of_step(seed: int, step: int, *, rows: int, batch_size: int) -> list[int]:
    """Return the rows of a batch at `step` (from 0), of permutations keyed by (seed, epoch)."""
    per_epoch = -(-rows // batch_size)
    epoch, place = divmod(step, per_epoch)
    return list(_epoch_order(seed, epoch, rows)[place * batch_size : (place + 1) * batch_size])


@lru_cache(maxsize=256)
def _epoch_order(seed: int, epoch: int, rows: int) -> tuple[int, ...]:
    return tuple(generator(seed, "order", epoch).permutation(rows).tolist())
