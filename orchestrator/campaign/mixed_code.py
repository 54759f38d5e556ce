"""Says which runs ran other code than the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ..formatting import some

_NAMED = 3


def codes_text(codes: Iterable[str | None]) -> str:
    """The codes of one run's attempts, oldest first, each once as long as it stays: `3f2a… → 9c1d…`."""
    known = [code for code in codes if code]
    return " → ".join(code for before, code in zip(["", *known], known, strict=False) if code != before)


def mixed_code(runs: Iterable[tuple[str, str]]) -> str:
    """A sentence about runs, by name and code, that did not all run the same; "" where they did, as far as is known."""
    names: dict[str, list[str]] = {}
    for name, code in runs:
        if code:
            names.setdefault(code, []).append(name)
    shown = "; ".join(f"{code} ({some(by, _NAMED)})" for code, by in names.items())
    return f"Not all runs ran the same code: {shown}." if len(names) > 1 else ""
