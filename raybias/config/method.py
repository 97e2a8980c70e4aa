"""The interface of methods: a name, the backbones it is used on, and what planner and runtime call.

A method makes a classifier or a scorer of a backbone. Its options and all that follows from them
(runs, checks, memory, cost, trainer or predictor) stand in one file of `raybias.methods`; a study,
the planner and the runtime call what is declared here and never test which method it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from raybias.config.profiles import Profile
from raybias.config.section import Choices, Name, Section

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl

    from raybias.config.data import Ability, Backbone
    from raybias.engine.backbone import TextEncoder
    from raybias.engine.context import ModelContext
    from raybias.engine.memory import MemoryTerm
    from raybias.engine.model_shape import ModelShape
    from raybias.methods.lengths import TokenCounts
    from raybias.methods.prediction import Predictor, UntrainedRun
    from raybias.schema import OutputSpec
    from raybias.storage import Store

#: The kind of a method that names none.
DEFAULT_KIND: Final = "soft_prompt"
#: The lists of a study that methods read.
Reads = Literal["probes", "pairs", "questions"]


class Asks(NamedTuple):
    """Prompts, their tokens, and the tokens that are written at most."""

    requests: float
    read: float
    written: float


@dataclass(frozen=True, kw_only=True)
class StudyText:
    """The text that a method reads on one backbone, and the backbone's tokenizer.

    Attributes
    ----------
    tokens: counts of what was tokenised for the backbone, shared by all of its methods.
    words: the study's label words, in label order.
    items: per probe that the method reads, its rows.
    sentences: per training set, its splits.
    """

    tokens: TokenCounts
    words: tuple[str, ...]
    items: Mapping[str, pl.DataFrame]
    sentences: Mapping[str, Mapping[str, pl.DataFrame]]

    @property
    def encoder(self) -> TextEncoder:
        """The backbone's tokenizer."""
        return self.tokens.encoder


class Method(Section):
    """How labels or scores are got from a backbone."""

    kind: str = ""
    """Names the kind of method."""
    name: Name = ""
    """Names the method in tables and run ids; its kind by default."""
    backbones: tuple[str, ...] = ()
    """Names of the backbones it is used on; all by default."""

    trains: ClassVar[bool] = False
    """Whether its runs are tuned on a training set before they read a probe."""
    needs_training_set: ClassVar[bool] = False
    """Whether it has runs for each training set: it tunes on it or takes demonstrations from it."""
    reads: ClassVar[Reads] = "probes"
    """Which list of the study it reads."""
    shares_backbone: ClassVar[bool] = True
    """Whether its runs leave the backbone's weights as they are, so that methods can share them."""
    can_shard: ClassVar[bool] = True
    """Whether workers can share the backbone with ZeRO-3."""
    runs_per_replica: ClassVar[int] = 16
    """Runs that a replica keeps loaded beside the backbone."""

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, dict):
            kind = cls.model_fields["kind"].default
            data = {"kind": kind, **data, "name": data.get("name") or kind}
        return data

    @classmethod
    def describes(cls, data: object) -> bool:
        """Return whether a mapping has the method's kind."""
        return bool(cls.model_fields["kind"].default == kind_of(data))

    def needs(self, offered: frozenset[Ability]) -> Mapping[Ability, str]:
        """List what a backbone must be able to do, each with the options that need it less.

        Parameters
        ----------
        offered: what the backbone can, where a method can do with one thing or another.
        """
        return {"weights": ""}

    @property
    def judged_by(self) -> str:
        """What labels the texts that it has a backbone write; empty where the backbone labels."""
        return ""

    @property
    def checkpoints(self) -> Mapping[str, Backbone]:
        """Models that it loads beside the backbone, by what they are to it."""
        return {}

    @property
    def loaded_beside(self) -> Sequence[tuple[Backbone, int]]:
        """Models that workers load beside the backbone, and the bytes of their weights."""
        return ()

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        """Return the method with the revision of each of its `checkpoints` replaced."""
        return self

    def located(self, local: Callable[[str], str]) -> Self:
        """Return the method with `local` applied to each of its paths."""
        return self

    def fit(self, backbone: Backbone, profile: Profile) -> Self:
        """Return the method with what depends on the backbone filled in; no weights are read.

        Raises
        ------
        ConfigError, ModelError: options that the backbone cannot have.
        """
        return self

    @property
    def n_runs(self) -> int:
        """Runs that read the probes, for each training set where it needs one."""
        return 1

    @property
    def shots(self) -> int:
        """Demonstrations in a prompt."""
        return 0

    @property
    def selection(self) -> str | None:
        """The split by whose accuracy runs are kept; None where all of them are."""
        return None

    @property
    def steps_between_evaluations(self) -> int:
        """Optimizer steps from one evaluation of a run to the next."""
        return 1

    @abstractmethod
    def output(self) -> OutputSpec:
        """Say where rows are stored, and in which columns."""

    def untrained_runs(
        self, backbone: Backbone, text: StudyText, training: Sequence[str]
    ) -> Sequence[UntrainedRun]:
        """List the runs of a method that tunes nothing.

        Parameters
        ----------
        training: names of the study's training sets.
        """
        return ()

    @abstractmethod
    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse what no run could work with; tokenizer and configuration are read, no weights.

        Raises
        ------
        ModelError: a backbone of the wrong architecture, label words that share a token, or texts
            longer than the context.
        DataError: a training set without what the method needs.
        """

    def check_training(self, training: str, splits: Mapping[str, pl.DataFrame]) -> None:
        """Refuse a training set that lacks what the method needs.

        Raises
        ------
        DataError: says what it lacks.
        """

    def check_label_words(self, words: Sequence[str]) -> None:
        """Refuse label words that answers could not be read by.

        Raises
        ------
        ConfigError: a word is empty, given twice, or part of another one.
        """

    def check_texts(self, encoder: TextEncoder, texts: Sequence[str]) -> None:
        """Refuse texts that are no items of a probe and do not fit the context.

        Raises
        ------
        ModelError: counts them and names the longest.
        """

    @abstractmethod
    def predictor(self, context: ModelContext, store: Store) -> Predictor:
        """Load what reads items with any run of the method.

        Parameters
        ----------
        store: the study's OUT, which holds the runs.

        Raises
        ------
        ModelError: the backbone cannot be loaded, or not for this method.
        """

    def bytes_per_weight(self, shape: ModelShape) -> int:
        """Return the bytes of one weight of the backbone."""
        return shape.item

    @abstractmethod
    def inference_memory(
        self, shape: ModelShape, *, tokens: int, device: str, partitions: int = 1
    ) -> tuple[MemoryTerm, ...]:
        """Count the memory of a replica that reads `tokens` tokens at a time.

        Parameters
        ----------
        device: "cpu" or "gpu".
        partitions: workers that share the weights; 1 holds all of them.
        """

    def weights_per_token(self, shape: ModelShape) -> int:
        """Return the parameters that one token is multiplied by."""
        return shape.block_parameters

    @property
    def new_tokens(self) -> int:
        """Most tokens that are written after one prompt."""
        return 0

    def asks(self, text: StudyText, probe: str) -> Asks:
        """Return what one run asks of a provider for an item, in the mean."""
        return Asks(0.0, 0.0, 0.0)

    @abstractmethod
    def tokens_per_item(self, text: StudyText, probe: str) -> float:
        """Return the mean number of tokens that one run reads and writes for an item."""


class _Registered(Choices):
    """Validates a method by its `kind`, among all that the registry knows."""

    def types(self) -> list[type[Section]]:
        """Return every registered method."""
        from raybias.registry import methods

        return [*methods.values()]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from raybias.registry import methods

        return core_schema.tagged_union_schema(
            {kind: handler.generate_schema(each) for kind, each in methods.items()},
            discriminator=kind_of,
            custom_error_type="kind",
            custom_error_message=f"unknown kind of method; known kinds: {', '.join(methods)}, each"
            " in a section such as {kind: lora}",
        )


def kind_of(data: Any) -> str:
    """Return the `kind` of a method, or of a mapping that will be one."""
    kind = data.get("kind", DEFAULT_KIND) if isinstance(data, dict) else getattr(data, "kind", "")
    return str(kind)


def default_methods() -> tuple[Method, ...]:
    """Return the methods of a study that names none: soft-prompt tuning."""
    from raybias.registry import methods

    return (methods[DEFAULT_KIND].model_validate({}),)


#: Any registered method; a study file names it by its `kind`.
AnyMethod = Annotated[Method, _Registered()]
