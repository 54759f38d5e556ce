"""Sample the GPUs of an attempt while it runs, by the node's agent, into a file that `db/ingest/attempt.py` reads.

A thread samples, since a driver may hang; then the samples end and nobody waits.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dscampaign.db.gpu_records import GPU_FIGURES
from dscampaign.files.private_files import open_private
from dscampaign.jobs.shared.nvml import Figures, GpuMeter, Unavailable, each_gpu, gpu_names, listed, session

SAMPLES_AT_A_RATE = 3600
"""After so many samples the time between them doubles: a run of weeks must not fill disk and store."""

_TROUBLE = "no telemetry of this node's GPUs:"
WAIT_S = 0.5  # for the last sample, before the last push


class Telemetry:
    """Samples the GPUs that an attempt has on this node: ``visible`` GPUs, every so many seconds, 0 for never."""

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
                names = gpu_names(nvml, self._visible)[: self._gpus]
                meters, troubles = each_gpu(nvml, names, lambda number, _, gpu: GpuMeter(nvml, gpu, number))
                for trouble in troubles:
                    print(_TROUBLE, trouble, file=sys.stderr, flush=True)
                if meters:
                    self._sample(meters)
        except (Unavailable, OSError) as exc:  # a shared folder that takes no line: what matters more will fail too
            print(_TROUBLE, exc, file=sys.stderr, flush=True)

    def _sample(self, meters: list[GpuMeter]) -> None:
        spool = open_private(self._spool, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        interval_s, last_s, count, torn = self._interval_s, time.monotonic(), 0, False

        def write(line: Mapping[str, Any]) -> None:
            """In a single write, so that a killed agent loses no line."""
            nonlocal torn
            data = (("\n" if torn else "") + json.dumps(line, separators=(",", ":")) + "\n").encode()
            with suppress(OSError):  # a full disk, for now: a gap in the samples
                torn = os.write(spool, data) < len(data)

        by_number = {meter.number: meter.device() for meter in meters}
        # Also GPUs that do not answer: their energy must count as unknown.
        devices = [by_number.get(number, {"gpu": number}) for number in range(self._gpus)]
        write({"devices": devices, "node": self._node, "ts": time.time()})
        stopped = False
        while not stopped:
            stopped = self._stop.wait(interval_s if count else 0)
            now_s = time.monotonic()
            span_s = min(now_s - last_s, 2 * interval_s) if count else interval_s
            if figures := {meter.number: own for meter in meters if (own := meter.read())}:
                write({"ts": round(time.time(), 3), "span_s": round(span_s, 3), **columns(figures)})
            last_s, count = now_s, count + 1
            interval_s = self._interval_s * (1 << count // SAMPLES_AT_A_RATE)


def columns(figures: Mapping[int, Figures]) -> dict[str, list[Any]]:
    """Return one list for each figure, in the order of ``gpu``: a third of the bytes of one object a GPU."""
    names = [name for name in GPU_FIGURES if any(name in own for own in figures.values())]
    return {"gpu": list(figures), **{name: [own.get(name) for own in figures.values()] for name in names}}
