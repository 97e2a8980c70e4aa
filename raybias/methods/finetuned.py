"""Soft prompts (Tian2023); full fine-tuning and adapters of layers (Kohankhaki2024)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from raybias.config import Backbone
from raybias.config.parts import Way
from raybias.config.section import Amount, Count, Profile, Rate, by_profile
from raybias.engine.adapters.options import (
    ClassifierOptions,
    EarlyStop,
    LayerOptions,
    LoraOptions,
    PromptOptions,
)
from raybias.engine.checkpoint import quantisation
from raybias.engine.encoder import verbalizer_ids
from raybias.engine.memory import TRAINING_COPIES, MemoryTerm, of_bytes, term
from raybias.errors import ConfigError, ModelError
from raybias.methods.asking import check_placeholders
from raybias.methods.base import Inputs, method
from raybias.methods.tuned import Tuned
from raybias.methods.work import Widths, Work
from raybias.schema import LABELS

if TYPE_CHECKING:
    from raybias.engine.adapters.base import AdapterTrainer, ClassifierTrainer
    from raybias.engine.adapters.vectors import VectorTrainer
    from raybias.engine.backbone import ModelContext
    from raybias.engine.model_shape import ModelShape

# Copies of the factors beside those of any method: the runs' stacked for a pass, what its gradient
# adds to those of earlier passes, and the stack in the model's dtype.
_COPIES_OF_PASSES: Final = 3
#: Bytes of a weight: full fine-tuning needs float32.
_FLOAT32: Final = 4
#: Weight of the past in a running mean.
Decay = Annotated[float, Field(ge=0, lt=1)]
#: Validation batches of one evaluation in the papers' code.
_PAPER_BATCHES = 51


#: Kohankhaki2024's released configuration (vectorlm), where a study does not say otherwise. The
#: separator before the label is ours: theirs is not published.
_VECTORLM: Final = {
    "target": "peft_default",
    "head": "label_tokens",
    "label_words": ("0", "1", "2"),
    "template": "instruction: classify the following text as negative (0), neutral (1), or "
    "positive (2)\n{text}\nlabel:",
    "epochs": 3,
    "batch_size": 32,
    "betas": (0.9, 0.95),
    "eps": 1e-5,
    "schedule": "cosine",
    "warmup": 0.05,
    "clip": 1.0,
}


class VectorTuned(PromptOptions, Tuned):
    """A method that tunes vectors before a text, and reads label words after it."""

    @model_validator(mode="after")
    def _swept_once(self) -> Self:
        if len({*self.prompt_lengths}) < len(self.prompt_lengths):
            raise ValueError("prompt_lengths repeat; list each once")
        return self

    @property
    def context_vectors(self) -> int:
        """Positions of the context for the longest vectors of a run."""
        return self.longest_prompt

    @property
    def ends_with_eos(self) -> bool:
        """Whether EOS stands after a text, for the label to be read there."""
        return self.append_eos

    def check(self, inputs: Inputs) -> None:
        """Refuse encoders, models without a begin token, and label words that share a token."""
        inputs.refuse_encoder(self.name)
        self.check_model(inputs)
        verbalizer_ids(inputs.encoder.tokenizer, inputs.words)
        super().check(inputs)

    @abstractmethod
    def check_model(self, inputs: Inputs) -> None:
        """Refuse a model that does not take such vectors, by a ModelError."""

    @abstractmethod
    def trainer_type(self) -> type[VectorTrainer]:
        """Import the trainer's class."""

    def trainer(self, context: ModelContext) -> AdapterTrainer:
        """Load the backbone with the trainer of vectors before a text."""
        from raybias.engine.backbone import load_backbone

        backbone = context.kept(load_backbone)
        ids = verbalizer_ids(backbone.tokenizer, context.words)
        return self.trainer_type()(backbone, ids, self)


@method
class SoftPrompt(VectorTuned):
    """Packed soft-prompt tuning of a frozen backbone (Tian2023)."""

    kind: Literal["soft_prompt"] = "soft_prompt"
    learning_rates: tuple[Rate, ...] = by_profile(paper=(1e-3,), strict=(3e-3,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""

    small_state: ClassVar[bool] = True
    way: ClassVar[Way] = "soft_prompt"

    def check_model(self, inputs: Inputs) -> None:
        """Refuse a backbone that takes no vectors in the place of embeddings."""
        from raybias.engine.model_shape import check_soft_prompts

        check_soft_prompts(inputs.backbone)
        _ = inputs.encoder.prompt_token_id  # raises where there is none

    def trainer_type(self) -> type[VectorTrainer]:
        """Import the trainer of soft prompts."""
        from raybias.engine.adapters.vectors import SoftPromptTrainer

        return SoftPromptTrainer

    def held(self, shape: ModelShape, *, tokens: int, pack: int) -> tuple[MemoryTerm, ...]:
        length = self.longest_prompt
        item = of_bytes(shape.item)
        return (
            term("keys and values of the prompts", pack, (length, "{} vectors"),
                 (shape.layers, "{} layers"), 2, shape.keys, item),
            term("prompts, gradients, AdamW, best", pack, length, shape.width, of_bytes(4),
                 TRAINING_COPIES),
        )  # fmt: skip


class FinetunedStop(EarlyStop):
    """When full fine-tuning and LoRA stop before their last step."""

    rule: Literal["exceeds_max_of_last", "patience"] = by_profile(
        paper="exceeds_max_of_last", strict="patience"
    )
    """exceeds_max_of_last: the newest evaluation loss exceeds each of the last `window` before
    it; patience: none of the last `window` losses is below the lowest before them."""
    after_step: Amount = Field(0, ge=0)
    """Nothing stops at or before this step."""
    stored: Count = by_profile(
        paper=lambda fields: fields["window"] + 1,
        strict=lambda fields: fields["window"],
        shown="paper window + 1, strict window",
        ge=1,
    )
    """How many losses must have been seen before the newest, as the paper's code has it."""


class Finetuned(ClassifierOptions, Tuned):
    """Full fine-tuning and adapters of layers (Kohankhaki2024)."""

    epochs: Count | None = Field(None, ge=1)
    """Stop after so many passes over the training set, where that comes before max_steps."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's betas, each from 0 and below 1."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's epsilon."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over the steps; cosine falls to 0 at the last one."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0."""
    clip: float | None = Field(None, gt=0)
    """Largest norm of a run's gradient."""
    eval_every: Amount = by_profile(paper=5, strict=125, ge=1)
    """Steps between evaluations."""
    validation_rows: Amount = by_profile(
        paper=lambda fields: _PAPER_BATCHES * fields["batch_size"],
        strict=0,
        shown=f"paper {_PAPER_BATCHES} batches, strict 0",
        ge=0,
    )
    """Rows of one evaluation, drawn anew each time; 0 takes them all."""
    early_stop: FinetunedStop = Field(default_factory=FinetunedStop)
    """The stopping rule."""
    select: Literal["validation", "test"] = by_profile(paper="test", strict="validation")
    """By which accuracy runs are kept; `test` (Kohankhaki2024) flatters its accuracies."""

    shares_backbone: ClassVar[bool] = False

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        check_placeholders("template", self.template, needed=("text",))
        if self.schedule == "cosine" and self.max_steps is None and self.epochs is None:
            raise ValueError("schedule: cosine needs max_steps or epochs, to know its end")
        return self

    def written(self, texts: Sequence[str]) -> list[str]:
        return [self.template.replace("{text}", text) for text in texts]

    def check(self, inputs: Inputs) -> None:
        from raybias.engine.classifier import check_classifier

        check_classifier(inputs.encoder, self, inputs.words)
        super().check(inputs)

    def check_weights(self, inputs: Inputs) -> Sequence[str]:
        from raybias.engine.classifier import check_classifier_loads

        return check_classifier_loads(inputs.backbone, self, inputs.words)

    @abstractmethod
    def trainer_type(self) -> type[ClassifierTrainer]:
        """Import the trainer's class."""

    def trainer(self, context: ModelContext) -> ClassifierTrainer:
        from raybias.engine.classifier import load_classifier

        made = load_classifier(context.spec, self, context.words, context.execution)
        return self.trainer_type()(made, self)


class FullStop(FinetunedStop):
    """When full fine-tuning stops before its last step."""

    window: Count = Field(7, ge=1)
    """How many evaluation losses the rule looks back on."""


@method
class Full(Finetuned):
    """Full fine-tuning of an encoder or a causal model, one run at a time (Kohankhaki2024)."""

    kind: Literal["full"] = "full"
    learning_rates: tuple[Rate, ...] = Field((1e-5,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    weight_decay: float = Field(1e-5, ge=0)
    """AdamW decay of all weights."""
    early_stop: FullStop = Field(default_factory=FullStop)
    """The stopping rule."""
    max_steps: Amount | None = Field(30_000, ge=1)
    """The last step."""
    dropout_after_first_eval: bool = by_profile(paper=False, strict=True)
    """Whether dropout goes on after the first evaluation; lost in Kohankhaki2024's code."""

    factor: ClassVar[int] = 6
    # functional_call, dropout by counter, autocast.
    launches: ClassVar[tuple[float, float]] = (5.0, 0.0)
    loads_as: ClassVar[str | None] = "float32"
    runs_per_replica: ClassVar[int] = 2

    def check(self, inputs: Inputs) -> None:
        if (how := quantisation(inputs.backbone)) is not None:
            raise ModelError(
                f"is quantised ({how.method}), and method {self.name} tunes all of its weights",
                where=inputs.backbone.id,
                cure="use lora or soft_prompt on it, or its checkpoint in full precision",
            )
        super().check(inputs)

    def trainer_type(self) -> type[ClassifierTrainer]:
        from raybias.engine.adapters.base import FullTrainer

        return FullTrainer

    def packs(self, inputs: Inputs) -> bool:
        return False

    def work(self, inputs: Inputs) -> Work:
        """Describe steps of one batch with gradients of all weights; replicas keep tuned models."""
        work = super().work(inputs)
        one_batch = Widths(math.inf, (1.0,))
        # The weight, its gradient and two moments, read and written.
        moved = 8 * _FLOAT32
        return replace(
            work,
            tuning={
                name: replace(each, step=each.step._replace(widths=one_batch), moved=moved, most=1)
                for name, each in work.tuning.items()
            },
            can_shard=False,
            frozen=False,
            item=_FLOAT32,
            copies=1 + self.runs_per_replica,
            step=self.batch_size,
        )


class LayerAdapter(LayerOptions, Finetuned):
    """A method that adapts layers of a frozen classifier."""

    launches: ClassVar[tuple[float, float]] = (3.5, 0.3)

    def packs(self, inputs: Inputs) -> bool:
        from raybias.engine.backbone import is_encoder

        return not is_encoder(inputs.backbone)

    def check(self, inputs: Inputs) -> None:
        from raybias.engine.adapters.target_layers import target_layers
        from raybias.engine.backbone import empty_model

        model = empty_model(inputs.backbone)
        for own in self.each_target.values():
            target_layers(model, own, inputs.backbone)
        super().check(inputs)


@method
class Lora(LoraOptions, LayerAdapter):
    """Packed low-rank adaptation of a frozen backbone (Kohankhaki2024)."""

    kind: Literal["lora"] = "lora"
    preset: Literal["paper_text", "vectorlm"] = "paper_text"
    """paper_text: all linear layers, classification head; vectorlm: the released configuration."""
    learning_rates: tuple[Rate, ...] = Field((1e-4,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    weight_decay: float = Field(1e-4, ge=0)
    """AdamW decay of the factors and the head."""
    max_steps: Amount | None = Field(30_000, ge=1)
    """The last step."""

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("preset") == "vectorlm":
            data = {**_VECTORLM, **data}
        return data

    def fit(self, backbone: Backbone, profile: Profile, labels: Sequence[str]) -> Self:
        """Return the method; ConfigError: the template of `vectorlm` on labels not sentiment's."""
        if self.template == _VECTORLM["template"] and tuple(labels) != LABELS:
            raise ConfigError(
                f"method {self.name!r}: the preset vectorlm asks for {', '.join(LABELS)}, and the"
                f" study has the labels {', '.join(labels)}",
                where="preset",
                cure="leave out the preset, or give a template and label_words too",
            )
        return super().fit(backbone, profile, labels)

    @model_validator(mode="after")
    def _swept_once(self) -> Self:
        for name in ("ranks", "targets"):
            values = getattr(self, name)
            if len({*values}) < len(values):
                raise ValueError(f"{name} repeat; list each once")
        if len(self.each_target) < len(self.targets):
            raise ValueError("two targets share a name once their parts are joined by hyphens")
        return self

    def trainer_type(self) -> type[ClassifierTrainer]:
        from raybias.engine.adapters.packed_layers import LoraTrainer

        return LoraTrainer

    def held(self, shape: ModelShape, *, tokens: int, pack: int) -> tuple[MemoryTerm, ...]:
        widths = shape.linear_widths, "{:,} inputs and outputs"
        copies = TRAINING_COPIES + _COPIES_OF_PASSES
        return (
            term("inputs of the factors, kept too", (tokens, "{:,} tokens"), widths,
                 (shape.item + 1, "({} bytes, the mask's included)")),
            term("factors, gradients, AdamW, best", pack,
                 (max(self.ranks or (self.rank,)), "rank {}"), widths,
                 of_bytes(4), copies),
        )  # fmt: skip
