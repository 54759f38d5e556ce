"""PyYAML's syntax errors in the words of a spec: which line is wrong, and what to write there. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from .odd_characters import in_line

_NO_SPACE: Final = re.compile(r"\s*(?:- +)?[A-Za-z_][\w.-]*(:)[^\s:/]")
_TWO_WORDS: Final = re.compile(r"\s*([A-Za-z_][\w.-]*)\s+([^\s:]+)\s*")
_BRACES: Final = re.compile(r"""[^\s,\[\]{}'"]*(?:\{[\w.]+\}[^\s,\[\]{}'"]*)+""")
_SPACE: Final = "put a space after the colon"
_QUOTE: Final = "put the text in quotes"
_ALIKE: Final = "indent the fields of one section alike"
_WORDS: Final = {
    "sequence entries are not allowed here": ("a list cannot begin here", "write [A, B], or each item on its own line"),
    "found another document": ("a second document begins here", "remove the `---`"),
    "found unknown escape character": ("a backslash in double quotes begins an escape", "use single quotes"),
    "expected escape sequence": ("a backslash in double quotes begins an escape", "use single quotes"),
    "found undefined alias": ("a * in front of a word stands for what is marked with &", _QUOTE),
    "'\\t' that cannot start any token": ("a tab cannot stand here", "use spaces"),
    "that cannot start any token": ("text cannot begin with this character", _QUOTE),
    "expected alphabetic or numeric": ("* and & in front of a word have a meaning of their own", _QUOTE),
    "chomping or indentation": ("text cannot begin with | or >", _QUOTE),
    "expected a comment or a line break": ("text cannot begin with | or >", _QUOTE),
    "expected the node content": ("a value is missing here", None),
}
"""By a part of PyYAML's message: what is wrong, and what to write."""


@dataclass(frozen=True)
class SyntaxMistake:
    """What is wrong in a document, and where: line and column count from 1, 0 stands for no line."""

    line: int
    column: int
    message: str
    hint: str | None = None


def explain(error: yaml.YAMLError, text: str) -> SyntaxMistake:
    """Says what is wrong and where; what is not known, in PyYAML's words."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
        return SyntaxMistake(line, column, f"holds the control character {error.character:#04x}", "remove it")
    mark, opened = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return SyntaxMistake(0, 0, f"not valid YAML: {problem}", "save it as UTF-8 text")
    place = _Place(text.splitlines(), mark, opened or mark)
    found = place.braces(problem) or place.mistake(problem, getattr(error, "context", None) or "")
    return place.odd(found.line - 1) or found


@dataclass(frozen=True)
class _Place:
    """Where PyYAML stopped, and where what it was reading began."""

    lines: Sequence[str]
    mark: yaml.Mark
    opened: yaml.Mark

    def braces(self, problem: str) -> SyntaxMistake | None:
        """That PyYAML stopped at a word with a placeholder in it: `${HOME}`, `--lr={lr}`."""
        found = _BRACES.finditer(self._line(self.mark.line)) if "expected" in problem else ()
        word = next((word for word in found if word.start() <= self.mark.column < word.end()), None)
        hint = f"quote it: '{word[0]}'" if word else None
        return self._at(self.mark.line, word.start(), "braces begin a mapping here", hint) if word else None

    def odd(self, line: int) -> SyntaxMistake | None:
        """A character on the line, or on one beside it, that only looks as if it were YAML's."""
        for number in (line, line + 1, line - 1):
            if found := in_line(self._line(number)):
                return self._at(number, found.column, found.message, found.hint)
        return None

    def mistake(self, problem: str, context: str) -> SyntaxMistake:
        if "\t" in _indentation(self._line(self.mark.line)):
            return self._at(self.mark.line, 0, "is indented with a tab", "indent with spaces")
        if "quoted scalar" in context and "end of stream" in problem:
            return self._at(self.opened.line, self.opened.column, "this quote is never closed", "close it")
        if problem.startswith(("expected ',' or", "did not find expected ','")) or "end of stream" in problem:
            return self._at(self.opened.line, self.opened.column, "this bracket is not closed, or a comma is missing")
        if problem.startswith(("mapping values are not allowed", "could not find expected ':'")):
            return self._colon(self.mark if problem.startswith("mapping") else self.opened)
        if problem.startswith(("expected <block end>", "expected '<document start>'")):
            return self._block_end()
        words = next((words for part, words in _WORDS.items() if part in problem), None)
        message, hint = words or (f"not valid YAML: {problem}", None)
        return self._at(self.mark.line, self.mark.column, message, hint)

    def _colon(self, mark: yaml.Mark) -> SyntaxMistake:
        """A colon where none can be, or none where one should be: the line before is often to blame."""
        line, before = self._line(mark.line), self._above(mark.line)
        for number in (mark.line, before):
            if found := _NO_SPACE.match(self._line(number)):
                return self._at(number, found.start(1), "a space is missing after the colon", _SPACE)
        own = line[: mark.column].strip()
        if ": " in own or own.endswith(":"):
            return self._at(mark.line, mark.column, "a second colon on one line", f"{_QUOTE}, or start a new line")
        if before >= 0 and len(_indentation(line)) > len(_indentation(self._line(before))):
            message = f"is indented further than line {before + 1}, which has a value of its own"
            return self._at(mark.line, len(_indentation(line)), message, _ALIKE)
        return self._no_colon(mark.line if ":" not in line or before < 0 else before)

    def _no_colon(self, line: int) -> SyntaxMistake:
        """A line that is neither a field nor part of a value."""
        found = _TWO_WORDS.fullmatch(self._line(line).partition(" #")[0])
        hint = f"write `{found[1]}: {found[2]}`" if found else "write `field: value`"
        message = "expected a field and its value: a colon is missing" if found else "expected a field and its value"
        return self._at(line, len(_indentation(self._line(line))), message, hint)

    def _block_end(self) -> SyntaxMistake:
        """Something that belongs to nothing around it: mostly for its indentation."""
        line, column, above = self.mark.line, self.mark.column, self._above(self.mark.line)
        text = self._line(line)
        found = text[column : column + 1]
        if found in ("}", "]", ",", ":"):
            return self._at(line, column, f"unexpected {found}", "remove it")
        if column == (own := len(_indentation(text))) and above >= 0:
            if own != len(_indentation(self._line(above))):
                return self._at(line, own, f"is indented differently from line {above + 1}", _ALIKE)
            if not any(one.lstrip().startswith("- ") for one in (text, self._line(above))):
                return self._no_colon(above)
            return self._at(line, own, "a list and fields stand side by side", "indent what belongs to the field above")
        quote = text[:column].rstrip()[-1:]
        if quote in ("'", '"') and text[:column].count(quote) % 2:  # which line 1 opened, and an apostrophe closed
            first = next((n for n in range(line - 1, -1, -1) if self._line(n).count(quote) % 2), line)
            return self._at(first, self._line(first).rfind(quote), "this quote is not closed on its line", "close it")
        return self._at(line, column, "unexpected text after the value", _QUOTE)

    def _above(self, line: int) -> int:
        """The line above that is neither empty nor a comment, -1 for none."""
        full = (n for n in range(line - 1, -1, -1) if self._line(n).strip() and self._line(n).strip()[0] != "#")
        return next(full, -1)

    def _line(self, number: int) -> str:
        return self.lines[number] if 0 <= number < len(self.lines) else ""

    def _at(self, line: int, column: int, message: str, hint: str | None = None) -> SyntaxMistake:
        return SyntaxMistake(line + 1, column + 1, message, hint)


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
