"""Types of the fields of a spec: strict numbers, lines of text, sections, and errors with a hint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from dscampaign.jobs.shared.placeholders import text_of
from dscampaign.orchestrator.errors import InvalidSpec


class Hint(ValueError):
    """A wrong value, with a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


Whole = Annotated[int, Strict(), BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)]
"""A whole number, however it is written (`1e3`): neither text nor true/false, which pydantic would convert."""

MAX_WHOLE: Final = 2**31 - 1
"""The store keeps sizes in four bytes, and the divisors of a larger batch take seconds to find."""

Positive = Annotated[Whole, Field(ge=1, le=MAX_WHOLE)]
"""A whole number from 1."""

Count = Annotated[Whole, Field(ge=0, le=MAX_WHOLE)]
"""A whole number from 0."""

Real = Annotated[float, Strict(), Field(allow_inf_nan=False)]
"""A finite number, never text."""

Scalar = str | int | float | bool
"""A YAML value without structure."""

ONE_LINE: Final = r"^[^\x00-\x1f\x7f]*$"
NOT_EMPTY: Final = r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f][^\x00-\x1f\x7f]*$"

Line = Annotated[str, Field(pattern=ONE_LINE)]
"""A line of text that is never a number, for example a path."""

Name = Annotated[str, Field(pattern=NOT_EMPTY)]
"""The name of an input: a file, a folder, or something on the hub."""

Text = Annotated[
    str,
    Field(pattern=ONE_LINE),
    BeforeValidator(lambda value: str(value) if type(value) is int else value, json_schema_input_type=str | int),
]
"""A line of text; a bare number counts as text."""

Word = Annotated[
    str,
    BeforeValidator(
        lambda value: str(value) if isinstance(value, int | float) else value, json_schema_input_type=str | float | bool
    ),
]
"""An argument of a command; a bare number or truth value counts as text."""


def _as_lines(value: Any) -> Any:
    return [line for line in value.splitlines() if line.strip()] if isinstance(value, str) else value


Lines = Annotated[tuple[Text, ...], BeforeValidator(_as_lines, json_schema_input_type=str | tuple[Text, ...])]
"""Lines of a shell: a list, or a block of text."""


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise Hint(f"{name!r} is not a valid variable name", "use letters, digits and underscores")
    if name.startswith("CAMPAIGN_"):
        raise Hint(f"{name} is set by this program", "choose a name that does not start with CAMPAIGN_")
    return name


Variable = Annotated[str, AfterValidator(_variable)]
"""The name of an environment variable."""

EnvText = Annotated[
    str,
    Field(pattern=ONE_LINE),
    BeforeValidator(
        lambda value: text_of(value) if isinstance(value, int | float) else value,
        json_schema_input_type=str | float | bool,
    ),
]
"""The value of an environment variable; numbers and true/false need no quotes."""


class SpecSection(BaseModel):
    """A part of a spec whose fields are documented by their docstrings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Return the section with these values; raise InvalidSpec with all that are wrong."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            from .wrong_values import findings_of  # it knows all sections

            raise InvalidSpec(findings_of(error, data)) from error

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any) -> Any:
        """Let a field whose content is commented out have its default."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None or name not in cls.model_fields}
