"""From the source with the most losses to the spool of the attempt, each value once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dscampaign.files.private_files import open_private, open_regular
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.payload import Payload

from .formats import LOSSES, MAX_STEP, Line
from .printed import CommonForms, Patterns, Printed
from .sources import MetricSource, Places, TensorBoard

LOOK_S: Final = 0.1  # between two looks: the time of a printed line is known to that
HOLD_S: Final = 5.0  # from the first value to the choice: a script that reports does so meanwhile
AT_ONCE_S: Final = 0.1  # a look reads on for so long if there is more
FINISH_S: Final = 5.0
SILENT_S: Final = 60.0  # output for so long without metrics: the user learns that while the script runs
UNREAD: Final = "the script printed more than could be read until its end: the metrics of its last lines are missing"
MAX_NAMES: Final = 100
MAX_HELD: Final = 100_000
REPORTED, NONE = "reported", "none"
"""In place of the kind of a source in an event: the script reports metrics itself; there are none so far."""
NO_METRICS: Final = (
    "no metrics in the first minute of output. Add to the script: from dscampaign import report, and after each step: "
    r"report(step, loss=loss). Or give the spec patterns: metrics: {step: 'step (\d+)', loss: 'loss ([\d.]+)'}; "
    "or set train.steps, so that a count like [1/24] is a step; or lower logging_steps of the Hugging Face Trainer"
)
MAX_MESSAGE: Final = 500


class Collector:
    """The metrics of an attempt whose script does not report them. `pid` returns the first rank's process, if known.

    Made before the script starts, and used from the main thread, which alone can end a pattern that takes too long.
    """

    def __init__(self, payload: Payload, paths: AttemptPaths, pid: Callable[[], int | None]) -> None:
        since_s = time.time()
        self._by_patterns = bool(payload.metrics)
        earlier = [payload.run_paths.attempt(generation).logs for generation in range(1, payload.generation)]
        form = CommonForms(payload.target_step, accumulates=(payload.accumulation or 1) > 1, earlier=earlier)
        self._spool = _Spool(paths.metrics)
        self._sources: list[MetricSource] = (
            [Printed(paths.logs, Patterns(payload.metrics))]
            if payload.metrics
            else [Printed(paths.logs, form), TensorBoard(Places(payload, since_s), pid, since_s)]
        )
        self._held: dict[MetricSource, list[Line]] = {source: [] for source in self._sources}
        self._chosen: MetricSource | None = None
        self._over = False
        self._first_s = self._output_s = 0.0
        self._is_silent = False
        self._marks: dict[str, int] = {}
        self._has_remarked = False

    def follow(self, seconds: float) -> None:
        """Take in new lines for some time."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left_s))
            self.look()

    def look(self) -> None:
        """Take in the lines that are there, as many as fit into a moment."""
        self._read_until(time.monotonic() + AT_ONCE_S, last=False)

    def finish(self, *, well: bool = False) -> bool:
        """Take in the rest, once the script has ended; return True. If it ended `well`, raises OSError: try again."""
        for source in self._sources:
            source.ended_well = well
        if self._read_until(time.monotonic() + FINISH_S, last=True):
            with suppress(OSError):
                self._tell(UNREAD)
        return True

    def _read_until(self, until_s: float, *, last: bool) -> bool:
        """Take in new lines, at least a chunk of each source; return whether there may be more.

        No content of a user's files or output is a reason for a training to end: collecting ends.
        """
        more = False
        try:
            while more := self._look(last=last):
                if time.monotonic() >= until_s:
                    break
        except OSError:  # a full disk, a folder that is away: the next look tries again
            if self._sources[0].ended_well:
                raise
            return False
        except Exception as exc:  # noqa: BLE001 - an error here concerns the metrics alone
            self._over, more = True, False
            with suppress(OSError):
                self._tell(f"metrics are not read any more: {exc!r}")
        return more

    def _look(self, *, last: bool) -> bool:
        if self._over or self._script_reports():
            return False
        more = False
        for source in self._sources:
            with suppress(OSError):  # the next look tries again
                lines, moved = source.read(last=last)
                self._held[source] = (self._held[source] + lines)[:MAX_HELD]
                more |= moved
        if self._chosen is None:
            self._choose(at_once=last and not more)
        if self._chosen is None and not self._first_s:
            self._notice_silence()
        if self._chosen is not None:
            lines, self._held[self._chosen] = self._held[self._chosen], []
            self._spool.append([new for line in lines if (new := self._new(line))])
        for source in self._sources:
            if source.remark and not self._has_remarked:
                self._has_remarked = True
                self._tell(source.remark, within_s=source.within_s)
        return more

    def _choose(self, *, at_once: bool) -> None:
        """Choose the source with most losses, of equals the first."""
        losses = {
            source: sum(self._by_patterns or not LOSSES.isdisjoint(line) for line in lines)
            for source, lines in self._held.items()
        }
        best = max(losses, key=lambda source: losses[source])
        if not losses[best]:
            return
        self._first_s = self._first_s or time.monotonic()
        if at_once or time.monotonic() - self._first_s >= HOLD_S:
            self._chosen, self._sources = best, [best]
            message = f"the script does not report metrics; they are read from {best.description}"
            self._tell(message, source=best.kind, within_s=best.within_s)

    def _notice_silence(self) -> None:
        now_s = time.monotonic()
        self._output_s = self._output_s or (now_s if any(source.has_read for source in self._sources) else 0.0)
        if self._output_s and now_s - self._output_s >= SILENT_S and not self._is_silent:
            self._is_silent = True
            self._tell(NO_METRICS, source=NONE)

    def _new(self, line: Line) -> Line:
        """Return the values of a line that are further than all before: the same value may stand in two files."""
        step = int(line["step"])
        if not 0 <= step <= MAX_STEP:
            return {}
        new = {name: value for name, value in line.items() if name not in ("step", "ts") and self._is_new(name, step)}
        self._marks.update((name, max(step, self._marks.get(name, -1))) for name in new)
        stamp = {"ts": line["ts"]} if "ts" in line else {}
        return {"step": step, **stamp, **new} if new else {}

    def _is_new(self, name: str, step: int) -> bool:
        mark = self._marks.get(name, -1)
        went_back = self._by_patterns and step < mark  # the store reports that, and takes none of these
        return (step > mark or went_back) and (name in self._marks or len(self._marks) < MAX_NAMES)

    def _script_reports(self) -> bool:
        self._over = self._spool.has_others_steps()
        if self._over and (self._chosen or self._is_silent):
            message = "the script reports metrics now; nothing else is read any more"
            self._tell(message, source=REPORTED if self._chosen else NONE)
        return self._over

    def _tell(self, message: str, **facts: str | float) -> None:
        event = {"event": "metrics_source", "ts": time.time(), "message": message[:MAX_MESSAGE], **facts}
        self._spool.append([event])


class _Spool:
    """The attempt's spool, to which the script may append too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen, self._others = 0, False
        self._unwritten = b""

    def has_others_steps(self) -> bool:
        with suppress(FileNotFoundError):
            self._look(None)
        return self._others

    def append(self, lines: Sequence[Mapping[str, object]]) -> None:
        """Append lines; the part that a full disk refuses is written at the next call."""
        self._unwritten += "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        if not self._unwritten:
            return
        descriptor = open_private(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            while self._unwritten:
                written = os.write(descriptor, self._unwritten)
                end = os.lseek(descriptor, 0, os.SEEK_CUR)
                self._look(end - written)
                self._seen, self._unwritten = end, self._unwritten[written:]
        finally:
            os.close(descriptor)

    def _look(self, end: int | None) -> None:
        with open_regular(self._path) as file:
            file.seek(self._seen)
            content = file.read(-1 if end is None else end - self._seen) or b""
        self._seen += len(content)
        self._others |= any(b'"step"' in line and b'"event"' not in line for line in content.splitlines())
