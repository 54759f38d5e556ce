"""The one error type that a user sees, and the exit codes of the command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import Final, Self, TypeVar

from dscampaign.db.errors import StoreError


class ExitCode(IntEnum):
    """The exit codes of the command, each with its `meaning`."""

    meaning: str

    OK = 0, "Done."
    FAILED = 1, "A run or an operation failed, or `compare --fail-if` shows a regression."
    USAGE = 2, "Wrong usage or a wrong spec: something has to be changed first."
    UNREACHABLE = 3, "Slurm or the store did not answer. Nothing is lost; trying again is safe."
    UNDECIDED = 4, "`compare --fail-if` shows neither a regression nor its absence: the repeats are too few."
    UNSETTLED = 8, "`reconcile` did its pass, and something is left to do."
    BUG = 70, "A bug of this program, with its traceback."
    INTERRUPTED = 130, "Interrupted. Jobs go on."

    def __new__(cls, code: int, meaning: str) -> Self:
        """Make a member of its number and its meaning."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_UNDECIDED, EXIT_UNSETTLED, EXIT_BUG, EXIT_INTERRUPTED = (
    ExitCode
)


class UserError(Exception):
    """An error that the user can fix: the problem without a trailing period, the remedy, and the exit code."""

    exit_code = EXIT_USAGE

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # shown in tracebacks, as of `dscampaign.load`


class Unreachable(UserError):
    """Slurm or the store did not respond; nothing changed, and it is safe to retry.

    A watch reports each `about` once; by default it is the message.
    """

    exit_code = EXIT_UNREACHABLE

    def __init__(self, message: str, hint: str | None = None, *, about: str = "") -> None:
        super().__init__(message, hint)
        self.about = about or message


_EXTRAS: Final = {
    **dict.fromkeys(("altair", "jinja2", "markupsafe", "numpy", "vl_convert"), "report"),
    **dict.fromkeys(("rich", "starlette", "textual", "uvicorn"), "live"),
    **dict.fromkeys(("optuna", "sklearn"), "search"),
    **dict.fromkeys(("pandas", "pyarrow"), "pandas"),
    "apprise": "notify",
    "mcp": "mcp",
}
"""By module, the extra that installs it."""


@contextmanager
def needs_the_extra() -> Iterator[None]:
    """Name the extra whose package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in _EXTRAS:
            raise
        hint = f"`pip install 'dscampaign[{_EXTRAS[module]}]'`"
        raise UserError(f"this needs {module}, which is not installed", hint) from error


def exit_code_of(error: Exception) -> ExitCode:
    """Return the exit code of a command that this error ends."""
    match error:
        case UserError():
            return error.exit_code
        case StoreError():
            return ExitCode.UNREACHABLE if error.retryable else ExitCode.USAGE
        case OSError():
            return ExitCode.FAILED
    return ExitCode.BUG


FieldPath = tuple[str | int, ...]
"""Path to a value in a spec: keys and list indices."""


@dataclass(frozen=True)
class Finding:
    """An error in a spec's values, before its line is known."""

    places: tuple[FieldPath, ...]  # Fields that may be wrong, the likeliest first
    message: str  # The problem
    hint: str | None = None  # The text to write instead
    at_key: bool = False  # The field's name is wrong, not its value

    @classmethod
    def at(cls, places: str, message: str, hint: str | None = None) -> Self:
        """Return a finding at fields by their dotted paths: `train.lr train`."""
        return cls(tuple(tuple(path.split(".")) for path in places.split()), message, hint)


class InvalidSpec(UserError):
    """A spec with contradictory values; `findings` are the problems, at least one."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(f"{dotted(f.places[0])}: {f.message}" for f in findings))


@dataclass(frozen=True)
class Problem:
    """An error in a spec, with its line."""

    path: str  # The spec's file name as the user gave it
    line: int  # Line of the value, 1-based; 0 if the error has no line
    column: int  # Column of the value, 1-based
    field: str  # Dotted path of the field, empty for the whole file
    message: str  # The problem
    hint: str | None = None  # The text to write instead
    source_line: str | None = None  # The text of that line, for the caret

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        subject = f"{self.field}: " if self.field else ""
        lines = [f"{place}: error: {subject}{self.message}"]
        if self.source_line is not None and len(self.source_line) <= 76:  # a terminal would wrap a longer line
            before = re.sub(r"[^\t]", " ", self.source_line[: max(self.column - 1, 0)])
            lines += [f"    {self.source_line}", f"    {before}^"]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class SpecError(UserError):
    """All errors in a spec, at least one, in the order of its lines."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(problems, key=lambda p: (p.line, p.column, p.field))
        super().__init__("\n".join(str(problem) for problem in self.problems))


_Else = TypeVar("_Else", str, str | None)


def did_you_mean(word: str, names: Iterable[str], otherwise: _Else, cutoff: float = 0.7) -> str | _Else:
    """A hint with the nearest known name, or else another hint."""
    near = nearest(word, names, cutoff)
    return f'did you mean "{near}"?' if near else otherwise


def nearest(word: str, names: Iterable[str], cutoff: float = 0.7) -> str | None:
    """Return the likely meaning of a misspelt name, in any case; short names are soon alike by chance."""
    plain = {name.lower(): name for name in names}
    matches = get_close_matches(word.lower(), plain, 1, max(cutoff, 0.75 if len(word) <= 4 else 0))
    return plain[matches[0]] if matches else None


def concerns(finding: Finding, fields: Iterable[FieldPath]) -> bool:
    """Return whether a finding is about a field, or a part of it, that another finding is about."""
    return any(place[: len(field)] == field for field in fields for place in finding.places)


def dotted(place: FieldPath) -> str:
    """A path as text: `matrix.zero_stage[1]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
