"""Names of runs: short, readable, safe as a folder's name, and the same when the matrix grows."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from hashlib import sha256
from typing import Final

from dscampaign.orchestrator.formatting import last_part

from .field_types import Scalar

_MAX_NAME: Final = 100
_MAX_VALUE: Final = 40

SCREENS: Final = "-screen"
"""Suffix of the name of a run that screens its point."""


def run_name(
    labels: Sequence[tuple[str, Scalar | None]], suffix: str, config_hash: str, taken: Container[str] = frozenset()
) -> str:
    """The name of a run, such as `zero_stage-2_precision-bf16` and `...-r1` for its first further repeat.

    Args:
        labels: Names and values that separate its point from others; an empty name stands for a value alone.
        suffix: Text that separates it from other runs of the point, such as `-r1`.
        config_hash: Digest of its experiment, which settles a clash.
        taken: Names of other runs.
    """
    words = [f"{_safe(key)}-{value_slug(value)}" if key else value_slug(value) for key, value in labels]
    name = _fit("_".join(words) or "run", _MAX_NAME - len(suffix)) + suffix
    return name if name not in taken else f"{name[: _MAX_NAME - 9]}-{config_hash[:8]}"


def value_slug(value: Scalar | None) -> str:
    """Return a value for a name; if it is long or has other characters, it ends in a digest of itself."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    text = last_part(value) if isinstance(value, str) and value.startswith("/") else str(value)
    safe = _safe(text.replace("/", "-"))
    return _fit(safe if safe == text.replace("/", "-") else f"{safe}-{_digest(text)}", _MAX_VALUE)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip("-.") or "x"


def _fit(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 9]}-{_digest(text)}"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]
