"""Specs as YAML 1.2, with the line and column of every key and value.

Only true and false are truth values; times, dates and numbers with a leading zero are text; `1e-4` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver

from dscampaign.orchestrator.errors import FieldPath, Finding, InvalidSpec, Problem, SpecError, UserError, dotted
from dscampaign.orchestrator.user_files import content_of

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
    """A YAML document in plain values, with the nodes of its text, and overrides of the command line."""

    data: dict[str, Any]
    filename: str
    lines: tuple[str, ...]
    root: Any = None
    overridden: dict[FieldPath, str] = field(default_factory=dict)

    def position(self, place: FieldPath, *, at_key: bool = False) -> Position:
        """Return the position of a value or its key, or of the closest thing around it that is in the text."""
        nodes = self._nodes(place)
        key, value = nodes[-1] if nodes else (self.root, self.root)
        mark = (key if at_key or len(nodes) < len(place) else value).start_mark
        return mark.line + 1, mark.column + 1

    def problem(self, finding: Finding) -> Problem:
        """Return a finding with its line: at the first of its places that the text, or `--set`, has."""
        texts = {p: text for p in finding.places for path, text in self.overridden.items() if p[: len(path)] == path}
        in_text = (p for p in finding.places if p in texts or len(self._nodes(p)) == len(p))
        if (place := next(in_text, finding.places[0])) in texts:
            return Problem(f"--set {texts[place]}", 0, 0, dotted(place), finding.message, finding.hint)
        position = self.position(place, at_key=finding.at_key)
        return self.problem_at(position, place, finding.message, finding.hint)

    def problem_at(self, position: Position, place: FieldPath, message: str, hint: str | None = None) -> Problem:
        """Return a problem with the text of its line."""
        line, column = position
        source_line = self.lines[line - 1] if 0 < line <= len(self.lines) else None
        return Problem(self.filename, line, column, dotted(place), message, hint, source_line)

    def _nodes(self, place: FieldPath) -> list[tuple[Any, Any]]:
        """Return key and value of each part of a place, as far as the text has it."""
        nodes: list[tuple[Any, Any]] = []
        node = self.root
        for part in place:
            if isinstance(node, MappingNode):
                names = (part, str(part).replace("_", "-"))
                pair = next(((key, value) for key, value in reversed(node.value) if key.value in names), None)
            else:
                items = node.value if isinstance(node, SequenceNode) else []
                pair = (items[part],) * 2 if isinstance(part, int) and part < len(items) else None
            if pair is None:
                break
            nodes.append(pair)
            node = pair[1]
        return nodes


def read_text(path: Path) -> str:
    """Return the text of a spec; raise UserError if it cannot be read, SpecError if it is not UTF-8."""
    try:
        content = content_of(path)
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
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Resolver = _Resolver
    try:
        root = yaml.compose(text)
        content = None if root is None else yaml.constructor.construct_document(root)
        if not isinstance(content, dict):
            message = "the file is empty" if content is None else "expected fields with their values"
            raise SpecError([document.problem_at((1, 1), (), message, "see `campaign init`")])
        document = replace(document, root=root)
        return replace(document, data=_plain(content, (), iter(range(_MAX_VALUES))))
    except SpecError:
        raise
    except InvalidSpec as error:
        raise SpecError([document.problem(finding) for finding in error.findings]) from None
    except MarkedYAMLError as error:
        raise SpecError([_syntax_problem(document, error)]) from error
    except Exception as error:  # ruamel raises many kinds for what nobody writes, such as an alias within its anchor
        raise SpecError([document.problem_at((1, 1), (), f"not valid YAML: {str(error)[:_SHOWN]}")]) from error


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


def _plain(value: Any, place: FieldPath, left: Iterator[int]) -> Any:
    """Return a value in mappings by text, lists, text and numbers, of no more values than `left`; raise InvalidSpec."""
    message, hint = "", None
    if next(left, None) is None or len(place) > _MAX_DEPTH:
        message = "has too many values, or is nested too deeply"
    elif isinstance(value, dict):
        return {(name := _plain(_key(key), place, left)): _plain(value[key], (*place, name), left) for key in value}
    elif isinstance(value, list):
        return [_plain(item, (*place, index), left) for index, item in enumerate(value)]
    elif isinstance(value, tuple):
        message = "a key must be text"
    elif isinstance(value, int) and abs(value) >= _MAX_WHOLE:
        message, hint = "is too large a number", "quote it if it is text"
    elif not (value is None or isinstance(value, int | float)) and _UNSTORABLE.search(value := str(value)):
        message = "contains half a character, or NUL"
    if message:
        raise InvalidSpec([Finding((place,), message, hint)])
    return value


def _key(key: Any) -> Any:
    return key if isinstance(key, tuple) else str(key).lower() if isinstance(key, bool) else str(key)


def written(value: Any, *, flow: bool = False) -> str:
    """Return a value as YAML that `load` reads as the same; `flow`: on one line."""
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Representer = _Resolver, _Representer
    yaml.default_flow_style, yaml.width, yaml.allow_unicode = flow, _MAX_WHOLE, True
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
