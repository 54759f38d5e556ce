"""Specs as YAML 1.2, with the line and column of every key and value.

Only true and false are truth values; times, dates and numbers with a leading zero are text; `1e-4` is a number.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq, TaggedScalar
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver

from dscampaign.orchestrator.errors import FieldPath, Finding, Problem, SpecError, UserError, dotted

Position = tuple[int, int]
"""Line and column, both from 1."""

_MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 60
_MAX_WHOLE: Final = 2**64
_SHOWN: Final = 100
"""Characters of an error of ruamel's."""
_PLACEHOLDER: Final = re.compile(r"\{[\w.]+\}")
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
_LEADING_ZERO: Final = re.compile(r"0b?[\d_]+")


@dataclass(frozen=True)
class YamlDocument:
    """A YAML document in plain values, with positions of values and keys, and overrides of the command line."""

    data: dict[str, Any]
    filename: str
    lines: tuple[str, ...]
    values: dict[FieldPath, Position] = field(default_factory=dict)
    keys: dict[FieldPath, Position] = field(default_factory=dict)
    overridden: dict[FieldPath, str] = field(default_factory=dict)

    def position(self, place: FieldPath, *, at_key: bool = False) -> Position:
        """Return the position of a value or its key, or of the closest thing around it that is in the text."""
        inside = self._in_text(place)
        positions = self.keys if at_key or len(inside) < len(place) else self.values
        return positions.get(inside, self.values.get(inside, (1, 1)))

    def problem(self, finding: Finding) -> Problem:
        """Return a finding with its line: at the first of its places that the text, or `--set`, has."""
        texts = {p: text for p in finding.places for path, text in self.overridden.items() if p[: len(path)] == path}
        in_text = (p for p in finding.places if p in texts or len(self._in_text(p)) == len(p))
        if (place := next(in_text, None)) is None:  # an override may have made its section incomplete
            place = finding.places[0]
            beside = [text for path, text in self.overridden.items() if path[:-1] == place[:-1]]
            texts = dict.fromkeys([place] if beside else [], "".join(beside[:1]))
        if place in texts:
            return Problem(f"--set {texts[place]}", 0, 0, dotted(place), finding.message, finding.hint)
        position = self.position(place, at_key=finding.at_key)
        return self.problem_at(position, place, finding.message, finding.hint)

    def problem_at(self, position: Position, place: FieldPath, message: str, hint: str | None = None) -> Problem:
        """Return a problem with the text of its line."""
        line, column = position
        source_line = self.lines[line - 1] if 0 < line <= len(self.lines) else None
        return Problem(self.filename, line, column, dotted(place), message, hint, source_line)

    def _in_text(self, place: FieldPath) -> FieldPath:
        inside: FieldPath = ()
        for part in place:
            spellings = (part, part.replace("_", "-")) if isinstance(part, str) else (part,)
            longer = ((*inside, spelling) for spelling in spellings)
            deeper = next((path for path in longer if path in self.values or path in self.overridden), None)
            if deeper is None:
                break
            inside = deeper
        return inside


def read_text(path: Path) -> str:
    """Return the text of a spec; raise UserError if it cannot be read, SpecError if it is not UTF-8."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name with NUL
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: {reason}", "`campaign init` writes a spec to start from") from error
    try:
        return content.decode().replace("\r\n", "\n").replace("\r", "\n")  # as a text file is read
    except UnicodeDecodeError as error:
        before = content[: error.start].splitlines(keepends=True)
        line, column = (len(before), len(before[-1]) + 1) if before else (1, 1)
        raise SpecError([Problem(str(path), line, column, "", "not UTF-8 text", "save it as UTF-8")]) from error


def load(text: str, filename: str) -> YamlDocument:
    """Read a YAML document whose top level is a mapping; raise SpecError if it is none, or has a key twice."""
    document = YamlDocument({}, filename, tuple(text.splitlines()))
    reader = _Reader(document)
    try:
        yaml = YAML()
        yaml.Resolver = _Resolver
        yaml.preserve_quotes = True
        content = yaml.load(text)
        document.data.update(reader.mapping(content, ()) if isinstance(content, CommentedMap) else {})
    except SpecError:
        raise
    except MarkedYAMLError as error:
        raise SpecError([_syntax_problem(document, error)]) from error
    except Exception as error:  # ruamel raises many kinds for what nobody writes, such as an alias within its anchor
        raise SpecError([document.problem_at((1, 1), (), f"not valid YAML: {str(error)[:_SHOWN]}")]) from error
    if not isinstance(content, CommentedMap):
        message = "the file is empty" if content is None else "expected fields with their values"
        raise SpecError([document.problem_at((1, 1), (), message, "see `campaign init`")])
    if reader.problems:
        raise SpecError(reader.problems)
    return document


class _Resolver(VersionedResolver):
    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)
        dated = str(tag).endswith((":timestamp", ":value"))
        is_text = kind is ScalarNode and implicit[0] and (dated or _LEADING_ZERO.fullmatch(value))
        return self.DEFAULT_SCALAR_TAG if is_text else tag


def _syntax_problem(document: YamlDocument, error: MarkedYAMLError) -> Problem:
    """Return the parser's message at its line; the hint is the line at which the construct began."""
    mark, start = error.problem_mark, error.context_mark
    at = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    line = document.lines[at[0] - 1] if 0 < at[0] <= len(document.lines) else ""
    message = f"not valid YAML: {error.problem}"
    hint = f"{error.context} that begins in line {start.line + 1}" if error.context and start else None
    if isinstance(error, DuplicateKeyError):
        key = line[at[1] - 1 :].partition(":")[0]
        message, hint = f"the key {key} is given twice", "remove one of them"
    elif _PLACEHOLDER.search(line):
        hint = "quote the text: braces begin a mapping"
    return document.problem_at(at, (), message, hint)


class _Reader:
    """Turns the content of a document into plain values and records the position of each."""

    def __init__(self, document: YamlDocument) -> None:
        self.document = document
        self.problems: list[Problem] = []

    def mapping(self, content: CommentedMap, place: FieldPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in content.items():
            name = self._text(str(key).lower() if isinstance(key, bool) else str(key), place)
            inner = (*place, name)
            at = _positions(content, key)
            self.document.keys[inner] = at[0] + 1, at[1] + 1
            if isinstance(key, CommentedMap | tuple):
                self._complain(place, "a key must be text")
            result[name] = self._value(value, inner, (at[2] + 1, at[3] + 1))
        return result

    def _value(self, value: Any, place: FieldPath, at: Position) -> Any:
        self.document.values[place] = at
        if len(self.document.values) > _MAX_VALUES or len(place) > _MAX_DEPTH:
            raise SpecError([self.document.problem_at(at, (), "has too many values, or is nested too deeply")])
        if isinstance(value, CommentedMap):
            return self.mapping(value, place)
        if isinstance(value, CommentedSeq):
            at_items = [value.lc.item(index) for index in range(len(value))]
            return [
                self._value(item, (*place, index), (line + 1, column + 1))
                for index, (item, (line, column)) in enumerate(zip(value, at_items, strict=True))
            ]
        return self._scalar(value, place)

    def _scalar(self, value: Any, place: FieldPath) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, float):
            return float(value)
        if isinstance(value, int):
            if abs(value) >= _MAX_WHOLE:
                self._complain(place, "is too large a number", "quote it if it is text")
            return int(value)
        return self._text(str(value.value if isinstance(value, TaggedScalar) else value), place)

    def _text(self, text: str, place: FieldPath) -> str:
        if _UNSTORABLE.search(text):
            self._complain(place, "contains half a character, or NUL")
        return _UNSTORABLE.sub("?", text)

    def _complain(self, place: FieldPath, message: str, hint: str | None = None) -> None:
        self.problems.append(self.document.problem(Finding((place,), message, hint)))


def _positions(content: CommentedMap, key: Any) -> tuple[int, int, int, int]:
    """Return line and column of a key and of its value, from 0; of a key that `<<` brings in, in its own mapping."""
    if key in (content.lc.data or {}):
        line, column, value_line, value_column = content.lc.data[key]
        return line, column, value_line, value_column
    return next((_positions(source, key) for source in content.merge if key in source), (0, 0, 0, 0))


def written(value: Any, *, flow: bool = False) -> str:
    """Return a value as YAML that `load` reads as the same; `flow`: on one line."""
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Representer = _Resolver, _Representer
    yaml.default_flow_style, yaml.width, yaml.allow_unicode = flow, sys.maxsize, True
    yaml.sort_base_mapping_type_on_output = False
    text = StringIO()
    yaml.dump(value, text)
    return text.getvalue().removesuffix("...\n").removesuffix("\n" if flow else "")


class _Representer(SafeRepresenter):
    """Writes lists of words and numbers on one line."""

    def represent_list(self, data: list[Any]) -> Any:
        on_one_line = not any(isinstance(item, dict | list) or " " in str(item) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=on_one_line or None)


_Representer.add_representer(list, _Representer.represent_list)


def parse_value(text: str, field: str) -> Any:
    """Return the value of a field as a spec would have it, for the command line; raise SpecError."""
    return load(f"{field}: {text}", "--set").data[field]
