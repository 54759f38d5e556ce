"""YAML as people mean it, with the line and column of every key and value.

YAML 1.1, which PyYAML reads, makes false of `no`, 14400 of `4:00:00` and text of `1e-4`, and keeps the last of two
equal keys. Here only true and false are truth values, times and dates stay text, numbers are numbers, a number with a
leading zero is text, and a key that is given twice is an error.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.composer import ComposerError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from dscampaign.orchestrator.errors import FieldPath, Finding, Problem, SpecError, dotted

Position = tuple[int, int]
"""Line and column, both from 1."""

_MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 60
_MAX_WHOLE: Final = 2**64
_PLACEHOLDER: Final = re.compile(r"\{[\w.]+\}")
_SHOWN: Final = 40
"""Characters of a wrong value that its problem shows."""

_TAGS: Final = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq"))
_MERGE: Final = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class YamlDocument:
    """A YAML document.

    Attributes:
        data: Its content in plain mappings, lists, text and numbers.
        filename: The name under which the user knows it.
        lines: Its text.
        values: Where each value starts.
        keys: Where each key starts.
        overridden: Values that were given on the command line instead, as they were given.
        reworded: Texts of numbers that lose a part of it as text, such as 3.10 and 1e5.
    """

    data: dict[str, Any]
    filename: str
    lines: tuple[str, ...]
    values: dict[FieldPath, Position] = field(default_factory=dict)
    keys: dict[FieldPath, Position] = field(default_factory=dict)
    overridden: dict[FieldPath, str] = field(default_factory=dict)
    reworded: dict[FieldPath, str] = field(default_factory=dict)

    def position(self, place: FieldPath, *, at_key: bool = False) -> Position:
        """Where a value, or its key, stands, or the closest thing around it that is in the text."""
        known = self._known(place)
        positions = self.keys if at_key or len(known) < len(place) else self.values
        return positions.get(known, self.values.get(known, (1, 1)))

    def problem(self, finding: Finding) -> Problem:
        """A finding with its line: at the first of its places that the text, or `--set`, has."""
        said = ((p, self._override(p)) for p in finding.places)
        given = ((p, text) for p, text in said if text is not None or len(self._known(p)) == len(p))
        place, text = next(given, (finding.places[0], self._beneath(finding.places[0])))
        if text is not None:
            return Problem(f"--set {text}", 0, 0, dotted(place), finding.message, finding.hint)
        position = self.position(place, at_key=finding.at_key)
        return self.problem_at(position, place, finding.message, finding.hint)

    def _override(self, place: FieldPath) -> str | None:
        """What `--set` says of a place, if it does."""
        return next((text for path, text in self.overridden.items() if place[: len(path)] == path), None)

    def _beneath(self, place: FieldPath) -> str | None:
        """What `--set` says in the part of a place that the text does not have: it made what is incomplete there."""
        lengths = range(len(place), len(self._known(place)), -1)
        found = (text for n in lengths for path, text in self.overridden.items() if path[:n] == place[:n])
        return next(found, None)

    def problem_at(self, position: Position, place: FieldPath, message: str, hint: str | None = None) -> Problem:
        """What is wrong at a position, with the text of its line."""
        line, column = position
        source_line = self.lines[line - 1] if 0 < line <= len(self.lines) else None
        return Problem(self.filename, line, column, dotted(place), message, hint, source_line)

    def _known(self, place: FieldPath) -> FieldPath:
        known: FieldPath = ()
        for part in place:
            spellings = (part, part.replace("_", "-")) if isinstance(part, str) else (part,)
            found = next((s for s in spellings if (*known, s) in self.values or (*known, s) in self.overridden), None)
            if found is None:
                break
            known = (*known, found)
        return known


def load(text: str, filename: str) -> YamlDocument:
    """Reads a YAML document whose top level is a mapping.

    Args:
        text: The document.
        filename: The name for error messages.

    Raises:
        SpecError: It is not YAML, or it has a key twice.
    """
    document = YamlDocument({}, filename, tuple(text.splitlines()))
    try:
        node = compose(text)
    except yaml.YAMLError as error:
        raise SpecError([_syntax_problem(document, error, text)]) from error
    if not isinstance(node, MappingNode):
        message = "the file is empty" if node is None else "expected fields with their values"
        raise SpecError([document.problem_at((1, 1), (), message, "see `campaign init`")])
    builder = _Builder(document)
    document.data.update(builder.mapping(node, ()))
    if builder.problems:
        raise SpecError(builder.problems)
    return document


def _syntax_problem(document: YamlDocument, error: yaml.YAMLError, text: str) -> Problem:
    """Return PyYAML's message at the line where it stopped, with the line where the construct began as the hint."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        at = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
        return document.problem_at(at, (), f"contains the control character {error.character:#04x}", "remove it")
    mark, begun = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    message = f"not valid YAML: {getattr(error, 'problem', None) or str(error).splitlines()[0]}"
    context = getattr(error, "context", None)
    hint = f"{context} that begins in line {begun.line + 1}" if context and begun else None
    if mark and mark.line < len(document.lines) and _PLACEHOLDER.search(document.lines[mark.line]):
        hint = "quote the text: braces begin a mapping"
    at = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    return document.problem_at(at, (), message, hint)


def compose(text: str) -> Node | None:
    """The nodes of a YAML document, with where each begins and ends; raises yaml.YAMLError if it is none."""
    found: Node | None = yaml.compose(text, Loader=_Loader)
    return found


def scan(text: str) -> Iterator[yaml.Token]:
    """Return the tokens of a YAML document, none of which is a comment; raises yaml.YAMLError if it is none."""
    return yaml.scan(text, Loader=_Loader)


def written(value: Any, *, flow: bool = False) -> str:
    """A value as YAML that `load` reads as the same; `flow`: on one line."""
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=sys.maxsize
    )
    return str(text).removesuffix("...\n").removesuffix("\n" if flow else "")


def parse_value(text: str, field: str) -> Any:
    """The value of a field as it would be read from a spec, for the command line.

    Raises:
        SpecError: It is not YAML.
    """
    return load(f"{field}: {text}", "--set").data[field]


def number_hint(text: str) -> str | None:
    """Return how to write a number that is quoted or has a 0 in front, None for any other text."""
    if text.isdecimal() and text.isascii() and text[0] == "0":
        return f"write {int(text)}"
    return f"write {text} without quotes" if _NUMBER.fullmatch(text) else None


class _Loader(yaml.SafeLoader):
    """Composes nodes with the scalar forms of YAML 1.2; it constructs nothing."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Composes a node with all that is in it.

        Raises:
            ComposerError: It lies too deep.
        """
        if self.depth > _MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ComposerError(None, None, "nested too deeply", mark)
        self.depth += 1
        node: Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))


_INT = r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F]+|0o[0-7]+"
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_FLOAT = r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?)|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
_resolve("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("int", _INT, "-+0123456789")
_resolve("float", rf"(?!0[0-9_]+$){_FLOAT}", "-+.0123456789")
_resolve("merge", "<<", "<")
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version of YAML would take for something else."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {  # noqa: RUF012
        first: [
            *_Loader.yaml_implicit_resolvers.get(first, ()),
            *yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()),
        ]
        for first in {**yaml.SafeDumper.yaml_implicit_resolvers, **_Loader.yaml_implicit_resolvers}
    }


_BOOLEANS = {"yes": True, "on": True, "no": False, "off": False}


def _is_free(place: FieldPath) -> bool:
    """Whether no field of ours gives the value a type: DeepSpeed's own section, and a model's configuration.

    There, `no` as the text that YAML 1.2 makes of it would count as true.
    """
    names = [part for part in place if isinstance(part, str)]
    return any(name.partition(".")[0] == "deepspeed" for name in names) or "model" in names[:-1]


class _Builder:
    """Turns nodes into plain values and notes where each of them stands."""

    def __init__(self, document: YamlDocument) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._open: list[Node] = []
        self._visits = 0

    def mapping(self, node: MappingNode, place: FieldPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node, merged in self._pairs(node, place):
            key = self._key(key_node, place)
            if key is None or self._glued(key_node, value_node, key, place):
                continue
            inner = (*place, key)
            if key not in result:
                result[key] = self.value(value_node, inner)
                self.document.keys[inner] = _position(key_node)
            elif not merged:
                line = self.document.keys[inner][0]
                self._complain(key_node, inner, f"is given twice, first on line {line}", "remove one of them")
        return result

    def _glued(self, node: Node, value: Node, key: str, place: FieldPath) -> bool:
        """Whether a key has swallowed its value for want of a space: `{n_layer:2}`."""
        name, colon, rest = key.partition(":")
        glued = bool(colon and name and rest and isinstance(value, ScalarNode) and not value.value)
        if glued and node.start_mark.line == node.end_mark.line and getattr(node, "style", None) is None:
            self._complain(node, (*place, key), "a space is missing after the colon", f"write `{name}: {rest}`")
            return True
        return False

    def _key(self, node: Node, place: FieldPath) -> str | None:
        if not isinstance(node, ScalarNode):
            self._complain(node, place, "a key must be text")
            return None
        try:
            return _whole(node.value)
        except _Unfit as error:
            self._complain(node, place, f"key {node.value[:_SHOWN]!r} {error}")
            return None

    def value(self, node: Node, place: FieldPath) -> Any:
        self.document.values[place] = _position(node)
        self._visit(node, place)
        if node.tag not in _TAGS:
            self._complain(node, place, f"tag {node.tag} is not understood", "remove it")
        if isinstance(node, ScalarNode):
            return self._scalar(node, place)
        self._open.append(node)
        if isinstance(node, MappingNode):
            found: Any = self.mapping(node, place)
        else:
            found = [self.value(item, (*place, index)) for index, item in enumerate(node.value)]
        self._open.pop()
        return found

    def _visit(self, node: Node, place: FieldPath) -> None:
        self._visits += 1
        if self._visits > _MAX_VALUES or any(node is outer for outer in self._open):
            self._complain(node, place, "its aliases make this document too large")
            raise SpecError(self.problems)
        if len(self._open) > _MAX_DEPTH:
            self._complain(node, place, "nested too deeply")
            raise SpecError(self.problems)

    def _pairs(self, node: MappingNode, place: FieldPath) -> list[tuple[Node, Node, bool]]:
        """Keys with values: first the mapping's own, then those that `<<` brings in."""
        pairs = [(key, value, False) for key, value in node.value if key.tag != _MERGE]
        self._open.append(node)
        for merge in (value for key, value in node.value if key.tag == _MERGE):
            for source in merge.value if isinstance(merge, SequenceNode) else [merge]:
                if isinstance(source, MappingNode) and not any(source is outer for outer in self._open):
                    pairs += self._merged(source, place)
                else:
                    self._complain(source, place, "<< needs a mapping to merge")
        self._open.pop()
        return pairs

    def _merged(self, source: MappingNode, place: FieldPath) -> Iterator[tuple[Node, Node, bool]]:
        self._visit(source, place)
        for key, value, _ in self._pairs(source, place):
            self._visits += 1
            yield key, value, True

    def _scalar(self, node: ScalarNode, place: FieldPath) -> Any:
        if node.style is None and _is_free(place) and (said := _BOOLEANS.get(node.value.lower())) is not None:
            return said
        try:
            value = _plain(node.value, node.tag.rpartition(":")[2])
        except ValueError as error:
            shown = repr(node.value[:_SHOWN])
            why = str(error) if isinstance(error, _Unfit) else "is not a number"
            hint = None if node.tag.endswith(":str") else "quote it if it is text"
            self._complain(node, place, f"{shown} {why}", hint)
            return None
        if isinstance(value, float) and _loses_text(node.value, value):
            self.document.reworded[place] = node.value
        return value

    def _complain(self, node: Node, place: FieldPath, message: str, hint: str | None = None) -> None:
        self.problems.append(self.document.problem_at(_position(node), place, message, hint))


class _Unfit(ValueError):
    """Nothing that is made of the spec could hold the value."""


def _plain(text: str, kind: str) -> Any:
    """The value of a scalar.

    Raises:
        ValueError: It says that it is a number and is none.
        _Unfit: It is too large a number, or no text.
    """
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        if len(text) > _SHOWN or abs(number := int(text.replace("_", ""), 0)) >= _MAX_WHOLE:
            raise _Unfit("is too large a number")
        return number
    if kind == "float":
        value = float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
        if math.isinf(value) and "inf" not in text.lower():
            raise _Unfit("is too large a number")
        return value
    return _whole(text)


def _loses_text(text: str, number: float) -> bool:
    """Return whether a script that gets the number as text misses something: a zero of a version, an exponent, digits.

    A small number may print with or without its exponent: 1e-4 is 0.0001 to every reader.
    """
    plain = text.lower().lstrip("+-")
    if "e-" in plain or not any(map(str.isdigit, plain)):
        return False
    whole, _, fraction = plain.partition(".")
    return f"{whole or '0'}.{fraction or '0'}" != str(abs(number))


def _whole(text: str) -> str:
    """The text, with characters whole that were written as two escapes, as JSON does.

    Raises:
        _Unfit: It holds half of one, or the character NUL.
    """
    if "\0" in text:
        raise _Unfit("contains the character NUL")
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise _Unfit("contains half a character") from error


def _position(node: Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1
