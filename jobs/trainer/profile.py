"""A profile of a few optimizer steps of the first rank, by PyTorch's profiler."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import make_folder
from dscampaign.jobs import report

from .meter import Meter

FOLDER = "profile"
TRACE = "trace.json.gz"
TABLE = "operators.txt"

_ROWS = 60


class Profile:
    """Record the operators of some steps on the first rank, and write their times."""

    def __init__(self, steps: range, attempt_dir: Path, device: torch.device) -> None:
        self._steps = steps
        self._records = dist.get_rank() == 0
        self._folder = attempt_dir / FOLDER
        self._cuda = device.type == "cuda"
        self._under_way = False
        self._profiler: profile | None = None

    def before(self, step: int, meter: Meter) -> None:
        """Begin to record before the first profiled step. An attempt may resume amid them."""
        if step in self._steps and not self._under_way:
            meter.flush()  # or what starting the profiler takes would count as the step before
            self._start()
            meter.restart_clock()

    def after(self, step: int, meter: Meter) -> None:
        """Write the recording after the last profiled step."""
        if self._under_way and step + 1 not in self._steps:
            meter.flush()
            self.write()
            meter.restart_clock()

    def write(self) -> None:
        """End a recording and write its files."""
        self._under_way = False
        if self._profiler is None:
            return
        self._wait()
        self._profiler.stop()
        make_folder(self._folder)
        self._profiler.export_chrome_trace(str(self._folder / TRACE))
        by = "self_device_time_total" if self._cuda else "self_cpu_time_total"
        table = self._profiler.key_averages().table(sort_by=by, row_limit=_ROWS, max_name_column_width=80)
        write_atomically(self._folder / TABLE, table + "\n")
        report.event("profile", folder=str(self._folder), first_step=self._steps.start)
        self._profiler = None

    def _start(self) -> None:
        self._under_way = True  # on all ranks: what flushes does so on all of them
        if self._records:
            self._wait()
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
            self._profiler = profile(activities=kinds)
            self._profiler.start()

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
