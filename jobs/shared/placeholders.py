"""Placeholders in a command and its environment: `{name}`, and options that may be left out: `[--resume {name}]`.

The spec fills in the values of a run, the node's agent the values of an attempt. `{{name}}` is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

AT_LAUNCH: Final = {
    "micro_batch": "MICRO_BATCH",
    "accumulation": "ACCUMULATION",
    "ds_config": "DS_CONFIG",
    "checkpoint_dir": "CHECKPOINT_DIR",
    "run_dir": "RUN_DIR",
    "resume_from": "RESUME",
}
"""Placeholders that only an attempt has values for, with the variables of a script that have them, too."""

OF_A_RANK: Final = "local_rank"  # filled in by each rank when it starts
_VARIABLE: Final = re.compile(rb"CAMPAIGN_([A-Z][A-Z_]*)?")
_FORM: Final = re.compile(r"\{(\{)?([^\W\d][\w.]*)\}(?(1)\})")
_OPENS: Final = re.compile(r"\[(?=--?[A-Za-z]|[+~]*[A-Za-z_][\w./@]*=)")
"""The beginning of an optional group: a bracket before an option. `[1,{n}]` is a list."""


def names_in(text: str) -> list[str]:
    """Return the placeholders of a text."""
    return [form[2] for form in _FORM.finditer(text) if not form[1]]


def variables_in(texts: Iterable[bytes]) -> frozenset[str] | None:
    """Return the names after `CAMPAIGN_` in files of code; None if the code puts a name together."""
    names = {name for text in texts for name in _VARIABLE.findall(text)}
    return None if b"" in names else frozenset(name.decode() for name in names)


def needed_in(words: Sequence[str]) -> list[str]:
    """Return the placeholders of a command outside of optional groups."""
    return [name for group, optional in _groups(tuple(words)) if not optional for name in names_in(group[0])]


def text_of(value: object) -> str:
    """Return a value as a shell or a script reads it: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def filled(text: str, values: Mapping[str, object]) -> str:
    """Return the text with the values of its placeholders; without a value they stay, as does `{{name}}`."""

    def value(form: re.Match[str]) -> str:
        if form[1] or form[2] not in values:
            return form[0]
        own = text_of(values[form[2]])
        return _FORM.sub(r"{\g<0>}", own) if "{" in own else own

    return _FORM.sub(value, text) if "{" in text else text


def filled_words(words: Sequence[str], values: Mapping[str, object]) -> Iterator[str]:
    """Yield the words of a command with their values.

    An optional group is left out if a value in it is empty, null or false. Of true, the option alone stays: a flag.
    """
    for group, optional in _groups(tuple(words)):
        if optional:
            yield from _option(group, values)
        else:
            yield filled(group[0], values)


def without_escapes(text: str) -> str:
    """Return the text with `{name}` for `{{name}}`, once all its values are filled in."""
    return _FORM.sub(lambda form: form[0][1:-1] if form[1] else form[0], text)


def unclosed(words: Sequence[str]) -> str | None:
    """Return the first word that opens an optional group which does not end."""
    alone = (group[0] for group, optional in _groups(tuple(words)) if not optional)
    return next((word for word in alone if _OPENS.match(word) and "]" not in word), None)


@cache
def _groups(words: tuple[str, ...]) -> list[tuple[list[str], bool]]:
    """Return each word, or the words of an optional group without its brackets, and whether it is optional."""
    groups, start = list[tuple[list[str], bool]](), 0
    while start < len(words):
        ends = (i + 1 for i in range(start, len(words)) if words[i].endswith("]"))
        end = next(ends, start + 1) if _OPENS.match(words[start]) else start + 1
        group = list(words[start:end])
        if _OPENS.match(group[0]) and group[-1].endswith("]") and any(map(names_in, group)):
            group[0] = group[0][1:]
            group[-1] = group[-1][:-1]
            groups.append((group if len(group) > 1 else group[0].split(), True))  # one item may hold a whole group
        else:
            groups += (([word], False) for word in group)
        start = end
    return groups


def _option(group: Sequence[str], values: Mapping[str, object]) -> Iterator[str]:
    names = {name for word in group for name in names_in(word)}
    own = {name: values[name] for name in names if name in values}
    if any(value is None or value is False or value == "" for value in own.values()):
        return
    flags = {f"{{{name}}}" for name, value in own.items() if value is True}
    words = [filled(word, own) for word in group if word not in flags]
    if names - own.keys() - {OF_A_RANK}:
        words[0] = f"[{words[0]}"
        words[-1] += "]"
    yield from words
