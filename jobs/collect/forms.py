"""Forms of output: the spec's own patterns, or the common forms."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dscampaign.jobs.shared.user_pattern import UserPattern

from .epochs import Epochs
from .lines import Line, Reading, epoch_alone, is_dict, logged, read_line

WAITING: Final = 1000
"""At most so many lines of the Trainer wait for their step."""
PATTERN_S: Final = 2.0
"""Of processor time, for one pattern on one chunk of output: others need a hundredth of it."""
SHOWN: Final = 80
"""Characters of a line, for people."""

_ANEW: Final = (
    "the script seems to count steps anew in each epoch, and how many an epoch has is not known: lines such as "
    '"{example}" are not read. Let it print the step of the whole training'
)
_TRAINERS_BAR: Final = re.compile(r"^\s*\d+%\|[^|]*\| *(\d+)/(\d+) \[")


class Form:
    """A form of lines with metrics."""

    description = ""
    """The source of the metrics, for people."""

    def take(self, texts: Iterable[str]) -> Iterator[tuple[int, Line]]:
        """Yield the metrics of further lines of the output, each with the index of the text that completes it."""
        raise NotImplementedError

    def settled(self, lines: list[Line], *, over: bool) -> list[Line]:  # noqa: ARG002 - most are at once
        """Return the lines, taken now and before, that no later line changes.

        Args:
            lines: taken now.
            over: whether nothing follows.
        """
        return lines

    def remarks(self) -> list[str]:
        """Return remarks for people, each once."""
        return []


class Patterns(Form):
    """The spec's own: a regular expression with one group for each metric, and one for the step."""

    description = "the script's output, by the spec's patterns"

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = dict(patterns)
        self._step: int | None = None
        self._given_up: list[str] = []

    def take(self, texts: Iterable[str]) -> Iterator[tuple[int, Line]]:
        """A value belongs to the step on its line, or else to the last step before."""
        patterns = {name: UserPattern(pattern, PATTERN_S) for name, pattern in self._patterns.items()}
        for index, text in enumerate(texts):
            numbers = {name: _number(pattern.find(text)) for name, pattern in patterns.items()}
            values = {name: number for name, number in numbers.items() if number is not None}
            if math.isfinite(step := values.pop("step", math.nan)):
                self._step = int(step)
            if "step_time_ms" in values:
                values["step_time"] = values.pop("step_time_ms") / 1e3
            if values and self._step is not None:
                yield index, {"step": self._step, **values}
        for name, pattern in patterns.items():
            if pattern.given_up:
                del self._patterns[name]
                self._given_up.append(name)

    def remarks(self) -> list[str]:
        """Return the patterns that were given up."""
        names, self._given_up = self._given_up, []
        return [f"metrics.{name} takes too long on what the script prints, and is given up" for name in names]


class CommonForms(Form):
    """`iter 10: loss 4.2, time 20.1ms` and the like; the Hugging Face Trainer's lines between its progress bars."""

    def __init__(self) -> None:
        self._waiting: list[Line] = []
        self._total = 0
        self._epoch: int | None = None
        self._taken: list[Reading] = []
        self._epochs = Epochs()
        self._remarked = False

    def take(self, texts: Iterable[str]) -> Iterator[tuple[int, Line]]:
        """The Trainer's own lines lack the step: its bar comes again after each, and has it."""
        for index, text in enumerate(texts):
            readings: list[Reading] = []
            if is_dict(text):
                if (values := logged(text)) and len(self._waiting) < WAITING:
                    self.description = self.description or "what the Trainer prints"
                    self._waiting.append(values)
            elif self._waiting and (bar := _TRAINERS_BAR.match(text)):
                readings = [Reading(line, text) for line in self._placed(int(bar[1]), int(bar[2]))]
            elif (epoch := epoch_alone(text)) is not None:
                self._epoch = epoch
            elif "loss" in text.lower() and (reading := read_line(text)):
                if reading.epoch is None and not reading.over_all:
                    reading.epoch = self._epoch
                self.description = self.description or f'lines of the output such as "{text.strip()[:SHOWN]}"'
                readings = [reading]
            self._taken += readings
            yield from ((index, reading.line) for reading in readings)

    def settled(self, lines: list[Line], *, over: bool) -> list[Line]:  # noqa: ARG002 - `_taken` has them too
        """Of the turns of a bar at one step the last: those before may still have the values of the step before."""
        ready: list[Reading] = []
        for reading in self._taken:
            if ready and reading.is_turn_after(ready[-1]):
                ready.pop()
            ready.append(reading)
        self._taken = [ready.pop()] if ready and ready[-1].bar and not over else []
        counted = [one for reading in ready for one in self._epochs.take(reading)]
        return [reading.line for reading in counted + (self._epochs.finish() if over else [])]

    def remarks(self) -> list[str]:
        """Return that steps begin again with each epoch and cannot be counted on."""
        if self._remarked or not self._epochs.example:
            return []
        self._remarked = True
        return [_ANEW.format(example=self._epochs.example[:SHOWN])]

    def _placed(self, step: int, total: int) -> list[Line]:
        """Return the lines that waited for the training's bar; an evaluation has a bar of its own, after the first."""
        if not self._total and any("loss" in values for values in self._waiting):
            self._total = total
        if total != self._total:
            return []
        waiting, self._waiting = self._waiting, []
        return [{"step": step, **values} for values in waiting]


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None
