"""How sentences are put into other styles: by rule, and by a sequence-to-sequence checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from raybias.config.data import Backbone
from raybias.config.section import Amount, Count, Location, Registered, Section, by_profile
from raybias.registry import registry_of


class StyleOptions(Section):
    """What the rule styles leave open (Zhao2025 prints examples that differ)."""

    evidential: Literal["Apparently", "Evidently"] = "Apparently"
    """The word that the evidential style puts first, on all sides of a pair."""
    evidential_comma: bool = True
    """Whether a comma follows it."""
    evidential_case: Literal["keep", "lower"] = "keep"
    """Leave the sentence's own capital, or take it away where all sides of a pair begin with a
    word like `the` or `she`."""
    question: Literal["first", "second", "seeded"] = "first"
    """The opening of question_answer: "Know what?", "Want to hear something?", or one of them
    drawn per pair."""


StyleName = Annotated[str, Registered("style")]


class Checkpoint(Section):
    """A model from a hub id or a local folder, with safetensors weights."""

    model: Location
    """Hugging Face id or local path."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of its weights."""

    def spec(self) -> Backbone:
        """Return the checkpoint as a backbone that the engine loads."""
        return Backbone(id=self.model, revision=self.revision, dtype=self.dtype)


class Adequacy(Checkpoint):
    """The judge of whether a rewritten sentence still means the same."""

    kind: Literal["classifier", "embedding"] = "classifier"
    """A sequence classifier of (sentence, rewritten) whose label 1 says yes, or an encoder whose
    mean-pooled embeddings are compared by their cosine."""
    threshold: float = Field(0.95, ge=-1, le=1)
    """The least probability or cosine; the paper's for a classifier."""


class Rewriting(Checkpoint):
    """A checkpoint of T5's kind that rewrites sentences."""

    instruction: str | None = None
    """What is put before each sentence; Styleformer's words for the style by default."""
    candidates: Count = Field(5, ge=1)
    """How many are drawn for each sentence."""
    temperature: float = Field(1.0, gt=0)
    """Of the draw."""
    top_k: Amount = Field(50, ge=0)
    """How many tokens may be drawn; 0 for all."""
    top_p: float = Field(0.95, gt=0, le=1)
    """The share of probability that may be drawn."""
    max_length: Count = Field(128, ge=2)
    """Tokens of a sentence and of what is made of it. A longer sentence is left as it is, and
    what does not end within it is dropped; nothing is cut."""
    adequacy: Adequacy
    """The judge of what is drawn."""
    paired: Literal["separate", "mirror"] = by_profile(paper="separate", strict="mirror")
    """Rewrite both sides of a pair, or one and transfer the edit to the other."""

    @property
    def specs(self) -> tuple[Backbone, Backbone]:
        """The checkpoint and its judge as backbones that the engine loads."""
        return self.spec(), self.adequacy.spec()


class Styles(Section):
    """Which styles pairs come in, and how they are made."""

    names: tuple[StyleName, ...] = Field(("original",), min_length=1)
    """original, prefix_1 to prefix_3, punctuation, evidential, question_answer, lowercase,
    contractions and typos by rule; formal and informal from `files` or by `rewriting`. A probe
    takes those that it has."""
    options: StyleOptions = StyleOptions()
    """What the rules leave open."""
    files: tuple[Location, ...] = ()
    """Styled pairs of your own: pair_id, style, sent_more, sent_less."""
    rewriting: dict[StyleName, Rewriting] = Field(default_factory=dict)
    """For formal, informal or both: the checkpoint that makes the style, and its judge."""
    seed: int = 0
    """Keys what is drawn per pair."""

    @model_validator(mode="after")
    def _each_is_made(self) -> Self:
        styles = registry_of("style")
        for style in self.rewriting:
            if styles[style].rule is not None:
                raise ValueError(f"rewriting makes {style!r}, which a rule makes; take it out")
            if style not in self.names:
                raise ValueError(f"rewriting makes {style!r}, which `names` lacks; add it there")
        for style in self.names:
            if styles[style].rule is None and style not in self.rewriting and not self.files:
                raise ValueError(
                    f"no rule makes {style!r}; give a file of such pairs in `files`, or a"
                    " checkpoint in `rewriting`"
                )
        return self

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        """Return the styles with the revisions of their models replaced; see `Study.pinned`."""
        made = {
            style: options.model_copy(
                update={
                    "revision": revisions[f"rewriting {style}"],
                    "adequacy": options.adequacy.model_copy(
                        update={"revision": revisions[f"adequacy {style}"]}
                    ),
                }
            )
            for style, options in self.rewriting.items()
        }
        return self.model_copy(update={"rewriting": made})
