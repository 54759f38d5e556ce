"""Forms of output: the spec's own patterns, or what is common."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dscampaign.jobs.shared.user_pattern import UserPattern

from .epochs import Epochs
from .lines import Line, Reading, epoch_alone, is_dict, logged, read_line

WAITING: Final = 1000
"""Lines of the Trainer at most that wait for their step."""
PATTERN_S: Final = 2.0
"""Of processor time, for one pattern on what is read at once: others need a hundredth of it."""
SHOWN: Final = 80
"""Characters of a line, for people."""

_ANEW: Final = (
    "the script seems to count steps anew in each epoch, and how many an epoch has is not known: lines such as "
    '"{example}" are not read. Let it print the step of the whole training, or give metrics: in the spec'
)
_TRAINERS_BAR: Final = re.compile(r"^\s*\d+%\|[^|]*\| *(\d+)/(\d+) \[")


class Form(ABC):
    """A form of lines that say metrics."""

    said = ""
    """Where the metrics are read from, for people."""

    @abstractmethod
    def take(self, texts: Iterable[str]) -> Iterator[Line]:
        """What further lines of the output say, each as soon as the text that completes it is taken."""

    def settled(self, lines: list[Line], *, over: bool) -> list[Line]:  # noqa: ARG002 - most are at once
        """Of what was taken, now and before, the lines that no later one changes.

        Args:
            lines: what was taken now.
            over: whether nothing follows.
        """
        return lines

    def remarks(self) -> list[str]:
        """What people should know, each once."""
        return []


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

    def remarks(self) -> list[str]:
        """Of patterns that are given up."""
        names, self.given_up = self.given_up, []
        return [f"metrics.{name} takes too long on what the script prints, and is given up" for name in names]


class CommonForms(Form):
    """`iter 10: loss 4.2, time 20.1ms` and the like; what the Hugging Face Trainer prints between its progress bars."""

    def __init__(self) -> None:
        self._waiting: list[Line] = []
        self._total = 0
        self._epoch: int | None = None
        self._taken: list[Reading] = []
        self._epochs = Epochs()
        self._remarked = False

    def take(self, texts: Iterable[str]) -> Iterator[Line]:
        """The Trainer's own lines lack the step: its bar comes again after each, and has it."""
        for text in texts:
            if is_dict(text):
                if (values := logged(text)) and len(self._waiting) < WAITING:
                    self.said = self.said or "what the Trainer prints"
                    self._waiting.append(values)
            elif self._waiting and (bar := _TRAINERS_BAR.match(text)):
                for line in self._placed(int(bar[1]), int(bar[2])):
                    yield self._take(Reading(line, text))
            elif (epoch := epoch_alone(text)) is not None:
                self._epoch = epoch
            elif "loss" in text.lower() and (read := read_line(text)):
                if read.epoch is None and not read.over_all:
                    read.epoch = self._epoch
                self.said = self.said or f'lines of the output such as "{text.strip()[:SHOWN]}"'
                yield self._take(read)

    def settled(self, lines: list[Line], *, over: bool) -> list[Line]:  # noqa: ARG002 - `_taken` says more of them
        """Of the turns of a bar at one step the last: those before may still have the values of the step before."""
        ready: list[Reading] = []
        for read in self._taken:
            if ready and ready[-1].bar and read.bar and (ready[-1].step, ready[-1].epoch) == (read.step, read.epoch):
                ready.pop()
            ready.append(read)
        self._taken = [ready.pop()] if ready and ready[-1].bar and not over else []
        counted = [one for read in ready for one in self._epochs.take(read)] + (self._epochs.finish() if over else [])
        return [read.line for read in counted]

    def remarks(self) -> list[str]:
        """That steps begin again with each epoch and cannot be counted on."""
        if self._remarked or not self._epochs.example:
            return []
        self._remarked = True
        return [_ANEW.format(example=self._epochs.example[:SHOWN])]

    def _take(self, read: Reading) -> Line:
        self._taken.append(read)
        return read.line

    def _placed(self, step: int, total: int) -> Iterator[Line]:
        """The lines that waited for the bar of the training; an evaluation has one of its own, after the first."""
        if not self._total and any("loss" in values for values in self._waiting):
            self._total = total
        if total == self._total:
            yield from ({"step": step, **values} for values in self._waiting)
            self._waiting = []


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
