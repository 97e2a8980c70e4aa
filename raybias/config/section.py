"""What every section of a study file has in common, and defaults that its profile decides."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from inspect import isclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Self, Union, get_args, get_origin

from annotated_types import GroupedMetadata
from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from raybias.errors import ConfigError
from raybias.redaction import holds_secret
from raybias.registry import registry_of

Profile = Literal["paper", "strict"]

_current: Final[ContextVar[Profile]] = ContextVar("profile", default="strict")


@contextmanager
def defaults_of(profile: Profile) -> Iterator[None]:
    """Build sections with the defaults of a profile in the body; `ConfigError` for another name."""
    if profile not in get_args(Profile):
        raise ConfigError(f"no profile {profile!r}", cure="choose from paper, strict")
    token = _current.set(profile)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(frozen=True)
class ByProfile:
    """The default of a field under each profile: a value, or a function of the fields before it."""

    paper: Any
    strict: Any

    def __call__(self, fields: Mapping[str, Any]) -> Any:
        """Return the default under the current profile."""
        value = getattr(self, _current.get())
        return value(fields) if callable(value) else value


def by_profile(*, paper: Any, strict: Any, shown: str = "", **constraints: Any) -> Any:
    """Declare a field whose default depends on the study's profile.

    Parameters
    ----------
    paper, strict: the defaults, or functions of the section's fields before this one.
    shown: the defaults in words, for the JSON schema.
    constraints: of `pydantic.Field`.
    """
    told = [str(each).lower() if isinstance(each, bool) else each for each in (paper, strict)]
    words = shown or "paper {}, strict {}".format(*told)

    def describe(schema: dict[str, Any]) -> None:
        schema["description"] = f"{schema.get('description', '')} Default: {words}.".strip()

    return Field(
        default_factory=ByProfile(paper, strict), json_schema_extra=describe, **constraints
    )


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*(\.[A-Za-z0-9_+-]+)*")
#: Names of our keys in other tools, or other sections; the first that exists is suggested.
_ELSEWHERE: Final = {
    "model": ("backbones", "id"),
    "models": ("backbones",),
    "model_name_or_path": ("backbones", "id"),
    "pretrained": ("backbones", "id"),
    "torch_dtype": ("dtype",),
    "datasets": ("training",),
    "train": ("training",),
    "tasks": ("probes",),
    "benchmarks": ("probes",),
    "lr": ("learning_rates",),
    "seed": ("seeds",),
    "num_virtual_tokens": ("prompt_length",),
    "r": ("rank",),
    "target_modules": ("target",),
}


_SIZE: Final = TypeAdapter(ByteSize)
#: The names of a model, method, training set and probe go into one file name.
_LONGEST_NAME: Final = 64


def _checked_name(text: str) -> str:
    if len(text) > _LONGEST_NAME:
        raise ValueError(
            f"{text[:_LONGEST_NAME]!r}.. has {len(text)} characters, and a name at most"
            f" {_LONGEST_NAME}; give a shorter `name`"
        )
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} cannot be a name; it may have letters, digits, _ + - and single dots between"
            " them, and begins with a letter or digit"
        )
    return text


def name_of(text: str) -> str:
    """Make a valid name of a folder's, or another that nobody chose as a name."""
    name = re.sub(r"[^A-Za-z0-9_+.-]+", "-", text).lstrip("_+-.")
    return re.sub(r"\.{2,}", ".", name)[:_LONGEST_NAME].rstrip(".-") or "model"


Name = Annotated[str, AfterValidator(_checked_name)]


def from_folder(text: str, info: ValidationInfo) -> str:
    """Return a path as the place in the study's folder, and a name on the hub as it is.

    A text is a path if it exists there, or begins with `./` or `../`.
    """
    return _placed(text, info, is_path=text.startswith(("./", "../")))


def path_from_folder(text: str, info: ValidationInfo) -> str:
    """Return a path as the place in the study's folder, also if nothing is there yet."""
    return _placed(text, info, is_path=True)


def _placed(text: str, info: ValidationInfo, *, is_path: bool) -> str:
    # The embedded model keeps its name, even beside a folder that bears it.
    if info.context is None or text == "planted" or "://" in text or Path(text).is_absolute():
        return text
    place = Path(info.context, text)
    try:
        if place.exists():
            return str(place.resolve())
        # What exists in the working folder alone was meant, such as a value of `--set`.
        return str(place.resolve()) if is_path and not Path(text).exists() else text
    # A name that no file can have, a loop of links, a folder that must not be read.
    except (OSError, ValueError, RuntimeError):
        return text


def bytes_of(text: str) -> int:
    """Return the bytes of a size such as `80GiB` or `512MB`; ValueError if it is none, or 0."""
    try:
        size = int(_SIZE.validate_python(text))
    except ValidationError:
        size = 0
    if size < 1:
        raise ValueError(f"{text!r} is not a size; write it like 80GiB or 512MB")
    return size


def _checked_size(text: str) -> str:
    bytes_of(text)
    return text


#: A number of bytes, with its unit.
Size = Annotated[str, AfterValidator(_checked_size)]
#: A path, which in a study file starts from that file's folder, or a name on the hub.
Location = Annotated[str, AfterValidator(from_folder)]
#: A path, which in a study file starts from that file's folder.
Place = Annotated[str, AfterValidator(path_from_folder)]
#: Numbers of nodes, workers, seeds, candidates, layers.
Count = Annotated[int, Field(le=100_000)]
#: Seeds of random draws.
Seed = Annotated[int, Field(ge=0)]
#: One run is made per seed.
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1, max_length=1_000)]
#: Learning rates.
Rate = Annotated[float, Field(gt=0)]
#: Rows, tokens and steps.
Amount = Annotated[int, Field(le=1_000_000_000)]


class Section(BaseModel):
    """Base of all study sections: frozen, strict about names, and without secrets."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, value in data.items():
            if name not in cls.model_fields:
                meant = cls._meant(str(name))
                known = f"known keys: {', '.join(cls.model_fields)}"
                hint = f"did you mean {meant!r}?" if meant else known
                raise ValueError(f"unknown key {name!r}; {hint}")
            # A study is written to OUT, shown in its page and sent to trackers.
            texts = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(text, str) and holds_secret(text) for text in texts):
                raise ValueError(
                    f"{name} holds a password or token, or an option of a URL that can be one,"
                    " which would be printed and written down; set it in the environment, such as"
                    " MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or"
                    " AWS_SECRET_ACCESS_KEY"
                )
        return {
            name: listed(cls.model_fields[name].annotation, _given(value))
            for name, value in data.items()
            if value is not None or not cls._left_to_profile(name)
        }

    @classmethod
    def _left_to_profile(cls, name: str) -> bool:
        return isinstance(cls.model_fields[name].default_factory, ByProfile)

    @classmethod
    def under(cls, profile: Profile, **fields: Any) -> Self:
        """Build the section with the defaults of a profile."""
        with defaults_of(profile):
            return cls(**fields)

    def restated(self, profile: Profile) -> Self:
        """Return the section with what a profile decides as that profile has it."""
        kept = {n: v for n, v in dict(self).items() if not self._left_to_profile(n)}
        return type(self).under(profile, **kept)

    @classmethod
    def _meant(cls, name: str) -> str | None:
        """Return the key of this section, or of a section in it, that is nearest to `name`."""
        for word in (*_ELSEWHERE.get(name, ()), name):
            if word in cls.model_fields:
                return word
            for key, each in cls.model_fields.items():
                for part, place in _parts(each.annotation, key):
                    if word in part.model_fields:
                        return f"{place}.{word}"
        near = difflib.get_close_matches(name, cls.model_fields, n=1, cutoff=0.5)
        return near[0] if near else None


def _given(value: Any) -> Any:
    """Take sections apart into what was set in them, so that defaults follow the profile."""
    if isinstance(value, Section):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, list | tuple):
        return [_given(each) for each in value]
    if isinstance(value, dict):
        return {key: _given(each) for key, each in value.items()}
    return value


@dataclass(frozen=True)
class Registered(GroupedMetadata):
    """A note on a `str`: the names that a registry has, looked up when a value is checked."""

    kind: str

    def __iter__(self) -> Iterator[object]:
        """Yield what pydantic knows: how a value is checked, and its JSON schema."""
        yield AfterValidator(self._check)
        yield Field(json_schema_extra=lambda schema: schema.update(enum=[*registry_of(self.kind)]))

    def _check(self, name: str) -> str:
        if name not in (registry := registry_of(self.kind)):
            raise ValueError(f"unknown {self.kind} {name!r}; choose from {', '.join(registry)}")
        return name


@dataclass(frozen=True)
class Choices:
    """A note on a type: the sections of the registry `kind` that it can be, and how to tell which.

    Attributes
    ----------
    key: the field that tells sections apart; `default` is its value where the data leave it out.
    unknown: the message for a value of no section; `%s` stands for the known values.
    others: sections that are not registered, by their value of the field.
    """

    kind: str
    key: str
    default: Callable[[Any], str]
    unknown: str
    others: Mapping[str, type[Section]] = field(default_factory=dict)

    def told(self, data: Any) -> str:
        """Return the value of `key` of a section, or of data that will be one."""
        get = data.get if isinstance(data, dict) else partial(getattr, data)
        return str(get(self.key, self.default(data)))

    def sections(self) -> dict[str, type[Section]]:
        """Return the sections by their value of `key`."""
        return {**self.others, **registry_of(self.kind)}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        known = ", ".join(registry_of(self.kind))
        return core_schema.tagged_union_schema(
            {name: handler.generate_schema(each) for name, each in self.sections().items()},
            discriminator=self.told,
            custom_error_type=self.key,
            custom_error_message=f"{self.unknown % known}; those of another package are found by"
            " its entry points of the group `raybias`",
        )


def plain_types(annotation: Any) -> list[Any]:
    """List the types that an annotation allows: unions and `Annotated` taken apart."""
    origin = get_origin(annotation)
    if origin is Annotated:
        plain, *notes = get_args(annotation)
        choices = [[*note.sections().values()] for note in notes if isinstance(note, Choices)]
        return choices[0] if choices else plain_types(plain)
    if origin in (Union, UnionType):
        return [each for part in get_args(annotation) for each in plain_types(part)]
    return [annotation]


def listed(annotation: Any, value: Any) -> Any:
    """Make a single value a list of one, where the annotation takes any number of them."""
    kinds = plain_types(annotation)
    if isinstance(value, dict):
        held = next((get_args(kind)[1] for kind in kinds if get_origin(kind) is dict), None)
        return value if held is None else {key: listed(held, each) for key, each in value.items()}
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return value
    if any(get_origin(kind) is Literal and value in get_args(kind) for kind in kinds):
        return value
    many = any(get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis for kind in kinds)
    return [value] if many else value


def _parts(annotation: Any, place: str) -> Iterator[tuple[type[Section], str]]:
    """Yield the sections of a key, each with its path; a list's is its first."""
    for kind in plain_types(annotation):
        if get_origin(kind) is tuple:
            yield from _parts(get_args(kind)[0], f"{place}.0")
        elif isclass(kind) and issubclass(kind, Section):
            yield kind, place
