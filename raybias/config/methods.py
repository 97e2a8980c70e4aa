"""How a backbone is made to classify: tuned (001 section 3, 004) or prompted (004).

Values that the profile decides are None until `resolve` fills them in.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from raybias.config.prompted import ChainOfThought, FewShot, ZeroShot
from raybias.config.section import Named, Profile, Section

_ALL: Final = 0


class EarlyStop(Section):
    """When tuning stops before its last step."""

    rule: Literal["exceeds_max_of_last", "patience"] | None = None
    """exceeds_max_of_last: the newest evaluation loss exceeds each of the last `window` before
    it; patience: none of the last `window` losses is below the lowest before them."""
    after_step: int | None = Field(None, ge=0)
    """Nothing stops at or before this step (soft prompts 2500, others 0)."""
    window: int | None = Field(None, ge=1)
    """How many evaluation losses the rule looks back on (full 7, others 5)."""
    count_early: bool = True
    """Whether losses seen before `after_step` belong to the window."""
    stored: int | None = Field(None, ge=1)
    """How many losses must have been seen before the newest; `window`, and one more in the
    paper profile of full and lora, as the paper's code has it."""

    def filled(self, *, rule: str, after_step: int, window: int, one_more: bool) -> Self:
        """The same rule with what was left open decided."""
        length = self.window if self.window is not None else window
        return self.model_copy(
            update={
                "rule": self.rule or rule,
                "after_step": self.after_step if self.after_step is not None else after_step,
                "window": length,
                "stored": self.stored or length + one_more,
            }
        )


class Tuned(Named):
    """What every tuned classifier has in common."""

    learning_rates: tuple[float, ...] = Field((1e-3,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    weight_decay: float = Field(1e-2, ge=0)
    """AdamW decay of what is tuned; on a soft prompt it acts on the delta."""
    weight_decays: tuple[float, ...] = ()
    """Decays to sweep over, in every combination with the learning rates."""
    stop_windows: tuple[int, ...] = ()
    """Early-stop windows to sweep over, in every combination with the others."""
    sweep_seeds: int = Field(1, ge=1)
    """How many of the seeds, from the first, the sweep runs."""
    batch_size: int = Field(8, ge=1)
    """Rows of one seed's step."""
    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations (125; full and lora 5 in the paper profile)."""
    validation_rows: int | None = Field(None, ge=0)
    """Rows of one evaluation, drawn anew each time; 0 takes them all (full and lora in the
    paper profile: 51 batches)."""
    early_stop: EarlyStop = EarlyStop()
    """The stopping rule."""
    max_steps: int | None = Field(None, ge=1)
    """A guard; without it a slowly falling loss can run for ever."""
    restore_best: bool | None = None
    """Keep the weights of the lowest evaluation loss instead of the last (paper no, strict yes)."""
    select: Literal["validation", "test"] | None = None
    """By which accuracy runs are kept; `test` is 004's choice and flatters its accuracies."""
    seeds: tuple[int, ...] = Field(tuple(range(1001, 1016)), min_length=1)
    """One run per seed; a seed rules the initial values, the data order and dropout."""
    keep: int = Field(5, ge=1)
    """How many runs, best by `select`, are probed."""
    allow_failed: bool = False
    """Go on when fewer runs than seeds finish, as long as `keep` do."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for field in ("seeds", "learning_rates", "weight_decays", "stop_windows"):
            values = getattr(self, field)
            if repeated := sorted({each for each in values if values.count(each) > 1}):
                raise ValueError(f"{field} repeat: {', '.join(map(str, repeated))}; list each once")
        if self.keep > len(self.seeds):
            raise ValueError(f"keep is {self.keep} but there are {len(self.seeds)} seeds")
        if self.sweep_seeds > len(self.seeds):
            raise ValueError(f"sweep_seeds is {self.sweep_seeds}, seeds are {len(self.seeds)}")
        return self

    def resolve(self, profile: Profile) -> Self:
        """The same method with what the profile decides filled in."""
        strict = profile == "strict"
        early_stop = self.early_stop.filled(
            rule="exceeds_max_of_last", after_step=2500, window=5, one_more=False
        )
        return self.model_copy(
            update={
                "early_stop": early_stop,
                "eval_every": self.eval_every or 125,
                "validation_rows": self.validation_rows or _ALL,
                "restore_best": strict if self.restore_best is None else self.restore_best,
                "select": self.select or "validation",
            }
        )


class SoftPrompt(Tuned):
    """Packed soft-prompt tuning of a frozen backbone (001)."""

    kind: Literal["soft_prompt"] = "soft_prompt"
    """Names the kind of method."""
    prompt_length: int = Field(8, ge=1)
    """Number P of prompt vectors."""
    init: Literal["normal", "zeros"] = "normal"
    """Initial delta: Normal(0, init_std), keyed by the seed, or zeros."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the initial delta."""
    append_eos: bool = False
    """Put EOS after the text, so that the label is read there."""


class Finetuned(Tuned):
    """What full fine-tuning and LoRA have in common (004)."""

    head: Literal["classification", "label_tokens"] = "classification"
    """A new head with three outputs, or the label words' rows of a causal model's LM head."""
    template: str = "{text}"
    """What the model reads; `{text}` stands for the sentence."""
    label_words: tuple[str, str, str] | None = None
    """For label_tokens: the words in label order, instead of the study's verbalizer."""
    epochs: int | None = Field(None, ge=1)
    """Stop after so many passes over the training set, where that comes before max_steps."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's betas."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's epsilon."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over the steps; cosine falls to 0 at the last one."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0."""
    clip: float | None = Field(None, gt=0)
    """Largest norm of a run's gradient."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if "{text}" not in self.template:
            raise ValueError(f"template {self.template!r} has no {{text}}")
        if self.schedule == "cosine" and self.max_steps is None and self.epochs is None:
            raise ValueError("schedule: cosine needs max_steps or epochs, to know its end")
        return self

    def _resolved(self, profile: Profile, *, window: int) -> Self:
        strict = profile == "strict"
        rows = _ALL if strict else 51 * self.batch_size
        early_stop = self.early_stop.filled(
            rule="patience" if strict else "exceeds_max_of_last",
            after_step=0,
            window=window,
            one_more=not strict,
        )
        decided = {
            "early_stop": early_stop,
            "eval_every": self.eval_every or (125 if strict else 5),
            "validation_rows": rows if self.validation_rows is None else self.validation_rows,
            "select": self.select or ("validation" if strict else "test"),
        }
        return super().resolve(profile).model_copy(update=decided)


class Full(Finetuned):
    """Full fine-tuning of an encoder or a causal model, one run at a time (004)."""

    kind: Literal["full"] = "full"
    """Names the kind of method."""
    learning_rates: tuple[float, ...] = Field((1e-5,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    weight_decay: float = Field(1e-5, ge=0)
    """AdamW decay of all weights."""
    max_steps: int | None = Field(30_000, ge=1)
    """The last step."""
    dropout_after_first_eval: bool | None = None
    """Whether dropout goes on after the first evaluation; 004's code loses it there (paper
    no, strict yes)."""

    def resolve(self, profile: Profile) -> Self:
        """The same method with what the profile decides filled in."""
        given = self.dropout_after_first_eval
        keeps = profile == "strict" if given is None else given
        resolved = self._resolved(profile, window=7)
        return resolved.model_copy(update={"dropout_after_first_eval": keeps})


#: What 004's released configuration (vectorlm) says, where a study does not say otherwise. The
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


class Lora(Finetuned):
    """Packed low-rank adaptation of a frozen backbone (004)."""

    kind: Literal["lora"] = "lora"
    """Names the kind of method."""
    preset: Literal["paper_text", "vectorlm"] = "paper_text"
    """paper_text: all linear layers, classification head; vectorlm: the released configuration."""
    rank: int = Field(8, ge=1)
    """Rank of the factors."""
    alpha: float = Field(32, gt=0)
    """The product of the factors is scaled by alpha / rank."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout before the factors; the frozen backbone itself runs without."""
    target: Literal["all_linear", "peft_default"] | tuple[str, ...] = "all_linear"
    """Which layers: all linear ones but embeddings and head, PEFT's choice for the
    architecture (query and value mostly), or names such as [q_proj, v_proj]."""
    learning_rates: tuple[float, ...] = Field((1e-4,), min_length=1)
    """More than one is a sweep: the best by mean validation accuracy is kept."""
    weight_decay: float = Field(1e-4, ge=0)
    """AdamW decay of the factors and the head."""
    max_steps: int | None = Field(30_000, ge=1)
    """The last step."""

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("preset") == "vectorlm":
            data = {**_VECTORLM, **data}
        return data

    def resolve(self, profile: Profile) -> Self:
        """The same method with what the profile decides filled in."""
        return self._resolved(profile, window=5)


class PairMethod(Named):
    """What reads probes in pairs rather than sentences with labels (002)."""


class PairScore(PairMethod):
    """Which sentence of a pair a model prefers (002, section 3 of its appendix)."""

    kind: Literal["pair_score"] = "pair_score"
    """Names the kind of method."""
    scores: tuple[str, ...] = Field((), max_length=7)
    """Scoring rules: bias_bench, prepend, sum, perplexity, shared for causal models, masked and
    masked_differing for masked ones. By default bias_bench (paper) or prepend (strict) on causal
    backbones and masked on masked ones; a study that runs records them."""
    eps: float = Field(0.0, ge=0)
    """Log-likelihoods of `sum` at most this far apart are a tie."""

    def resolve(self, profile: Profile) -> Self:
        """The same method; what its default scores are depends on the backbone too."""
        return self


class Coreference(PairMethod):
    """Whom a pronoun stands for, asked with six prompts and answered greedily (002)."""

    kind: Literal["coreference"] = "coreference"
    """Names the kind of method."""
    answer_tokens: int = Field(32, ge=1)
    """Most tokens of an answer; only its first words count by the exact rule."""

    def resolve(self, profile: Profile) -> Self:
        """The same method; both rules of reading an answer are always applied."""
        return self


KINDS: Final = (
    *("soft_prompt", "full", "lora", "zero_shot", "few_shot", "cot"),
    *("pair_score", "coreference"),
)


def kind_of(data: Any) -> str:
    """The `kind` of a method, or of a mapping that will be one."""
    kind = data.get("kind", "soft_prompt") if isinstance(data, dict) else getattr(data, "kind", "")
    return str(kind)


Method = Annotated[
    Annotated[SoftPrompt, Tag("soft_prompt")]
    | Annotated[Full, Tag("full")]
    | Annotated[Lora, Tag("lora")]
    | Annotated[ZeroShot, Tag("zero_shot")]
    | Annotated[FewShot, Tag("few_shot")]
    | Annotated[ChainOfThought, Tag("cot")]
    | Annotated[PairScore, Tag("pair_score")]
    | Annotated[Coreference, Tag("coreference")],
    Discriminator(
        kind_of,
        custom_error_type="kind",
        custom_error_message=f"unknown kind of method; known kinds: {', '.join(KINDS)}",
    ),
]
