"""The `metrics:` section: patterns for the metrics in a script's output."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

from .field_types import Hint

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,99}")
_EXAMPLE: Final = "write {step: 'step (\\d+)', loss: 'loss[=:] *([\\d.eE+-]+)'}"


def _pattern(value: Any) -> Any:
    if not isinstance(value, str):
        raise Hint("expected a regular expression in quotes", _EXAMPLE)
    try:
        groups = re.compile(value).groups
    except (re.error, OverflowError, RecursionError) as error:
        hint = "write \\( for a parenthesis, \\. for a dot, and single quotes around it all"
        raise Hint(f"is not a regular expression: {error}", hint) from error
    if groups != 1:
        hint = "put parentheses around the number alone, (?:...) around anything else"
        raise Hint(f"has {groups} groups, expected 1: the number", hint)
    return value


def _names(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not _NAME.fullmatch(name) or name in ("ts", "event"):
            raise Hint(f"{name!r} cannot be the name of a metric", "use letters, digits and _ (eval_loss)")
    if value and "step" not in value:
        raise Hint("lacks step, the pattern of the optimizer step", _EXAMPLE)
    if len(value) == 1:
        raise Hint("names no metric beside step", _EXAMPLE)
    return value


Metrics = Annotated[dict[str, Annotated[str, BeforeValidator(_pattern)]], AfterValidator(_names)]
"""Regular expressions by metric, and for the step."""
