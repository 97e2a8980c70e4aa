"""Fields of a method in a study, and what follows from them before any model is read.

The work of a method is in `methods.base.Method`; a study knows the fields alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import model_validator

from raybias.config.data import Ability, Backbone
from raybias.config.section import Choices, Name, Profile, Section
from raybias.registry import registry_of
from raybias.schema import OutputSpec

#: The kind of a method that names none.
DEFAULT_KIND: Final = "soft_prompt"
#: The lists of a study that methods read.
Reads = Literal["probes", "pairs", "questions"]


class MethodFields(Section):
    """How labels or scores are got from a backbone, as a study says it."""

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

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, dict):
            kind = cls.model_fields["kind"].default
            data = {"kind": kind, **data, "name": data.get("name") or kind}
        return data

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

    def pinned(self, revisions: Mapping[str, str | None]) -> Self:
        """Return the method with the revision of each of its `checkpoints` replaced."""
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

    @abstractmethod
    def output(self) -> OutputSpec:
        """Say where rows are stored, and in which columns."""


def kind_of(data: Any) -> str:
    """Return the `kind` of a method, or of a mapping that will be one."""
    kind = data.get("kind", DEFAULT_KIND) if isinstance(data, dict) else getattr(data, "kind", "")
    return str(kind)


def default_methods() -> tuple[MethodFields, ...]:
    """Return the methods of a study that names none: soft-prompt tuning."""
    return (registry_of("method")[DEFAULT_KIND].model_validate({}),)


#: Any registered method; a study file names it by its `kind`.
AnyMethod = Annotated[
    MethodFields,
    Choices(
        "method",
        "kind",
        kind_of,
        "unknown kind of method; known kinds: %s, each in a section such as {kind: lora}",
    ),
]
