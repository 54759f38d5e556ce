"""The text of a spec made from an sbatch script, with notes on the script's lines."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from math import prod
from typing import Final

from .launch_line import LaunchLine
from .sbatch_options import Draft
from .texts import secret_in

_STEPS: Final = re.compile(r"(?<= )--?(?:(?:max|num|train|total)[_-]?)*(?:steps|iters|iterations)[= ](\d+)(?= |$)")
_PLAIN: Final = re.compile(
    r"(?!.*:(?: |$))(?!(?:true|false|yes|no|on|off|null|~|[-+.\d]\S*)$)[\w./$~][\w./:@%+=$*~-]*(?: [\w./:@%+=$*~-]+)*"
)
_NUMERAL: Final = re.compile(r"0|[1-9]\d*|true|\d+(?::\d\d)+|\d+-\d\d?(?::\d\d)*")


def yaml_of(draft: Draft, source: str) -> str:
    """Return the text of the spec."""
    return "\n".join([*_notes(draft, source), *_lines(draft)]) + "\n"


def _notes(draft: Draft, source: str) -> Iterator[str]:
    yield f"# Made from {source} by `campaign init --from-sbatch`; next: `campaign validate`, `campaign plan`."
    yield f"# Taken over: lines {_spans(draft.taken)}."
    for head, notes in (("No longer needed", draft.needless), ("NOT UNDERSTOOD, please check", draft.unclear)):
        if notes:
            yield f"# {head}:"
            yield from (f"#   {place}: {_shown(text)}" for place, text in notes)


def _shown(text: str) -> str:
    return text.split(maxsplit=1)[0] + " … (a line with a secret)" if secret_in(text) else " ".join(text.split())


def _spans(places: list[str]) -> str:
    """Return `2-4, 7` for the lines 2, 3, 4 and 7."""
    ends = [place.partition("-")[::2] for place in places]
    lines = {line for first, last in ends for line in range(int(first), int(last or first) + 1)}
    begins = sorted(line for line in lines if line - 1 not in lines)
    lasts = sorted(line for line in lines if line + 1 not in lines)
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(begins, lasts, strict=True))


def _lines(draft: Draft) -> Iterator[str]:
    yield f"name: {_scalar(draft.name)}"
    yield from (f"{name}: {_scalar(value)}" for name, value in draft.fields.items())
    slurm = {name: value if _NUMERAL.fullmatch(value) else _scalar(value) for name, value in draft.slurm.items()}
    yield from _section("slurm", slurm)
    if draft.setup:
        yield from ("  setup:", *(f"    - {_scalar(line)}" for line in draft.setup))
    yield from _section("container", {name: _scalar(value) for name, value in draft.container.items()})
    if draft.mounts:
        yield f"  mounts: [{', '.join(map(_scalar, draft.mounts))}]"
    yield from _section("env", {name: _scalar(value) for name, value in draft.env.items()})
    if draft.line:
        yield from _command(draft, draft.line)
    if draft.columns:
        yield from _matrix(draft.columns)


def _section(name: str, fields: Mapping[str, str]) -> list[str]:
    return [f"{name}:", *(f"  {key}: {value}" for key, value in fields.items())] if fields else []


def _command(draft: Draft, line: LaunchLine) -> Iterator[str]:
    yield f"launcher: {line.launcher}"
    if line.options:
        yield f"launcher_options: [{', '.join(map(_scalar, line.options))}]"
    if line.python:
        yield f"python: {_scalar(line.python)}"
    world = line.sizes.get("world", 0) // int(draft.sizes["nodes"])
    ranks = line.sizes.get("ranks") or world or (int(draft.sizes["ranks"]) if line.launcher == "srun" else 0)
    if ranks and ranks != int(draft.sizes["gpus"]):
        yield f"ranks_per_node: {ranks}"
    text = _joined(line.script)
    if steps := _STEPS.search(text):
        text = f"{text[: steps.start(1)]}{{steps}}{text[steps.end(1) :]}"
        yield from ("train:", f"  steps: {steps[1]}")
    yield f"command: {json.dumps(text, ensure_ascii=False)}" if "\n" in text else f"command: >-\n  {text}"


def _joined(words: tuple[str, ...]) -> str:
    return " ".join(word if re.fullmatch(r"[\w@%+=:,./{}-]+", word) else shlex.quote(word) for word in words)


def _matrix(columns: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield an axis for each placeholder, or the points themselves if they are not all combinations."""
    yield "matrix:"
    rows = list(dict.fromkeys(zip(*columns.values(), strict=True)))
    axes = {name: list(dict.fromkeys(values)) for name, values in columns.items()}
    if prod(map(len, axes.values())) == len(rows):
        yield from (f"  {name}: [{', '.join(map(_value, values))}]" for name, values in axes.items())
        return
    yield "  array:"
    for row in rows:
        pairs = (f"{name}: {_value(value)}" for name, value in zip(columns, row, strict=True))
        yield f"    - {{{', '.join(pairs)}}}"


def _value(text: str) -> str:
    return text if re.fullmatch(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text) else _scalar(text)


def _scalar(text: str) -> str:
    """Return a YAML scalar that is certainly this text."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
