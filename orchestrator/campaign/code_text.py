"""Describes the code of runs, and finds runs with other code than the rest. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from dscampaign.orchestrator.formatting import count, some

if TYPE_CHECKING:
    from .code_copies import Code

_PATHS: Final = 5
_RUNS: Final = 3


def codes_text(codes: Iterable[str | None]) -> str:
    """Return the codes of a run's attempts, oldest first, each once as long as it stays: `3f2a… → 9c1d…`."""
    known = [code for code in codes if code]
    return " → ".join(code for before, code in zip(["", *known], known, strict=False) if code != before)


def mixed_code(runs: Iterable[tuple[str, str]]) -> str:
    """Return a sentence about runs, by name and code, that ran different code; "" if all known codes are the same."""
    names: dict[str, list[str]] = {}
    for name, code in runs:
        if code:
            names.setdefault(code, []).append(name)
    shown = "; ".join(f"{code} ({some(by, _RUNS)})" for code, by in names.items())
    return f"Not all runs ran the same code: {shown}." if len(names) > 1 else ""


def describe(codes: Iterable[Code]) -> list[str]:
    """Return one line for each code: its files, those that are left out, or why it is used in place."""
    lines = []
    for code in codes:
        if code.why:
            lines.append(f"code: used in place, not copied: {code.why}")
        elif code.tree:
            kept = f"code: copy of {code.tree.root}, {count(len(code.tree.files), 'file')}, hash {code.hash}"
            left = f"; left out: {shown(code.tree.left_out)}" if code.tree.left_out else ""
            around = code.tree.narrowed_from
            rest = f"; the rest of {around} is used in place, it is too much to copy" if around else ""
            lines.append(kept + left + rest)
    return list(dict.fromkeys(lines))  # scripts in several folders of a work tree share its copy


def shown(paths: Sequence[str]) -> str:
    """Return a few paths as text, in any encoding."""
    return some([os.fsencode(path).decode(errors="replace") for path in paths], _PATHS)
