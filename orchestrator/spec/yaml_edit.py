"""Changes values in the text of a YAML document and keeps its comments. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import StringIO
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.tokens import ScalarToken

from dscampaign.orchestrator.errors import SpecError

from .yaml_source import load, round_trip, written

Path = tuple[str, ...]
"""The keys that lead to a value."""

_COMMENT: Final = re.compile(r"[ \t]*#.*")
_COMMENT_LINES: Final = re.compile(r"(?<=\n)[ \t]*#.*\n?")
_FIRST_LINES: Final = re.compile(r"(?:^|(?<=\n))[ \t]*#.*\n?")


def edited(text: str, changes: Mapping[Path, Any], removed: Sequence[Path] = ()) -> str:
    """Return the text with these values set and these keys removed; a new field begins its section.

    If a change would reach further places by an alias, the result has no comments.

    Raises:
        SpecError: The text is no YAML document with a mapping.
        ValueError: A change is below something that is no mapping.
    """
    wanted = _changed(load(text, "").data, changes, removed)
    for path in removed:
        text = _cut(text, path)
    yaml, stream = round_trip(), StringIO()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(_changed(yaml.load(text), changes, removed), stream)
    result = stream.getvalue()
    return result if _reads_as(result, wanted) else written(wanted)


def _changed(data: Any, changes: Mapping[Path, Any], removed: Sequence[Path]) -> Any:
    for *above, key in removed:
        holder = value_at(data, tuple(above))
        if isinstance(holder, dict):
            holder.pop(_spelling(holder, key), None)
    for path, value in changes.items():
        _put(data, path, value)
    return data


def _cut(text: str, path: Path) -> str:
    """Remove the lines of a key in block style, with the comment above it: ruamel keeps that with the key before."""
    keys = load(text, "").keys
    if path not in keys or not (lines := text.splitlines(keepends=True)):
        return text
    line, column = keys[path]
    begin, end = line - 1, min((n - 1 for n, c in keys.values() if n > line and c <= column), default=len(lines))
    while begin and lines[begin - 1].lstrip().startswith("#"):
        begin -= 1
    while end > line and end < len(lines) and lines[end - 1].strip()[:1] in ("", "#"):
        end -= 1  # a comment of the next key
    shortened = "".join([*(lines[:begin] if begin else lines[: line - 1]), *lines[end:]])
    return shortened if _reads_as(shortened, _changed(load(text, "").data, {}, [path])) else text


def _reads_as(text: str, data: Any) -> bool:
    with suppress(SpecError):
        return bool(load(text, "").data == data)
    return False


def value_at(data: Any, path: Path) -> Any:
    """Return the value at a path, None if there is none."""
    for part in path:
        if not isinstance(data, Mapping):
            return None
        data = data.get(_spelling(data, part))
    return data


def _put(data: Any, path: Path, value: Any) -> None:
    holder = data
    for depth, part in enumerate(path):
        if not isinstance(holder, dict):
            raise ValueError(f"{'.'.join(path)} is below something that is no mapping")  # noqa: TRY004
        key = _spelling(holder, part)
        if holder.get(key) is None or depth == len(path) - 1:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            _set(holder, key, value, last=holder is data)
            return
        holder = holder[key]


def _set(data: Any, key: str, value: Any, *, last: bool) -> None:
    """Set a value on one line; the comments behind the last key of a section belong to the next section."""
    if isinstance(data, CommentedMap):
        value = round_trip().load(written(value, flow=True))
        if key not in data and not last:
            data.insert(0, key, value)
            return
    data[key] = value


def _spelling(keys: Mapping[str, Any], part: str) -> str:
    """Return the key as the mapping has it: `gpus_per_node` may be written with hyphens."""
    return next((key for key in (part, part.replace("_", "-")) if key in keys), part)


def without_comments(text: str) -> str:
    """Return a YAML document without its comments, otherwise as people wrote it.

    Raises:
        SpecError: The text is no YAML document with a mapping.
    """
    wanted = load(text, "").data
    pieces, at = [], 0
    for token in YAML(typ="safe", pure=True).scan(text):
        start, end = token.start_mark.index, max(at, token.end_mark.index)
        pieces.append(_uncommented(text[at:start], at))
        value = text[max(at, start) : end]
        if isinstance(token, ScalarToken) and token.style in ("|", ">"):  # a comment may follow its indicator
            head, line_end, rest = value.partition("\n")
            value = _COMMENT.sub("", head) + line_end + rest
        pieces.append(value)
        at = end
    result = "".join([*pieces, _uncommented(text[at:], at)])
    return result if _reads_as(result, wanted) else written(wanted)


def _uncommented(between: str, at: int) -> str:
    return _COMMENT.sub("", (_COMMENT_LINES if at else _FIRST_LINES).sub("", between))
