"""The output of the first rank as a source of metrics, with the times at which its lines were printed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from dscampaign.files.private_files import open_regular
from dscampaign.jobs.shared.user_pattern import UserPattern

from .formats import (
    EPOCH,
    EPOCH_ALONE,
    EPOCH_OF_ALL,
    LOSS,
    LOSSES,
    OF_OTHER_RANK,
    Line,
    Reading,
    in_parts,
    logged,
    read_below,
    read_heading,
    read_line,
    read_stepless,
)
from .records import LINE_LIMIT, HeldOutBlocks, Records
from .sources import CHUNK_BYTES, MetricSource

SEEN_WITHIN_S: Final = 0.25  # lines seen later than this after they may have been printed have no time
WAITING_EPOCHS: Final = 100_000  # at most so many lines wait for the second epoch
WAITING: Final = 1000  # at most so many lines of the Trainer wait for their step
PATTERN_S: Final = 2.0  # of processor time, for a pattern on a chunk of output: most need a hundredth of it
SHOWN: Final = 80  # characters of a line, for people
_ESCAPE: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_LINE_END: Final = re.compile(rb"[\r\n]+")
_TRAINERS_BAR: Final = re.compile(r"^\s*\d+%\|[^|]*\| *(\d+)/(\d+) \[")


class Printed(MetricSource):
    """The output of the first rank. A turn of a progress bar counts as a line."""

    kind = "printed"
    within_s = SEEN_WITHIN_S

    def __init__(self, logs: Path, form: Patterns | CommonForms) -> None:
        self._logs, self._form = logs, form
        self._path: Path | None = None
        self._offset, self._rest = 0, b""
        self._at_end_s = -math.inf

    def read(self, *, last: bool = False) -> tuple[list[Line], bool]:
        """Return the metrics of the next lines.

        Of lines that came between two looks only the last has a known time: a script with a buffer prints many at once.
        """
        self._path = self._path or next(iter(sorted(self._logs.glob("*_rank0.log"))), None)
        if self._path is None:
            return [], False
        chunk = b""
        if self._path.stat().st_size > self._offset:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                chunk = file.read(CHUNK_BYTES) or b""
        more, now_s = len(chunk) == CHUNK_BYTES, time.monotonic()
        in_time = not more and now_s - self._at_end_s <= SEEN_WITHIN_S
        self._at_end_s = -math.inf if more else now_s
        self._offset += len(chunk)
        self.has_read = self._offset > 0
        *pieces, rest = _LINE_END.split(self._rest + chunk + b"\n" * (last and not more and self.ended_well))
        self._rest = rest[:LINE_LIMIT]
        texts = (_ESCAPE.sub(b"", piece[:LINE_LIMIT]).decode(errors="replace") for piece in pieces)
        lines = self._form.take(texts, time.time() if in_time else None, last=last and not more)
        self.description, self.remark = self._form.description, self._form.remark
        return lines, more


class Patterns:
    """The spec's own: a regular expression with a group for each metric, and for the step."""

    description = "the script's output, by the spec's patterns"

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns, self.remark = dict(patterns), ""
        self._step: int | None = None

    def take(self, texts: Iterable[str], ts_s: float | None = None, *, last: bool = False) -> list[Line]:  # noqa: ARG002
        """Return the metrics of further lines. A value belongs to the step on its line, or else to the last before."""
        patterns = {name: UserPattern(pattern, PATTERN_S) for name, pattern in self._patterns.items()}
        lines: list[Line] = []
        for text in texts:
            values = dict[str, float]()
            for name, pattern in patterns.items():
                if match := pattern.search(text):
                    with suppress(ValueError, AttributeError):  # no number, or a group that takes no part
                        values[name] = float(match[1].replace(",", ""))
            if math.isfinite(step := values.pop("step", math.nan)):
                self._step = int(step)
            if "step_time_ms" in values:
                values["step_time"] = values.pop("step_time_ms") / 1e3
            if values and self._step is not None:
                lines.append({"step": self._step, **values})
        for name in [name for name, pattern in patterns.items() if pattern.given_up]:
            del self._patterns[name]
            self.remark = f"metrics.{name} takes too long on the script's output, and is not used any more"
        return _stamped(lines, ts_s)


class CommonForms:
    """`iter 10: loss 4.2, time 20.1ms` and the like; the Hugging Face Trainer's lines between its progress bars.

    Args:
        run_steps: number of steps of the whole run.
        accumulates: a count may be of micro-batches.
        earlier: folders of the logs of earlier attempts: an attempt that resumes does not print the run's first epoch.
    """

    def __init__(
        self, run_steps: int | None = None, *, accumulates: bool = False, earlier: Iterable[Path] = ()
    ) -> None:
        self.description = ""
        self._run_steps, self._accumulates, self._earlier = run_steps, accumulates, [*earlier]
        self._waiting: list[Line] = []
        self._total = 0
        self._epoch: int | None = None
        self._of_epochs = (-1, -1)
        self._heading: Reading | None = None
        self._turn: list[Reading] = []
        self._before_turn: bool | None = None
        self._in_parts = False
        self.epochs = _Epochs(accumulates=accumulates)
        self._held_out: float | None = None
        self._newest: Reading | None = None
        self._mean: list[Reading] = []
        self._stepless: list[Reading] = []
        self._held_out_steps: list[Reading] = []
        self._whole_epochs: dict[int, Reading] = {}
        self._records, self._blocks = Records(), HeldOutBlocks(run_steps)

    @property
    def remark(self) -> str:
        """Return why lines are not read, with an example; "" if all are."""
        example = self.epochs.refused.strip()[:SHOWN]
        return example and (
            "the script seems to count steps anew in each epoch, of unknown length or in micro-batches: for example "
            f'"{example}" are not read. Let it print the step of the whole training'
        )

    def take(self, texts: Iterable[str], ts_s: float | None = None, *, last: bool = False) -> list[Line]:
        """Return the metrics of further lines that no later line changes. Arguments as of `Patterns.take`."""
        readings = [reading for text in self._records.joined(texts) for reading in self._read(text)]
        _stamped([reading.line for reading in readings], ts_s)
        if last and not self._newest and len(self._whole_epochs) == self._run_steps:
            readings += self._described([*self._whole_epochs.values()])
        ready = self._last_turns(readings + (self._placed_before(None) if last else []), last=last)
        settled = [counted for reading in ready for counted in self.epochs.take(reading)]
        return [reading.line for reading in settled + (self.epochs.finish() if last else [])]

    def _read(self, text: str) -> list[Reading]:
        """The Trainer's own lines lack the step: its bar comes again after each, and has it."""
        if LOSS.search(text) and OF_OTHER_RANK.search(text):
            return []
        if (values := logged(text)) is not None:
            if values and len(self._waiting) < WAITING:
                self.description = self.description or "the Trainer's output"
                self._waiting.append(values)
            return []
        if self._waiting and (bar := _TRAINERS_BAR.match(text)):
            return self._placed(text, int(bar[1]), int(bar[2]))
        if of_all := EPOCH_OF_ALL.search(text):
            self._of_epochs = int(of_all["step"].replace(",", "")), int(of_all["total"].replace(",", ""))
        self._blocks.look(text)
        if alone := EPOCH_ALONE.fullmatch(text):
            self._epoch = int(alone[1])
        elif reading := self._line(text):
            return self._described([*self._placed_before(reading), reading])
        elif LOSS.search(text) and not (self._blocks.inside and read_line(text, self._run_steps)):
            return self._without_step(text)
        return []

    def _placed(self, text: str, step: int, total: int) -> list[Reading]:
        """Return the lines that waited for the training's bar; an evaluation has a bar of its own, after the first."""
        if not self._total and any("loss" in values for values in self._waiting):
            self._total = total
        if total != self._total:
            return []
        waiting, self._waiting = self._waiting, []
        return [Reading({"step": step, **values}, text) for values in waiting]

    def _without_step(self, text: str) -> list[Reading]:
        """Return the metrics of an epoch, if the run's steps are epochs; the last values of each count."""
        (epoch, epochs), values = self._of_epochs, read_stepless(text)
        if newest := self._newest:
            held_out = read_line(text, self._run_steps, held_out=True)
            if held_out and held_out.total in (0, self._run_steps):
                self._held_out_steps.append(replace(newest, line=held_out.line, text=text, bar=False))
            elif "eval_loss" in values and "%|" not in text:
                line = {"step": newest.step, "eval_loss": values["eval_loss"]}
                self._stepless.append(replace(newest, line=line, text=text, bar=False))
        elif values and epochs and epochs == self._run_steps:
            return self._described([Reading({"step": epoch, **values}, text, bar=True)])
        elif values and epochs < 0 and (match := EPOCH.search(text)):
            reading = self._whole_epochs.setdefault(int(match[1]), Reading({"step": len(self._whole_epochs) + 1}, text))
            reading.line |= values
        return []

    def _described(self, readings: list[Reading]) -> list[Reading]:
        self.description = self.description or f'lines of the output, for example "{readings[-1].text.strip()[:SHOWN]}"'
        return readings

    def _placed_before(self, reading: Reading | None) -> list[Reading]:
        """Return what waited for the next step; None stands for the end.

        A training loss on a line with a validation loss is a mean, as of nanoGPT's evaluation, if another line has the
        loss of that step. Several validation losses without a step, or any with another step, may be of batches.
        """
        before, self._newest = self._newest, reading
        mean, waiting = self._mean, self._stepless or self._held_out_steps
        if reading:
            self._mean = []
            if {"loss", "eval_loss"} <= reading.line.keys() and not reading.bar:
                self._mean = [replace(reading, line={"step": reading.step, "loss": reading.line.pop("loss")})]
            elif before and before.step == reading.step and "loss" not in reading.line:
                self._mean = mean
            if before and before.step == reading.step:
                return []
        self._stepless, self._held_out_steps = [], []
        values = {(value.step, value.line.get("eval_loss")) for value in waiting}
        is_of_all = before and len(values) == 1 and waiting[0].step == before.step
        return [*mean, *(waiting[:1] if is_of_all else [])]

    def _line(self, text: str) -> Reading | None:
        if not text[:1].isspace():
            heading = read_heading(text, self._run_steps)
            self._heading = self._over_all(heading) if heading and not self._blocks.has(heading) else None
        elif self._heading and (values := read_below(text)):
            return replace(self._heading, line={**self._heading.line, **values}, text=text)
        if not LOSS.search(text):
            return None
        read = read_line(text, self._run_steps, self._epoch)
        self._in_parts = self._in_parts or (read is not None and in_parts(text))
        in_part = read and read.iteration and self._in_parts
        of_block = read and "eval_loss" not in read.line and self._blocks.has(read)
        if read and (of_block or in_part or (read.bar and not self._turned(read))):
            return None
        if read and read.counts and read.total > (self._run_steps or 0):  # a longer epoch, perhaps of smaller batches
            return None if self._accumulates or read.step > (self._run_steps or 0) else read
        if read and read.line.keys() >= LOSSES:
            before, self._held_out = self._held_out, read.line["eval_loss"]
            if self._held_out == before:  # Lightning's bar and NeMo show that of an earlier step
                del read.line["eval_loss"]
        return read and self._over_all(read)

    def _over_all(self, read: Reading) -> Reading:
        """Count a step over all epochs if their number, beside that of an epoch's steps, makes the run's steps."""
        if read.epoch is None:
            return read
        while self._earlier and self.epochs.first is None and read.epoch:
            form = CommonForms(self._run_steps)
            with suppress(OSError):
                Printed(self._earlier.pop(0), form).read()
            self.epochs.first = form.epochs.first
        if self.epochs.first is None and read.epoch <= 1:
            self.epochs.first = read.epoch
        (epoch, last), first = self._of_epochs, None
        if epoch == read.epoch and self._run_steps == (last + 1) * read.total:
            first = 0
        elif epoch == read.epoch and self._run_steps == last * read.total:
            first = 1 if epoch == last else self.epochs.first
        if first is not None:
            read.line["step"] += (read.epoch - first) * read.total
        certain = not self._accumulates if read.counts else last <= 1  # a batch may be less than a step
        if first is not None or (read.total == self._run_steps and certain):
            read.epoch = None
        return read

    def _turned(self, read: Reading) -> bool:
        """Count the step of a bar that gets its loss before it turns: the first loss of all stands at 0."""
        if self._before_turn is None:
            self._before_turn = read.step == 0
        read.line["step"] += self._before_turn
        return read.step <= read.total

    def _last_turns(self, readings: list[Reading], *, last: bool) -> list[Reading]:
        """Keep the last turn of a bar at each step: earlier turns may still have the values of the step before."""
        ready: list[Reading] = []
        for reading in self._turn + readings:
            before = ready[-1] if ready and ready[-1].bar and reading.bar else None
            if before and before.step == reading.step and before.epoch in (None, reading.epoch):
                earlier = {name: value for name, value in ready.pop().line.items() if name != "ts"}
                reading.line = {**earlier, **reading.line}
            ready.append(reading)
        self._turn = [ready.pop()] if ready and ready[-1].bar and not last else []
        return ready


class _Epochs:
    """Lines with an epoch and a step. The second epoch shows whether steps begin again with each.

    Until then the steps of the first epoch are right in both cases. They wait all the same if the number of an epoch's
    steps is unknown: a run that seems to end with the loss of its first epoch is worse than a run without losses. So do
    lines of an attempt that resumes in a later epoch. Counts that begin again may be of micro-batches if gradients are
    accumulated: none is taken. `refused`: an example of the lines that are not taken, "" if all are.
    """

    def __init__(self, *, accumulates: bool) -> None:
        self.first: int | None = None
        self.refused = ""
        self._accumulates = accumulates
        self._anew: bool | None = None
        self._held: list[Reading] = []
        self._begun, self._total, self._example, self._farthest = -1, 0, "", -1

    def take(self, reading: Reading) -> list[Reading]:
        if reading.epoch is None:
            return [reading]
        if self._begun < 0:
            self._begun, self._total, self._example = reading.epoch, reading.total, reading.text.strip()
        if reading.counts and reading.total and self.first is not None and not self._accumulates:
            self._anew = True
        if self._anew is None:
            self._decide(reading.epoch - self._begun, reading.step)
        if self._anew is None and not self.refused:
            if reading.epoch == self.first and reading.total and not self._accumulates:
                return [reading]
            self._held = [*self._held, reading][:WAITING_EPOCHS]
            return []
        held, self._held = self._held, []
        if not self._anew:
            return [*held, reading]
        counted = [each for each in (*held, reading) if each.total == self._total and not self.refused]
        for each in counted:
            each.line["step"] += ((each.epoch or 0) - (self.first or 0)) * self._total
        return counted

    def finish(self) -> list[Reading]:
        """Return the readings that still wait: right if theirs is the first epoch of all, and the last."""
        held, self._held = self._held, []
        certain = not (self._accumulates and any(reading.counts for reading in held))
        if not held or (certain and all(reading.epoch == self.first for reading in held)):
            return held
        self.refused = self._example
        return []

    def _decide(self, epochs: int, step: int) -> None:
        """Decide if possible; the last step of the first epoch may be printed again as the next epoch begins."""
        if epochs <= 0:
            self._farthest = max(self._farthest, step)
        elif step > self._farthest:
            self._anew = False
        elif step < self._farthest or epochs > 1:
            self._anew = True
            if self._accumulates or not self._total or self.first is None:
                self.refused = self._example


def _stamped(lines: list[Line], ts_s: float | None) -> list[Line]:
    if lines and ts_s is not None:
        lines[-1]["ts"] = ts_s
    return lines
