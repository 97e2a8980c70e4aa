"""A function of a user's own that labels texts: any classifier that Python can call."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import ValidationInfo, field_validator, model_validator

from raybias.config import Backbone
from raybias.config.parts import Ability
from raybias.config.section import name_of, path_from_folder
from raybias.engine.encoder import RoughEncoder, TextEncoder
from raybias.errors import ConfigError, said_by
from raybias.providers.base import provider

#: A function that takes a list of texts; `methods.predicted.PredictReader` reads what it returns.
PredictTexts = Callable[[list[str]], Any]
#: Functions of this process that no module holds, such as those of a notebook, by their name.
_OF_PROCESS: Final[dict[str, PredictTexts]] = {}
#: Before the names of these.
_LIVE: Final = "process:"


@provider
class Predict(Backbone):
    """A classifier that is a function of Python, such as a pipeline of scikit-learn or a lexicon.

    Nothing else than the named module is imported.
    """

    api: Literal["predict"] = "predict"
    """Names the kind of backbone."""
    predict: str
    """The function: `package.module:function`, or `file.py:function`, a path that starts from the
    study's folder. It takes a list of texts and returns a label or probabilities for each: words,
    numbers of labels in the study's order, rows of probabilities of all labels, a mapping from
    classes to probabilities, or a number that `thresholds` of the method classify part."""
    id: str = ""
    """The same."""
    revision: None = None
    """There is none."""
    dtype: Literal["own"] = "own"  # type: ignore[assignment]
    """Its own."""
    bos: Literal["own"] = "own"
    """Its own."""
    source: str = ""
    """The sha256 of the function's source file; the one that is installed by default, and then that
    with which OUT began."""

    is_checkpoint: ClassVar[bool] = False
    can_shard: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _named_after_its_function(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("predict"), str):
            return data
        module, _, function = data["predict"].removeprefix(_LIVE).rpartition(":")
        short = Path(module).stem if module.endswith(".py") else module.rpartition(".")[2]
        data = {**data, "id": data["predict"]}
        return data if data.get("name") else {**data, "name": name_of(f"{short}-{function}")}

    @field_validator("predict")
    @classmethod
    def _is_a_place(cls, text: str, info: ValidationInfo) -> str:
        module, colon, function = text.removeprefix(_LIVE).rpartition(":")
        if not colon or not module or not function.replace(".", "_").isidentifier():
            raise ValueError(
                f"{text!r} names no function; write package.module:function or file.py:function"
            )
        if not module.endswith(".py"):
            return text
        return f"{path_from_folder(module, info)}:{function}"

    @property
    def abilities(self) -> frozenset[Ability]:
        return frozenset(("predict",))

    def as_installed(self) -> Self:
        """Return it with the hash of its source; ConfigError: not there, or changed since."""
        found = _source_hash(self.function())
        if self.source not in ("", found):
            raise ConfigError(
                f"the source of {self.predict} has changed ({self.source[:12]}.., now"
                f" {found[:12]}..)",
                where=self.name,
                cure="give another --out, or the file as it was",
            )
        return self.model_copy(update={"source": found})

    def text_encoder(self) -> TextEncoder:
        """Return what counts tokens roughly; the function sees texts."""
        return RoughEncoder(self, None, context=None)

    def function(self) -> PredictTexts:
        """Import the function; ConfigError: no such module or function, or it cannot be called."""
        if self.predict.startswith(_LIVE):
            try:
                return _OF_PROCESS[self.predict]
            except KeyError:
                raise ConfigError(
                    f"the function {self.predict.removeprefix(_LIVE)} is of another process",
                    where=self.name,
                    cure="write it into a file, and name it file.py:function",
                ) from None
        module_name, _, function_name = self.predict.rpartition(":")
        value: Any = _imported(module_name, where=self.name)
        for part in function_name.split("."):
            value = getattr(value, part, None)
        if not callable(value):
            what = "cannot be called" if value is not None else "is not there"
            raise ConfigError(
                f"{function_name} {what} in {module_name}",
                where=self.name,
                cure="name a function that takes a list of texts",
            )
        found: PredictTexts = value
        return found


def predict_section(function: PredictTexts) -> Mapping[str, str]:
    """Return the section of a study for a function: by its module, or else of this process alone.

    Raises ConfigError: it cannot be called.
    """
    if not callable(function):
        raise ConfigError(
            f"{type(function).__name__} is neither a model's id nor a function",
            cure="give a hub id, a folder, or a function that takes a list of texts",
        )
    module_name = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    held: Any = sys.modules.get(module_name)
    for part in name.split("."):
        held = getattr(held, part, None)
    if held is function and module_name != "__main__":
        return {"api": "predict", "predict": f"{module_name}:{name}"}
    plain = "".join(letter if letter.isalnum() else "_" for letter in name)
    place = f"{_LIVE}{module_name}:{plain}"
    _OF_PROCESS[place] = function
    return {"api": "predict", "predict": place}


def is_function_place(text: str) -> bool:
    """Return whether a text is the place of a function, and no folder or model's id."""
    module, colon, function = text.rpartition(":")
    is_name = module.endswith(".py") or all(part.isidentifier() for part in module.split("."))
    return bool(colon) and is_name and function.replace(".", "_").isidentifier()


def of_process(spec: Backbone) -> bool:
    """Return whether a backbone is a function of this process, which Ray's workers lack."""
    return isinstance(spec, Predict) and spec.predict.startswith(_LIVE)


def _imported(name: str, *, where: str) -> ModuleType:
    """Import a module by its name or file."""
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        path = Path(name).resolve()
        key = f"raybias_predict_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
        if key in sys.modules:
            return sys.modules[key]
        spec = importlib.util.spec_from_file_location(key, path)
        if spec is None or spec.loader is None:
            raise ImportError("it is no file of Python")
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[key]
            raise
        return module
    # Whatever the module raises where it is imported.
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be imported ({said_by(error)})",
            where=where,
            cure="check its name, and that its packages are installed on every machine",
        ) from error


def _source_hash(function: PredictTexts) -> str:
    """Compute the sha256 of the file that a function is written in, or of what is known of it."""
    plain = inspect.unwrap(function)
    if not (inspect.isroutine(plain) or inspect.isclass(plain)):
        plain = type(plain)
    try:
        path = inspect.getsourcefile(plain)
        content = Path(path).read_bytes() if path is not None and Path(path).is_file() else None
        if content is None:
            content = inspect.getsource(plain).encode()
    # A function of a compiled module, or one that was typed in.
    except (TypeError, OSError):
        content = f"{plain.__module__}.{plain.__qualname__}".encode()
    return hashlib.sha256(content).hexdigest()
