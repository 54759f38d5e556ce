"""The text of a spec made from an sbatch script, with notes on the script's lines."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final

from .launch_line import LaunchLine
from .sbatch_options import Draft
from .texts import secret_in

_STEPS: Final = re.compile(r"(?<= )--?(?:(?:max|num|train|total)[_-]?)*(?:steps|iters|iterations)[= ](\d+)(?= |$)")
_SEED: Final = re.compile(r"(?i)(?:^|[\s_.-])seed[= ]\{(\w+)\}")
_PLAIN: Final = re.compile(
    r"(?!.*:(?: |$))(?!(?:true|false|yes|no|on|off|null|~|[-+.\d]\S*)$)[\w./$~][\w./:@%+=$*~-]*(?: [\w./:@%+=$*~-]+)*"
)
_NUMERAL: Final = re.compile(r"0|[1-9]\d*|true|\d+(?::\d\d)+|\d+-\d\d?(?::\d\d)*")


def yaml_of(draft: Draft, source: str) -> str:
    """Return the text of the spec."""
    seed = _seed_of(draft)
    seeds, columns = _repeats(draft.columns, seed) if seed else ([], draft.columns)
    text = "\n".join(_lines(draft, columns, seeds, has_seeds=seed in columns))
    text = text.replace(f"{{{seed}}}", "{seed}") if seeds else text
    return "\n".join([*_notes(draft, source), text]) + "\n"


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


def _lines(draft: Draft, columns: Mapping[str, list[str]], seeds: Sequence[int], *, has_seeds: bool) -> Iterator[str]:
    yield f"name: {_scalar(draft.name)}"
    yield from (f"{name}: {_scalar(value)}" for name, value in draft.fields.items())
    slurm = {name: value if _NUMERAL.fullmatch(value) else _scalar(value) for name, value in draft.slurm.items()}
    if draft.in_turn > 1 and "time" in slurm:
        slurm["time"] += f"  # was for all {draft.in_turn} runs, one after another; now for each"
    yield from _section("slurm", slurm)
    if draft.setup:
        yield from ("  setup:", *(f"    - {_scalar(line)}" for line in draft.setup))
    yield from _section("container", {name: _scalar(value) for name, value in draft.container.items()})
    if draft.mounts:
        yield f"  mounts: [{', '.join(map(_scalar, draft.mounts))}]"
    yield from _section("env", {name: _scalar(value) for name, value in draft.env.items()})
    if draft.line:
        yield from _command(draft, draft.line, seeds[0] if seeds else None)
    if columns:
        yield from _matrix(columns, has_seeds=has_seeds)
    if seeds:
        yield f"repeats: {len(seeds)}"


def _seed_of(draft: Draft) -> str:
    """Return the placeholder of the seeds that the runs of a sweep have; "" for none."""
    words = (*draft.line.script, *(f"{name}={value}" for name, value in draft.env.items())) if draft.line else ()
    if any("$" in word for word in words):
        return ""  # which may follow from the seed
    named = [*_SEED.findall(" ".join(words)), "seed"]
    return next((name for name in named if len(set(draft.columns.get(name, ()))) > 1), "")


def _repeats(columns: dict[str, list[str]], seed: str) -> tuple[list[int], dict[str, list[str]]]:
    """Return consecutive seeds that each point of the other columns has, and those columns; else all columns."""
    others = {name: values for name, values in columns.items() if name != seed}
    if "seed" in others or not all(value.isdecimal() for value in columns[seed]):
        return [], columns
    seeds = sorted(set(map(int, columns[seed])))
    rows = set(zip(*others.values(), strict=True)) if others else {()}
    whole = len(set(zip(*columns.values(), strict=True))) == len(seeds) * len(rows)
    return (seeds, others) if whole and seeds[-1] - seeds[0] + 1 == len(seeds) else ([], columns)


def _section(name: str, fields: Mapping[str, str]) -> list[str]:
    return [f"{name}:", *(f"  {key}: {value}" for key, value in fields.items())] if fields else []


def _command(draft: Draft, line: LaunchLine, seed: int | None) -> Iterator[str]:
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
    fields = {"steps": steps[1]} if steps else {}
    yield from _section("train", {**fields, "seed": str(seed)} if seed is not None else fields)
    yield f"command: {json.dumps(text, ensure_ascii=False)}" if "\n" in text else f"command: >-\n  {text}"


def _joined(words: tuple[str, ...]) -> str:
    return " ".join(word if re.fullmatch(r"[\w@%+=:,./{}-]+", word) else shlex.quote(word) for word in words)


def _matrix(columns: Mapping[str, list[str]], *, has_seeds: bool) -> Iterator[str]:
    """Yield an axis for each placeholder, or the points themselves if they are not all combinations."""
    yield "matrix:"
    if has_seeds:
        yield "  # each seed is compared as a condition of its own; `repeats` gives each point consecutive seeds"
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
