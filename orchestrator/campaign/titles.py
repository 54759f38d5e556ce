"""Names of conditions for people: `ZeRO 0 · fp16`, `lr 3e-4 · 12 layers`. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

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
    "gpus_per_node": "GPU",
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
_NUMBER: Final = re.compile(r"(?<![a-z0-9.])\d+(?:\.\d*)?(?:e[-+]?\d+)?(?![a-z0-9.])", re.IGNORECASE)


def titles_of(params: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the title of each condition by its name, made of the axes that differ; each title is unique.

    Args:
        params: of each condition of a campaign, by its name. A name is its own title if its axes give no other.
    """
    axes = _axes(list(params.values()))
    titles = {
        name: SEPARATOR.join(_part(axis, own[axis]) for axis in axes if axis in own) for name, own in params.items()
    }
    used = Counter([*titles.values(), *params])
    return {name: title if title and used[title] == 1 else name for name, title in titles.items()}


def find_name(word: str, titles: Mapping[str, str]) -> str:
    """Return the name of this title, or with equal numbers, as `lr-0.0001` for `lr-1e-4`; the word itself if unclear.

    Args:
        titles: the titles by name.
    """
    plain = _plain(word)
    alike = [] if word in titles else [name for name, of in titles.items() if plain in (_plain(name), _plain(of))]
    return alike[0] if len(alike) == 1 else word


def _plain(text: str) -> str:
    return _NUMBER.sub(lambda number: repr(float(number[0])), text)


def _axes(params: list[Mapping[str, Any]]) -> list[str]:
    """Return the axes that differ, in the order of the matrix; labels first, without the settings that they name."""
    names = dict.fromkeys(name for own in params for name in own)
    values = {name: [json.dumps(own.get(name), default=str) for own in params] for name in names}
    varying = [name for name in names if len(set(values[name])) > 1]
    axes: list[str] = []
    labels: list[tuple[str, ...]] = [()] * len(params)
    for name in sorted(varying, key=lambda name: LABELS.index(name) if name in LABELS else len(LABELS)):
        finer = [(*point, value) for point, value in zip(labels, values[name], strict=True)]
        if len(set(labels)) == 1 or len(set(finer)) > len(set(labels)):
            axes.append(name)
            labels = finer if name in LABELS else labels
    return axes


def _part(axis: str, value: Any) -> str:
    plain = axis.replace("-", "_").lower()
    words = axis if axis.isupper() else _WORDS.get(plain, axis.replace("_", " "))
    if isinstance(value, bool):
        return words if value else f"no {words}"
    if value is None:
        return f"{words} unset"
    if isinstance(value, int) and plain in _COUNTED:
        return count(value, _COUNTED[plain])
    text = _VALUES.get((plain, str(value))) or (value_text(value) if plain in _BY_THEMSELVES else None)
    return text or f"{words} {value_text(value)}"


def value_text(value: Any) -> str:
    """Return a value in short: small numbers as `3e-4`, of a path its last part."""
    if isinstance(value, float) and 0 < abs(value) < 0.01:
        digits, _, exponent = f"{value:.3e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return shorten_middle(last_part(text) or text, _LONGEST)


_RUNS: Final = 3


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
    shown = "; ".join(f"{code} ({some(by, _RUNS)})" for code, by in names.items())
    return f"Not all runs ran the same code: {shown}." if len(names) > 1 else ""
