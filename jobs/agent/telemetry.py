"""Sample the GPUs of an attempt while it runs, by the node's agent.

Ranks would lose time, and be silent at the most interesting moments. A thread samples, since a driver may hang; then
the samples end and nobody waits. Each node appends a line a sample to a file of its own on the shared folder, which
`db/ingest/attempt.py` takes into the store.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dscampaign.db.gpu_records import GPU_FIGURES, SLOWED, THROTTLE_REASONS
from dscampaign.files.private_files import open_private
from dscampaign.jobs.shared.nvml import (
    Figures,
    GpuMeter,
    Unavailable,
    XidWatch,
    gpu_handle,
    gpu_names,
    listed,
    session,
)

SAMPLES_AT_A_RATE = 3600
"""After so many samples the time between them doubles: a run of weeks must not fill disk and store."""

EVENT_EVERY_S = 600.0
"""Between two like events of a GPU."""
EVENT_LIMIT = 100
"""Events of a node, in all."""

WAIT_S = 0.5
"""For the last sample, before the last push."""


class Telemetry:
    """Samples the GPUs that an attempt has on this node."""

    def __init__(self, gpus: int, visible: str, node: str, spool: Path, interval_s: float) -> None:
        self._gpus, self._node, self._spool, self._interval_s = gpus, node, spool, interval_s
        self._visible = listed(visible)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start sampling, if there is anything to sample."""
        if self._gpus and self._interval_s > 0:
            self._thread.start()

    def stop(self) -> None:
        """Ask for the last sample, without waiting."""
        self._stop.set()

    def wait(self) -> None:
        """Wait a moment for the last sample."""
        if self._thread.ident is not None:
            self._thread.join(WAIT_S)

    def _run(self) -> None:
        try:
            with session() as nvml:
                if meters := self._meters(nvml):
                    self._sample(meters, XidWatch(nvml, meters))
        except (Unavailable, OSError) as exc:  # a shared folder that takes no line: what matters more will fail too
            self._say(exc)

    def _meters(self, nvml: Any) -> list[GpuMeter]:
        meters = []
        for number, name in enumerate(gpu_names(nvml, self._visible)[: self._gpus]):
            try:
                meters.append(GpuMeter(nvml, gpu_handle(nvml, name), number))
            except nvml.NVMLError as exc:
                self._say(f"GPU {number}: {exc}")
        return meters

    def _sample(self, meters: list[GpuMeter], xids: XidWatch) -> None:
        spool, alarms, rate = _GpuSpool(self._spool), Alarms(self._node), _Rate(self._interval_s)
        spool.write({"devices": self._devices(meters), "node": self._node, "ts": time.time()})
        stopped = False
        while not stopped:
            stopped = self._stop.wait(rate.rest_s())
            now_s, span_s = time.time(), rate.next_span_s()
            figures = {meter.number: own for meter in meters if (own := meter.read())}
            if figures:
                spool.write({"ts": round(now_s, 3), "span_s": round(span_s, 3), **columns(figures)})
            for event in alarms.look(figures, xids.read(), now_s):
                spool.write(event)

    def _devices(self, meters: list[GpuMeter]) -> list[dict[str, Any]]:
        """Return all GPUs of the attempt, also those that do not answer: their energy must count as unknown."""
        known = {meter.number: meter.device() for meter in meters}
        return [known.get(number, {"gpu": number}) for number in range(self._gpus)]

    def _say(self, why: object) -> None:
        print(f"no telemetry of this node's GPUs: {why}", file=sys.stderr, flush=True)


class Alarms:
    """Finds events: a GPU that begins to be slowed down, an uncorrected memory error, an Xid."""

    def __init__(self, node: str) -> None:
        self._node, self._left = node, EVENT_LIMIT
        self._slowed: dict[int, int] = {}
        self._errors: dict[int, int] = {}
        self._told_s: dict[tuple[str, int | None, int], float] = {}

    def look(
        self, figures: Mapping[int, Figures], xids: Iterable[tuple[int | None, int]], now_s: float
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of a sample, as lines of the spool."""
        for gpu, own in figures.items():
            bits = int(own.get("throttle", 0)) & SLOWED
            if (begun := bits & ~self._slowed.get(gpu, 0)) and self._may_tell(("slowed", gpu, begun), now_s):
                words = [word for bit, word in THROTTLE_REASONS.items() if bit & begun]
                facts = {"reasons": words, "temperature_c": own.get("temperature_c")}
                yield self._event("slowed", gpu, f"is slowed down: {', '.join(words)}", now_s, **facts)
            self._slowed[gpu] = bits
            errors = int(own.get("ecc_errors", 0))
            more = errors - self._errors.setdefault(gpu, errors)  # what was there before is not of this attempt
            if more > 0 and self._may_tell(("ecc", gpu, 0), now_s):
                self._errors[gpu] = errors
                yield self._event("ecc", gpu, f"has {more} new uncorrected memory errors", now_s, errors=more)
        for number, xid in xids:
            if self._may_tell(("xid", number, xid), now_s):
                yield self._event("xid", number, f"reports Xid {xid}", now_s, xid=xid)

    def _may_tell(self, what: tuple[str, int | None, int], now_s: float) -> bool:
        if not self._left or now_s - self._told_s.get(what, -math.inf) < EVENT_EVERY_S:
            return False
        self._left -= 1
        self._told_s[what] = now_s
        return True

    def _event(self, event: str, gpu: int | None, words: str, now_s: float, **data: Any) -> dict[str, Any]:
        message = f"{'a GPU' if gpu is None else f'GPU {gpu}'} of {self._node} {words}"
        return {"event": event, "ts": round(now_s, 3), "message": message, "node": self._node, "gpu": gpu, **data}


def columns(figures: Mapping[int, Figures]) -> dict[str, list[Any]]:
    """Return one list for each figure, in the order of ``gpu``: a third of the bytes of one object a GPU."""
    names = [name for name in GPU_FIGURES if any(name in own for own in figures.values())]
    return {"gpu": list(figures), **{name: [own.get(name) for own in figures.values()] for name in names}}


class _Rate:
    def __init__(self, interval_s: float) -> None:
        self._interval_s, self._samples = interval_s, 0
        self._due_s = time.monotonic()
        self._last_s = self._due_s - interval_s

    def rest_s(self) -> float:
        """Return the seconds until the next sample."""
        return max(0.0, self._due_s - time.monotonic())

    def next_span_s(self) -> float:
        """Count a sample and return its time span; after a gap, at most twice the usual time."""
        now_s = time.monotonic()
        interval_s = self._interval_s * (1 << self._samples // SAMPLES_AT_A_RATE)
        span_s, self._last_s = min(now_s - self._last_s, 2 * interval_s), now_s
        self._samples += 1
        self._due_s = max(self._due_s + interval_s, now_s)  # what was missed is not made up for
        return span_s


class _GpuSpool:
    """The append-only file of this node: one write a line, so that a killed agent loses no line."""

    def __init__(self, path: Path) -> None:
        self._descriptor = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._torn = False

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line; end the line before first, if it broke off."""
        data = (("\n" if self._torn else "") + json.dumps(line, separators=(",", ":")) + "\n").encode()
        try:
            self._torn = os.write(self._descriptor, data) < len(data)
        except OSError:  # a full disk, for now: a gap in the samples
            return
