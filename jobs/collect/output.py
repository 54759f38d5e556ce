"""Metrics from what a script prints: by the patterns of the spec, or from lines whose form is common."""

from __future__ import annotations

import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ...db.regular_files import open_regular
from ..shared.user_pattern import UserPattern
from .metric_names import metric_name

Line = dict[str, float]
"""Of the spool: `step`, and values by name."""

LINE_LIMIT: Final = 1000
SEEN_WITHIN_S: Final = 0.25
"""Lines seen later than this after they may have been printed have no time."""
PATTERN_S: Final = 2.0
"""Of processor time, for one pattern on what is read at once: others need a hundredth of it."""

_NUMBER: Final = r"[-+]?(?:nan|inf(?:inity)?|\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)"
_SEPARATOR: Final = r"[\s:=\"']*"
_STEP: Final = re.compile(
    rf"(?<![a-z])(?:global[_ ]?step|step|iteration|iter)s?{_SEPARATOR}[\[(#]?(\d+)", re.IGNORECASE
)
_VALUE: Final = re.compile(
    rf"(?<![a-z])((?:[a-z]+[ _/.-])?loss|lr|learning[ _]rate|grad[ _]?norm){_SEPARATOR}({_NUMBER})(?![\w/])",
    re.IGNORECASE,
)
_MS: Final = re.compile(r"(?<![a-z])(?:step[ _])?(?:time|dt)[\s:=]*(\d+(?:\.\d+)?) ?ms\b", re.IGNORECASE)
_DICT: Final = re.compile(r"^\{'[\w/.-]+': .*\}$")
_ITEM: Final = re.compile(rf"'([\w/.-]+)': '?({_NUMBER})'?[,}}]", re.IGNORECASE)
_ESCAPE: Final = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_LINE_END: Final = re.compile(rb"[\r\n]+")
_BAR: Final = re.compile(r"^\s*\d+%\|[^|]*\| *(\d+)/(\d+) \[")


class Form(ABC):
    """A form of lines that say metrics."""

    said = ""
    """Where the metrics are read from, for people."""

    @abstractmethod
    def take(self, texts: Iterable[str]) -> Iterator[Line]:
        """What further lines of the output say, each as soon as the text that completes it is taken."""


class Patterns(Form):
    """The spec's own: a regular expression with one group for each metric, and one for the step.

    Attributes:
        given_up: names whose pattern took too long.
    """

    said = "the script's output, by the spec's patterns"

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = dict(patterns)
        self._step: int | None = None
        self.given_up: list[str] = []

    def take(self, texts: Iterable[str]) -> Iterator[Line]:
        """A value belongs to the step of its line, or else to the last one before."""
        patterns = {name: UserPattern(pattern, PATTERN_S) for name, pattern in self._patterns.items()}
        for text in texts:
            said = {
                name: value for name, pattern in patterns.items() if (value := _number(pattern.find(text))) is not None
            }
            if math.isfinite(step := said.pop("step", math.nan)):
                self._step = int(step)
            if said and self._step is not None:
                yield {"step": self._step, **_in_seconds(said)}
        self.given_up += [name for name, pattern in patterns.items() if pattern.given_up]
        for name in self.given_up:
            self._patterns.pop(name, None)


class CommonForms(Form):
    """`iter 10: loss 4.2, time 20.1ms` and the like; what the Hugging Face Trainer prints between its progress bars."""

    def __init__(self) -> None:
        self._waiting: list[Line] = []
        self._total = 0

    def take(self, texts: Iterable[str]) -> Iterator[Line]:
        """The Trainer's own lines lack the step: its bar comes again after each, and has it."""
        for text in texts:
            if _DICT.match(text):
                if (values := _logged(text)) and len(self._waiting) < LINE_LIMIT:
                    self.said = self.said or "what the Trainer prints"
                    self._waiting.append(values)
            elif self._waiting and (bar := _BAR.match(text)):
                yield from self._placed(int(bar[1]), int(bar[2]))
            elif "loss" in text.lower() and (line := _read(text)):
                self.said = self.said or f'lines of the output such as "{text.strip()[:80]}"'
                yield line

    def _placed(self, step: int, total: int) -> Iterator[Line]:
        """The lines that waited for the bar of the training; an evaluation has one of its own, after the first."""
        if not self._total and any("loss" in values for values in self._waiting):
            self._total = total
        if total == self._total:
            yield from ({"step": step, **values} for values in self._waiting)
            self._waiting = []


class Output:
    """Reads on in the output of the first rank, and knows when it was printed.

    The file only shows what was printed between two looks at its size. Of the lines that came between two, only the
    last is known to be of then: a script with a buffer prints many at once, the last of which has just been made.
    """

    def __init__(self, folder: Path, form: Form) -> None:
        self.form = form
        self._folder = folder
        self._path: Path | None = None
        self._offset, self._rest = 0, b""
        self._sizes: list[tuple[int, float]] = []
        self._noted_s = -math.inf

    def note(self) -> None:
        """Looks how much was printed by now; cheap, to be called several times a second.

        Raises:
            OSError: it cannot be seen.
        """
        if self._path is None:
            return
        size, now_s = self._path.stat().st_size, time.monotonic()
        if size > (self._sizes[-1][0] if self._sizes else self._offset):
            known = now_s - self._noted_s <= SEEN_WITHIN_S
            self._sizes.append((size, time.time() if known else math.nan))
        self._noted_s = now_s

    def read(self, max_bytes: int) -> tuple[list[Line], bool]:
        """What the next lines say, and whether there may be more; a progress bar's turns count as lines.

        Raises:
            OSError: it cannot be read.
        """
        self._path = self._path or next(iter(sorted(self._folder.glob("*_rank0.log"))), None)
        if self._path is None:
            return [], False
        self.note()
        with open_regular(self._path) as file:
            file.seek(self._offset)
            chunk = file.read(min(max_bytes, self._sizes[-1][0] - self._offset)) if self._sizes else b""
        taken = list(self._timed(chunk or b""))
        return taken, len(chunk or b"") == max_bytes

    def _timed(self, chunk: bytes) -> Iterator[Line]:
        """What the lines in the next bytes say, the last one of each look with its time."""
        ends = [self._offset + found.end() for found in _LINE_END.finditer(chunk)]
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        self._rest = self._rest[:LINE_LIMIT]
        self._offset += len(chunk)
        at = 0

        def texts() -> Iterator[str]:
            nonlocal at
            for line, end in zip(lines, ends, strict=True):
                while self._sizes[at][0] < end:
                    at += 1
                yield _ESCAPE.sub(b"", line[:LINE_LIMIT]).decode(errors="replace")

        last: dict[int, Line] = {}
        for said in self.form.take(texts()):
            last[at] = said
            yield said
        for look, said in last.items():
            size, ts_s = self._sizes[look]
            if size <= self._offset and math.isfinite(ts_s):
                said["ts"] = ts_s
        self._sizes = [look for look in self._sizes if look[0] > self._offset]


def _read(text: str) -> Line | None:
    """A line with a step and a loss."""
    step = _STEP.search(text)
    if step is None:
        return None
    values: Line = {}
    for name, number in _VALUE.findall(text):
        values.setdefault(metric_name(name), float(number))
    if not {"loss", "eval_loss"} & values.keys():
        return None
    if took := _MS.search(text):
        values["step_time"] = float(took[1]) / 1e3
    return {"step": int(step[1]), **values}


def _logged(text: str) -> Line:
    """What the Trainer logs. Its summary of the whole training stands at the last step, and has no loss of that."""
    values = {name: float(number) for name, number in _ITEM.findall(text)}
    if "train_runtime" in values:
        return values
    named = {metric_name(name): value for name, value in values.items()}
    return named if {"loss", "eval_loss"} & named.keys() else {}


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None


def _in_seconds(values: Line) -> Line:
    """`step_time_ms` is the step time, as scripts print it."""
    return {
        name.removesuffix("_ms"): value / 1e3 if name == "step_time_ms" else value for name, value in values.items()
    }
