"""What every section of a study file has in common."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Profile = Literal["paper", "strict"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_+-]*(\.[A-Za-z0-9_+-]+)*$")]


class Section(BaseModel):
    """Base of all study sections: frozen, and strict about names."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _known_names(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name in data:
                if name not in cls.model_fields:
                    near = difflib.get_close_matches(str(name), cls.model_fields, n=1, cutoff=0.5)
                    hint = (
                        f"did you mean {near[0]!r}?"
                        if near
                        else (f"known keys: {', '.join(cls.model_fields)}")
                    )
                    raise ValueError(f"unknown key {name!r}; {hint}")
        return data


class Named(Section):
    """A method, which is named after its kind unless the study says otherwise."""

    name: Name = ""
    """Names the method in tables and run ids; its kind by default."""
    backbones: tuple[str, ...] = ()
    """Names of the backbones it is used on; all by default."""

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("name"):
            data = {**data, "name": cls.model_fields["kind"].default}
        return data
