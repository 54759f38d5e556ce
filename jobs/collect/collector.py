"""From the source that says most to the spool of the attempt, each value once."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from dscampaign.files.private_files import open_private
from dscampaign.files.regular_files import open_regular
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.payload import Payload

from .forms import CommonForms, Patterns
from .lines import Line
from .places import Places
from .sources import MetricSource, Printed, TensorBoard, TrainerState

LOOK_S: Final = 2.0
NOTE_S: Final = 0.1
"""Between two looks whether something was printed: the time of a line is known to that."""
HOLD_S: Final = 5.0
"""From the first value to the choice: a script that reports does so meanwhile."""
CHUNK_BYTES: Final = 256 << 10
"""Of one source at a time: the agent has other things to do."""
AT_ONCE_S: Final = 0.1
"""For how long it reads on where there is more: between two looks, as often as the agent calls."""
FINISH_S: Final = 5.0
UNREAD: Final = "the script printed more than could be read until its end: what its last lines say is missing"
MAX_NAMES: Final = 100
MAX_HELD: Final = 100_000
REPORTED: Final = "reported"
"""What an event says in place of the kind of a source, once the script reports metrics itself."""
MAX_MESSAGE: Final = 500
MAX_STEP: Final = 2**53
"""Beyond, a float skips whole numbers."""
_LOSSES: Final = {"loss", "eval_loss"}

_Done = TypeVar("_Done")


class Collector:
    """The metrics of an attempt whose script does not report them.

    Made before the script starts, and used from the main thread, which alone can end a pattern that takes too long.

    Args:
        payload: the attempt.
        paths: its files.
        pid: the process of the first rank, None while it is not known.
    """

    def __init__(self, payload: Payload, paths: AttemptPaths, pid: Callable[[], int | None]) -> None:
        since_s = time.time()
        self._spool = paths.metrics
        self._patterns = Patterns(payload.metrics) if payload.metrics else None
        places = Places(payload, since_s)
        self._sources: list[MetricSource] = (
            [Printed(paths.logs, self._patterns)]
            if self._patterns
            else [
                TensorBoard(places, pid, since_s),
                TrainerState(places, before=Places(payload, 0.0)),
                Printed(paths.logs, CommonForms()),
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
        """Sleeps, and sees meanwhile when something is printed."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(NOTE_S, left_s))
            for source in () if self._over else self._sources:
                self._without_failing(source, source.note)

    def look(self) -> None:
        """Take in what is new, now and then; call it often."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = time.monotonic()
        if self._read_until(self._looked_s + AT_ONCE_S, last=False):
            self._looked_s = -math.inf  # a script that prints more than that is followed without a pause

    def finish(self) -> None:
        """Take in the rest, once the script has ended."""
        if self._read_until(time.monotonic() + FINISH_S, last=True):
            with suppress(OSError):
                self._tell("metrics_source", UNREAD)

    def _read_until(self, until_s: float, *, last: bool) -> bool:
        """Take in what is new, at least a chunk of each source; return whether there may be more.

        No content of somebody's files or output is a reason for a training to end: collecting ends.
        """
        more = False
        try:
            while more := self._look(last=last):
                if time.monotonic() >= until_s:
                    break
        except OSError:  # a full disk, a folder that is away: the next look tries again
            return False
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is of the metrics alone
            self._over, more = True, False
            with suppress(OSError):
                self._tell("metrics_source", f"metrics are not read any more: {exc!r}"[:MAX_MESSAGE])
        return more

    def _look(self, *, last: bool) -> bool:
        """Returns whether there may be more."""
        if self._over or self._script_reports():
            return False
        more = False
        for source in self._sources:
            if read := self._without_failing(source, partial(source.read, CHUNK_BYTES, last=last)):
                lines, left = read
                self._held[source] = (self._held[source] + lines)[:MAX_HELD]
                more |= left
        if self._chosen is None:
            self._choose(at_once=last and not more)
        if self._chosen is not None:
            lines, self._held[self._chosen] = self._held[self._chosen], []
            self._append([new for line in lines if (new := self._new(line))])
        for source in self._sources:
            for remark in source.remarks():
                self._tell("metrics_source", remark, within_s=source.within_s)
        return more

    def _without_failing(self, source: MetricSource, do: Callable[[], _Done]) -> _Done | None:
        """Return the result of a source's work, None if it fails.

        Read later what cannot be read now; give up a source that something else is wrong with.
        """
        try:
            return do()
        except OSError:
            return None
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this source's alone
            self._sources = [other for other in self._sources if other is not source]
            message = f"metrics cannot be read from {source.kind}, which is given up: {exc!r}"[:MAX_MESSAGE]
            with suppress(OSError):
                self._tell("metrics_source", message, within_s=source.within_s)
            return None

    def _choose(self, *, at_once: bool) -> None:
        """The source with most losses, of equals the first; with patterns of the spec there is no other."""
        said = {
            s: sum(not _LOSSES.isdisjoint(line) or bool(self._patterns) for line in self._held[s]) for s in self._held
        }
        best = max(said, key=lambda source: said[source])
        if not said[best]:
            return
        self._first_s = self._first_s or time.monotonic()
        if at_once or time.monotonic() - self._first_s >= HOLD_S:
            self._chosen, self._sources = best, [best]
            message = f"the script does not report metrics; they are read from {best.said}"
            self._tell("metrics_source", message, source=best.kind, within_s=best.within_s)

    def _new(self, line: Line) -> Line:
        """Return the part of a line that is further than all before: the same value may stand in two files."""
        step, ts_s = int(line["step"]), line.get("ts")
        if not 0 <= step <= MAX_STEP:
            return {}
        new = {name: value for name, value in line.items() if name not in ("step", "ts") and self._is_new(name, step)}
        self._marks.update((name, max(step, self._marks.get(name, -1))) for name in new)
        return {"step": step, **({} if ts_s is None else {"ts": ts_s}), **new} if new else {}

    def _is_new(self, name: str, step: int) -> bool:
        mark = self._marks.get(name, -1)
        went_back = self._patterns is not None and step < mark  # the store reports that, and takes none of these
        return (step > mark or went_back) and (name in self._marks or len(self._marks) < MAX_NAMES)

    def _script_reports(self) -> bool:
        """Whether the spool has lines of steps that are not from here; then this is over."""
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
                message = "the script reports metrics now; nothing else is read any more"
                self._tell("metrics_source", message, source=REPORTED)
        return self._over

    def _tell(self, event: str, message: str, **facts: str | float) -> None:
        self._write(json.dumps({"event": event, "ts": time.time(), "message": message, **facts}) + "\n")

    def _append(self, lines: list[Line]) -> None:
        if lines or self._unwritten:
            self._own_lines += len(lines)
            self._write("".join(f"{json.dumps(line)}\n" for line in lines))

    def _write(self, text: str) -> None:
        """Appends; what a full disk does not take is written at the next look."""
        self._unwritten += text.encode()
        descriptor = open_private(self._spool, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(descriptor, self._unwritten) :]
        finally:
            os.close(descriptor)


def _step_lines(content: bytes) -> int:
    return sum(b'"step"' in line and b'"event"' not in line for line in content.splitlines())
