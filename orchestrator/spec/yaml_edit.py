"""Changes values in the text of a YAML document and leaves everything else as people wrote it, comments too. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final

from yaml import YAMLError
from yaml.nodes import MappingNode, Node, ScalarNode
from yaml.tokens import ScalarToken

from dscampaign.orchestrator.errors import SpecError

from .yaml_source import compose, load, scan, written

Path = tuple[str, ...]
"""The keys that lead to a value."""

_LITERAL: Final = ("|", ">")
_COMMENT: Final = re.compile(r"[ \t]*#.*")
_COMMENT_LINES: Final = re.compile(r"(?<=\n)[ \t]*#.*\n?")
_FIRST_LINES: Final = re.compile(r"(?:^|(?<=\n))[ \t]*#.*\n?")


def edited(text: str, changes: Mapping[Path, Any], removed: Sequence[Path] = ()) -> str:
    """The text with these values set and these keys removed, where they are.

    A key that is not there is added to the end of its mapping. Where the text cannot be changed in its place, as within
    what an alias repeats, the result says the same in a text of its own, without comments.

    Raises:
        SpecError: The text is no YAML document with a mapping.
        ValueError: A change is below something that is no mapping.
    """
    wanted = deepcopy(load(text, "").data)
    for path in removed:
        _drop(wanted, path)
    for path, value in changes.items():
        _put(wanted, path, value)
    with suppress(SpecError, YAMLError):
        result = _in_place(text, changes, removed)
        if load(result, "").data == wanted:
            return result
    return written(wanted)


def without_comments(text: str) -> str:
    """Return a YAML document without its comments, otherwise as people wrote it.

    Raises:
        SpecError, YAMLError: The text is no YAML document with a mapping.
    """
    pieces, at = [], 0
    for token in scan(text):
        start, end = token.start_mark.index, max(at, token.end_mark.index)
        pieces.append(_uncommented(text[at:start], at))
        value = text[max(at, start) : end]
        if isinstance(token, ScalarToken) and token.style in _LITERAL:  # behind its indicator there may be a comment
            head, line_end, rest = value.partition("\n")
            value = _COMMENT.sub("", head) + line_end + rest
        pieces.append(value)
        at = end
    result = "".join([*pieces, _uncommented(text[at:], at)])
    wanted = load(text, "").data
    with suppress(SpecError, YAMLError):
        if load(result, "").data == wanted:
            return result
    return written(wanted)


def _uncommented(between: str, at: int) -> str:
    """Return what stands between two tokens without its comments, and without lines that hold nothing else."""
    return _COMMENT.sub("", (_COMMENT_LINES if at else _FIRST_LINES).sub("", between))


def _in_place(text: str, changes: Mapping[Path, Any], removed: Sequence[Path]) -> str:
    """The text with each edit; raises YAMLError where one has made nonsense of it, as where an anchor is gone."""
    for path in removed:
        text = _without(text, path)
    for path, value in changes.items():
        text = _with(text, path, value)
    return text


def value_at(data: Any, path: Path) -> Any:
    """The value at a path, None where there is none."""
    for part in path:
        if not isinstance(data, Mapping):
            return None
        data = data.get(_spelling(data, part))
    return data


def _put(data: Any, path: Path, value: Any) -> None:
    for part in path[:-1]:
        part = _spelling(data, part)  # noqa: PLW2901 - the same key
        if data.get(part) is None:
            data[part] = {}
        data = data[part]
        if not isinstance(data, dict):
            raise ValueError(f"{'.'.join(path)} is below something that is no mapping")  # noqa: TRY004
    data[_spelling(data, path[-1])] = deepcopy(value)


def _drop(data: Any, path: Path) -> None:
    for part in path[:-1]:
        data = data.get(_spelling(data, part)) if isinstance(data, dict) else None
    if isinstance(data, dict):
        data.pop(_spelling(data, path[-1]), None)


def _spelling(keys: Mapping[str, Any], part: str) -> str:
    """The key as the mapping has it: `gpus_per_node` may be written with hyphens."""
    return next((key for key in (part, part.replace("_", "-")) if key in keys), part)


def _with(text: str, path: Path, value: Any) -> str:
    node = _root(text)
    for depth, part in enumerate(path):
        entry = _entry(node, part)
        if entry is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return _added(text, node, part, value)
        key, node = entry
        if isinstance(node, ScalarNode) and not node.value and depth < len(path) - 1:  # a section without content
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            break
    return f"{text[: key.end_mark.index]}: {written(value, flow=True)}{text[max(_end(node), key.end_mark.index + 1) :]}"


def _added(text: str, node: Node, key: str, value: Any) -> str:
    said = f"{key}: {written(value, flow=True)}"
    if getattr(node, "flow_style", False) or not node.value:
        at = node.start_mark.index + 1
        return f"{text[:at]}{said}{', ' if node.value else ''}{text[at:]}"
    at = _line_end(text, _end(node))
    return f"{text[:at]}\n{' ' * node.start_mark.column}{said}{text[at:]}"


def _without(text: str, path: Path) -> str:
    node, key = _root(text), None
    for part in path:
        inside, entry = node, _entry(node, part)
        if entry is None:
            return text
        key, node = entry
    assert key is not None
    if getattr(inside, "flow_style", False):
        index = next(i for i, (one, _) in enumerate(inside.value) if one is key)
        following = inside.value[index + 1 :]
        begin = key.start_mark.index if following or not index else _end(inside.value[index - 1][1])
        return text[:begin] + text[following[0][0].start_mark.index if following else _end(node) :]
    begin, end = _line_begin(text, key.start_mark.index), _line_end(text, _end(node)) + 1
    while begin and (above := text[_line_begin(text, begin - 1) : begin]).startswith("#"):  # what says what it is for
        if not _line_begin(text, begin - 1):
            break  # the head of the file
        begin -= len(above)
    rest = text[end:]
    if not rest:
        return f"{text[:begin].rstrip()}\n"
    return text[:begin] + (rest.lstrip("\n") if text[:begin].endswith("\n\n") else rest)


def _root(text: str) -> Node:
    node = compose(text)
    assert node is not None  # `load` has read it
    return node


def _entry(node: Node, part: str) -> tuple[Node, Node] | None:
    if not isinstance(node, MappingNode):
        return None
    named = {key.value: (key, value) for key, value in node.value}
    return named.get(_spelling(named, part))


def _end(node: Node) -> int:
    """Where a value's own text ends: that of a block includes what stands below it."""
    if isinstance(node, ScalarNode):
        return node.end_mark.index - (getattr(node, "style", None) in _LITERAL)
    if getattr(node, "flow_style", False) or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _line_begin(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found
