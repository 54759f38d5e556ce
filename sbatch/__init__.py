"""What a cluster sees: the prologue of every job, and batch scripts to run by hand or to keep running.

A template is a shell script with `{{name}}` in it; `$`, `@` and `%` stay the shell's, so `bash -n` reads it as it is.
What a placeholder becomes depends on its value:

- text, number or path: one word, quoted for the shell;
- None: the whole line is left out;
- a list: the whole line once for each element, unquoted, because these are lines of shell.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

Value = str | int | Path | Sequence[str] | None

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def prologue() -> list[str]:
    """The lines of shell that come first in every job, before the spec's own `setup`."""
    return _read("prologue.sh").splitlines()


def lines(name: str) -> str:
    """Return the lines of a part of a job script, as they are."""
    return _read(name).rstrip()


def render(template: str, values: Mapping[str, Value]) -> str:
    """Fills in a template.

    Args:
        template: File name in this folder, such as `reconciler.sbatch`.
        values: What each placeholder becomes; see the module.

    Raises:
        KeyError: The template has a placeholder without a value.
        ValueError: A value has no placeholder, or it would start a line of its own.
    """
    text = _read(template)
    if unused := values.keys() - set(_PLACEHOLDER.findall(text)):
        raise ValueError(f"{template} has no placeholder {', '.join(sorted(unused))}")
    return "".join(f"{filled}\n" for line in text.splitlines() for filled in _fill(line, values))


def _fill(line: str, values: Mapping[str, Value]) -> list[str]:
    """The lines that one line of a template becomes."""
    given = {name: values[name] for name in _PLACEHOLDER.findall(line)}
    if None in given.values():
        return []
    words = {name: _word(value) for name, value in given.items() if isinstance(value, str | int | Path)}
    lines = [(name, value) for name, value in given.items() if name not in words]
    if not lines:
        return [_put(line, words)]
    [(repeated, items)] = lines  # one list a line is all that has a meaning
    assert isinstance(items, Sequence)
    return [_put(line, words | {repeated: item}) for item in items]


def _put(line: str, texts: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: texts[match[1]], line)


def _word(value: str | int | Path) -> str:
    if any(character in str(value) for character in "\n\r\0"):
        raise ValueError(f"{value!r}: a value cannot hold a line break")
    return shlex.quote(str(value))


@cache
def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
