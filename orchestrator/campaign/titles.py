"""Names of conditions for people: `ZeRO 0 · fp16`, `lr 3e-4 · 12 layers`; and runs by any of their names. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import count, last_part, shorten_middle, some

LABELS: Final = ("label", "strategy")
"""Axes that name a point, and so the other settings of that point."""

_BY_THEMSELVES: Final = (*LABELS, "precision", "dtype", "model", "dataset")
"""Axes whose values need no name beside them."""

_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("zero_stage", "zero"), "ZeRO"),
    **dict.fromkeys(("width", "n_embd", "d_model", "hidden_size"), "width"),
    "micro_batch": "micro-batch",
    "global_batch": "batch",
    "seq_len": "length",
}
_COUNTED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("layers", "n_layer", "n_layers", "num_layers", "num_hidden_layers", "depth"), "layer"),
    **dict.fromkeys(("heads", "n_head", "n_heads", "num_heads", "num_attention_heads"), "head"),
    "nodes": "node",
    **dict.fromkeys(("gpus_per_node", "gpus_per_run"), "GPU"),
    "ranks_per_node": "rank",
}
_VALUES: Final[Mapping[tuple[str, str], str]] = {
    ("engine", "ddp"): "DDP",
    ("engine", "deepspeed"): "DeepSpeed",
    ("engine", "fsdp2"): "FSDP2",
    ("offload", "none"): "no offload",
}
_LONGEST: Final = 24
SEPARATOR: Final = " · "
"""Between the parts of a title."""
_REPEAT: Final = re.compile(r"-r\d+\Z")
_NUMBER: Final = re.compile(r"(?<![a-z0-9.])\d+(?:\.\d*)?(?:e[-+]?\d+)?(?![a-z0-9.])", re.IGNORECASE)


def titles_of(params: Mapping[str, Mapping[str, Any]], *, whole: bool = False) -> dict[str, str]:
    """Return the title of each condition by its name, made of the axes that differ, or of all: `whole`, or none does.

    Each is unique: equal titles end in the names, and a condition without axes has its name.

    Args:
        params: of each condition of a campaign, by its name.
    """
    axes = (not whole and _axes(params)) or list(dict.fromkeys(axis for own in params.values() for axis in own))
    titles = {
        name: SEPARATOR.join(_part(axis, own[axis]) for axis in axes if axis in own) or name
        for name, own in params.items()
    }
    used = Counter([*titles.values(), *(name for name, title in titles.items() if title != name)])
    return {name: title if used[title] == 1 else f"{title}{SEPARATOR}{name}" for name, title in titles.items()}


def numbered(name: str, title: str) -> str:
    """Return the name of a run of a search, which only numbers it, with its title."""
    return f"{name}  {title.removesuffix(_REPEAT.sub('', name)).removesuffix(SEPARATOR)}".rstrip()


class Candidate(NamedTuple):
    """A run to find: its name, the title of its condition, and its campaign, if there are several."""

    name: str
    title: str
    campaign: str = ""


def candidates(names: Iterable[str], params: Mapping[str, Mapping[str, Any]], campaign: str = "") -> list[Candidate]:
    """Return these runs with titles made of the parameters of each condition, by its name."""
    titles = titles_of(params)
    return [Candidate(name, titles.get(name) or titles.get(_REPEAT.sub("", name), name), campaign) for name in names]


def matching(word: str, runs: Sequence[Candidate]) -> list[Candidate]:
    """Return the runs of this name, title or pattern, else the runs whose name or title begins with it.

    Numbers may be written differently, as in `lr-0.0001` for `lr-1e-4`, and titles in lower case without dots.
    Raises UserError if runs of several campaigns match, or runs of several conditions without a pattern.
    """
    plain = _plain(word)

    def by_pattern(run: Candidate) -> bool:
        return fnmatchcase(run.name, word)

    tests: tuple[Callable[[Candidate], bool], ...] = (
        lambda run: run.name == word,
        lambda run: plain in (_plain(run.name), _plain(f"{run.name}-r0")),
        lambda run: plain == _plain(run.title),
        by_pattern,
        lambda run: _begins(run.name, word) or _begins(_plain(run.title), plain),
    )
    for test in tests:
        if found := [run for run in runs if test(run)]:
            return unambiguous(word, found, several=test is by_pattern)
    return []


def unambiguous(word: str, found: list[Candidate], *, several: bool) -> list[Candidate]:
    """Return these matches; raise UserError if they are of several campaigns or, unless `several`, conditions."""
    campaigns, conditions = {run.campaign for run in found}, {run.title for run in found}
    if len(campaigns) > 1 or (len(conditions) > 1 and not several):
        names = [f"{run.campaign} {run.name}" if len(campaigns) > 1 else run.name for run in found]
        raise UserError(f"{word} may mean {count(len(found), 'run')}", f"one of: {some(names, 8)}")
    return found


def _begins(name: str, word: str) -> bool:
    """Return whether a name begins so: not in the middle of a number, since `layers-1` is not `layers-12`."""
    return bool(word) and name.startswith(word) and not (word[-1:].isdigit() and name[len(word) :][:1].isdigit())


def _plain(text: str) -> str:
    text = _NUMBER.sub(lambda number: repr(float(number[0])), text.lower())
    return " ".join(text.replace(SEPARATOR, " ").split())


def _axes(params: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the axes that differ, in the order of the matrix; labels first, without the settings that they name."""
    names = dict.fromkeys(name for own in params.values() for name in own)
    values = {name: [json.dumps(own.get(name), default=str) for own in params.values()] for name in names}

    def points(*axes: str) -> int:
        return len(set(zip(*(values[axis] for axis in axes), strict=True))) or 1

    varying = [name for name in names if points(name) > 1]
    # an axis of labels follows the fields that it sets, and stands for them in the names of runs
    named = [name for name in varying if name in LABELS or any(f"_{name}-" in f"_{run}" for run in params)]
    end = varying.index(named[-1]) if named else 0
    shorter = [name for name in varying[:end] if name in named] + varying[end:]
    varying = shorter if points(*shorter) == points(*varying) else varying
    labels = [name for name in LABELS if name in varying]
    labels = labels if points(*labels) > points(*labels[:1]) else labels[:1]
    return labels + [name for name in varying if name not in LABELS and points(*labels, name) > points(*labels)]


def _part(axis: str, value: Any) -> str:
    plain = axis.replace("-", "_").lower()
    words = axis if axis.isupper() else _WORDS.get(plain, axis.replace("_", " "))
    if isinstance(value, bool):
        return words if value else f"no {words}"
    if value is None:
        return f"{words} unset"
    if isinstance(value, int) and plain in _COUNTED:
        return count(value, _COUNTED[plain])
    if plain in LABELS and isinstance(value, str):  # no path
        return shorten_middle(str(value), _LONGEST)
    text = _VALUES.get((plain, str(value))) or (value_text(value) if plain in _BY_THEMSELVES else None)
    return text or f"{words} {value_text(value)}"


def value_text(value: Any) -> str:
    """Return a value in short: small numbers as `3e-4`, of a path its last part."""
    if isinstance(value, float) and 0 < abs(value) < 0.01:
        digits, _, exponent = f"{value:.3e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return shorten_middle(last_part(text) or text, _LONGEST)


def codes_text(codes: Iterable[str | None]) -> str:
    """Return the codes of a run's attempts, oldest first, each once as long as it stays: `3f2a… → 9c1d…`."""
    shown = [code for code in codes if code]
    return " → ".join(code for before, code in zip(["", *shown], shown, strict=False) if code != before)


def mixed_code(runs: Iterable[tuple[str, str]]) -> str:
    """Return a sentence about runs, by name and code, that ran different code; "" if all known codes are the same."""
    names: dict[str, list[str]] = {}
    for name, code in runs:
        if code:
            names.setdefault(code, []).append(name)
    shown = "; ".join(f"{code} ({some(by, 3)})" for code, by in names.items())
    return f"Not all runs ran the same code: {shown}." if len(names) > 1 else ""
