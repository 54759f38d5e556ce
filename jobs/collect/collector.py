"""From the source with the most losses to the spool of the attempt, each value once."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dscampaign.files.private_files import open_private
from dscampaign.files.regular_files import open_regular
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.payload import Payload

from .forms import CommonForms, Patterns
from .lines import Line
from .places import Places
from .printed import Printed
from .sources import MetricSource, TensorBoard, TrainerState

LOOK_S: Final = 2.0
NOTE_S: Final = 0.1
"""Between two looks whether something was printed: the time of a line is known to that."""
HOLD_S: Final = 5.0
"""From the first value to the choice: a script that reports does so meanwhile."""
CHUNK_BYTES: Final = 256 << 10
"""Of one source at a time: the agent has other things to do."""
AT_ONCE_S: Final = 0.1
"""It reads on for so long if there is more: between two looks, as often as the agent calls."""
FINISH_S: Final = 5.0
UNREAD: Final = "the script printed more than could be read until its end: the metrics of its last lines are missing"
MAX_NAMES: Final = 100
MAX_HELD: Final = 100_000
REPORTED: Final = "reported"
"""In place of the kind of a source in an event, once the script reports metrics itself."""
MAX_MESSAGE: Final = 500
MAX_STEP: Final = 2**53
"""Beyond, a float skips whole numbers."""
_LOSSES: Final = {"loss", "eval_loss"}


class Collector:
    """The metrics of an attempt whose script does not report them.

    Made before the script starts, and used from the main thread, which alone can end a pattern that takes too long.

    Args:
        payload: the attempt.
        paths: its files.
        pid: returns the process of the first rank, None while it is not known.
    """

    def __init__(self, payload: Payload, paths: AttemptPaths, pid: Callable[[], int | None]) -> None:
        since_s = time.time()
        self._spool, self._by_patterns = paths.metrics, bool(payload.metrics)
        places = Places(payload, since_s)
        self._sources: list[MetricSource] = (
            [Printed(paths.logs, Patterns(payload.metrics))]
            if payload.metrics
            else [
                TensorBoard(places, pid, since_s),
                Printed(paths.logs, CommonForms()),
                TrainerState(places, before=Places(payload, 0.0)),
            ]
        )
        self._held: dict[MetricSource, list[Line]] = {source: [] for source in self._sources}
        self._chosen: MetricSource | None = None
        self._over = False
        self._looked_s, self._first_s = -math.inf, 0.0
        self._marks: dict[str, int] = {}
        self._seen_bytes = self._own_lines = 0
        self._unwritten = b""

    def wait(self, seconds: float) -> None:
        """Sleep, and note meanwhile when something is printed."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(NOTE_S, left_s))
            for source in () if self._over else self._sources:
                with suppress(OSError):
                    source.note()

    def look(self) -> None:
        """Take in new lines, now and then; call it often."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = time.monotonic()
        if self._read_until(self._looked_s + AT_ONCE_S, last=False):
            self._looked_s = -math.inf  # a script that prints more than that is followed without a pause

    def finish(self) -> None:
        """Take in the rest, once the script has ended."""
        if self._read_until(time.monotonic() + FINISH_S, last=True):
            with suppress(OSError):
                self._tell(UNREAD)

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
        for source in tuple(self._sources):
            more |= self._read(source, last=last)
        if self._chosen is None:
            self._choose(at_once=last and not more)
        if self._chosen is not None:
            lines, self._held[self._chosen] = self._held[self._chosen], []
            self._append([new for line in lines if (new := self._new(line))])
        for source in self._sources:
            for remark in source.remarks():
                self._tell(remark, within_s=source.within_s)
        return more

    def _read(self, source: MetricSource, *, last: bool) -> bool:
        """Hold the new lines of a source; give it up after an error that nobody foresaw."""
        try:
            lines, more = source.read(CHUNK_BYTES, last=last)
        except OSError:  # the next look tries again
            return False
        except Exception as exc:  # noqa: BLE001 - an error here concerns this source alone
            self._sources.remove(source)
            with suppress(OSError):
                self._tell(f"metrics cannot be read from {source.kind}, which is given up: {exc!r}")
            return False
        self._held[source] = (self._held[source] + lines)[:MAX_HELD]
        return more

    def _choose(self, *, at_once: bool) -> None:
        """Choose the source with most losses, of equals the first; with patterns of the spec there is no other."""
        losses = {
            source: sum(self._by_patterns or not _LOSSES.isdisjoint(line) for line in lines)
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
        """Return whether the spool has lines of steps that are not from here; then collecting is over."""
        with suppress(FileNotFoundError):
            with open_regular(self._spool) as file:
                file.seek(self._seen_bytes)
                content = file.read() or b""
            self._seen_bytes += len(content)
            steps = _step_lines(content)
            to_come = _step_lines(self._unwritten)
            self._over = steps > self._own_lines - to_come
            self._own_lines = to_come
            if self._over and self._chosen is not None:
                self._tell("the script reports metrics now; nothing else is read any more", source=REPORTED)
        return self._over

    def _tell(self, message: str, **facts: str | float) -> None:
        event = {"event": "metrics_source", "ts": time.time(), "message": message[:MAX_MESSAGE], **facts}
        self._write(json.dumps(event) + "\n")

    def _append(self, lines: list[Line]) -> None:
        if lines or self._unwritten:
            self._own_lines += len(lines)
            self._write("".join(f"{json.dumps(line)}\n" for line in lines))

    def _write(self, text: str) -> None:
        """Append; the part that a full disk refuses is written at the next look."""
        self._unwritten += text.encode()
        descriptor = open_private(self._spool, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(descriptor, self._unwritten) :]
        finally:
            os.close(descriptor)


def _step_lines(content: bytes) -> int:
    return sum(b'"step"' in line and b'"event"' not in line for line in content.splitlines())
