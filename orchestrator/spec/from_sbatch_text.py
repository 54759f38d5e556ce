"""The text of a spec made from an sbatch script, with notes on the script's lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from math import prod
from typing import Any, Final

from .command_line import LaunchLine
from .load import secret_in
from .sbatch_options import Draft
from .yaml_source import parse_value, written

_STEPS: Final = re.compile(r"(?<= )--?(?:(?:max|num|train|total)[_-]?)*(?:steps|iters|iterations)[= ](\d+)(?= |$)")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?|true")


def yaml_of(draft: Draft, source: str) -> str:
    """Return the text of the spec."""
    lines = [f"# Made from {source} by `campaign init --from-sbatch`; next: `campaign validate`, `campaign plan`."]
    lines += [f"# Taken over: lines {_spans(draft.taken)}."]
    for head, notes in (("No longer needed", draft.needless), ("NOT UNDERSTOOD, please check", draft.unclear)):
        lines += [f"# {head}:"] * bool(notes) + [f"#   {place}: {_shown(text)}" for place, text in notes]
    return "\n".join([*lines, written(_document(draft))])


def _shown(text: str) -> str:
    return text.split(maxsplit=1)[0] + " … (a line with a secret)" if secret_in(text) else " ".join(text.split())


def _spans(places: list[str]) -> str:
    """Return `2-4, 7` for the lines 2, 3, 4 and 7."""
    ends = [place.partition("-")[::2] for place in places]
    lines = {line for first, last in ends for line in range(int(first), int(last or first) + 1)}
    begins = sorted(line for line in lines if line - 1 not in lines)
    lasts = sorted(line for line in lines if line + 1 not in lines)
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(begins, lasts, strict=True))


def _document(draft: Draft) -> dict[str, Any]:
    slurm = {name: _value(value) for name, value in draft.slurm.items()}
    document: dict[str, Any] = {
        "name": draft.name,
        **draft.fields,
        "slurm": slurm | ({"setup": draft.setup} if draft.setup else {}),
        "container": draft.container | ({"mounts": draft.mounts} if draft.mounts else {}),
        "env": draft.env,
        **(_command(draft, draft.line) if draft.line else {}),
        "matrix": _matrix(draft.columns) if draft.columns else {},
    }
    return {name: value for name, value in document.items() if value}


def _command(draft: Draft, line: LaunchLine) -> dict[str, Any]:
    world = line.sizes.get("world", 0) // int(draft.sizes["nodes"])
    ranks = line.sizes.get("ranks") or world or (int(draft.sizes["ranks"]) if line.launcher == "srun" else 0)
    plain = re.compile(r"[\w@%+=:,./{}-]+").fullmatch
    text = " ".join(word if plain(word) else shlex.quote(word) for word in line.script)
    train: dict[str, int] = {}
    if steps := _STEPS.search(text):
        train["steps"] = int(steps[1])
        text = f"{text[: steps.start(1)]}{{steps}}{text[steps.end(1) :]}"
    return {
        "launcher": line.launcher,
        "launcher_options": list(line.options),
        "python": line.python,
        "ranks_per_node": 0 if ranks == int(draft.sizes["gpus"]) else ranks,
        "train": train,
        "command": text,
    }


def _matrix(columns: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return an axis for each placeholder, or the points themselves if they are not all combinations."""
    rows = list(dict.fromkeys(zip(*columns.values(), strict=True)))
    axes = {name: [_value(text) for text in dict.fromkeys(values)] for name, values in columns.items()}
    if prod(map(len, axes.values())) == len(rows):
        return axes
    return {"array": [dict(zip(columns, map(_value, row), strict=True)) for row in rows]}


def _value(text: str) -> Any:
    return parse_value(text, "value") if _NUMBER.fullmatch(text) else text
