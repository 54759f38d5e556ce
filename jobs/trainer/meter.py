"""Numbers of each optimizer step, read one step late so that reading never makes the device wait; and a profile.

Speed is measured over a window that begins after warm-up and compilation. Model FLOPs utilisation is
``tokens/s/GPU x FLOP per token / peak`` (Chowdhery et al. 2022, PaLM, appendix B).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from dscampaign.db.records import warm_up_steps
from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import make_folder
from dscampaign.jobs import report

from . import memory
from .config import TrainerConfig
from .sampling import to_device

MEMORY_STEP = 3  # steps of an attempt after which its memory has seen every kind of peak
PROFILED_STEPS = 3  # enough to see the pattern, few enough for a trace that opens
PEAK_FLOPS: Final = (
    (re.compile(r"\bH[12]00 NVL\b"), 835e12),
    (re.compile(r"\bH100 PCIe\b"), 756e12),
    (re.compile(r"\bH[12]00\b"), 989e12),
    (re.compile(r"\bA100\b"), 312e12),
)
"""Dense bf16 and fp16 FLOP/s by parts of the device's name; the first match counts."""


def peak_flops(device: str) -> float | None:
    """Return the peak of a device by its name; None if unknown, as for a part of a GPU (MIG)."""
    if re.search(r"\bMIG\b", device):
        return None
    return next((peak for name, peak in PEAK_FLOPS if name.search(device)), None)


@dataclass
class Speed:
    """The times of an attempt's steps by the device's clock; the first ``warm_up`` do not count.

    `tokens`: targets of a step over all ranks, without padding; `peak_flops`: of a device, None if unknown.
    """

    tokens: int
    ranks: int
    flops_per_token: float
    peak_flops: float | None
    warm_up: int
    _warm_up_s: list[float] = field(default_factory=list)
    _times_s: list[float] = field(default_factory=list)
    _waits_s: list[float] = field(default_factory=list)

    def mfu(self, step_time_s: float) -> float | None:
        """Model FLOPs utilisation of a step, from 0 to 1."""
        if self.peak_flops is None:
            return None
        return self.tokens / step_time_s / self.ranks * self.flops_per_token / self.peak_flops

    def add(self, time_s: float, waited_s: float) -> None:
        """Add the next step; ``waited_s``: the part in which this rank's host waited for data."""
        if len(self._warm_up_s) < self.warm_up:
            self._warm_up_s.append(time_s)
        else:
            self._times_s.append(time_s)
            self._waits_s.append(waited_s)

    def summary(self) -> dict[str, Any] | None:
        """Return the window's figures; None before the first step after the warm-up."""
        if not self._times_s:
            return None
        total_s = sum(self._times_s)
        first, median, third = np.percentile(self._times_s, [25, 50, 75]).tolist()
        tokens_per_s = self.tokens * len(self._times_s) / total_s
        return {
            "steps": len(self._times_s),
            "window_s": total_s,
            "warm_up_steps": len(self._warm_up_s),
            "warm_up_s": sum(self._warm_up_s),
            "step_time_median_s": median,
            "step_time_iqr_s": third - first,
            "tokens_per_s": tokens_per_s,
            "tokens_per_s_per_gpu": tokens_per_s / self.ranks,
            "mfu": self.mfu(total_s / len(self._times_s)),
            "flops_per_token": self.flops_per_token,
            "peak_flops": self.peak_flops,
            "data_wait_share": sum(self._waits_s) / total_s,
        }


@dataclass(frozen=True)
class _Pending:
    """A step with numbers that the device is still sending: a row per rank, columns as in ``Meter.close``."""

    step: int
    lr: float
    rows: Tensor
    has_norm: bool
    extra: dict[str, float]
    begin: _Mark
    end: _Mark
    waited_s: float


class Meter:
    """Gathers each step's numbers from all ranks, reports them, and knows whether all agreed to stop."""

    def __init__(self, config: TrainerConfig, device: torch.device, steps: range, flops_per_token: float) -> None:
        self.stop_agreed = False
        self.reported: dict[str, float] = {}
        self._config = config
        self._device = device
        self._steps = steps
        self._loss = torch.zeros((), device=device)
        self._pending: _Pending | None = None
        self._begin = _Mark(device)
        self._printed_s = -math.inf
        self._shared = False  # whether this rank has done its own part of the present step
        self._waited_s = 0.0
        self._retries = 0
        self._peak_restarted = False
        self._peak_gb = self._timed_peak_gb = (0.0, 0.0)  # allocated, reserved: of the attempt, since the warm-up
        self._spent_s, self._spent_steps = 0.0, 0
        tokens, peak = config.global_batch * config.seq_len, peak_flops(memory.place(device)["device"])
        self._warm_up = warm_up_steps(config.untimed_steps, len(steps))
        self._speed = Speed(tokens, config.world_size, flops_per_token, peak, self._warm_up)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Enclose the host's wait for data."""
        begin_s = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - begin_s

    @contextmanager
    def own_share(self, step: int) -> Iterator[None]:
        """Enclose a forward pass; report the first of each step to the agent.

        The rank that all wait for is then a step behind the others.
        """
        yield
        if not self._shared:
            self._shared = True
            report.progress(step)

    def add(self, loss: Tensor) -> None:
        """Add a micro-batch's mean loss (all micro-batches have the same number of tokens)."""
        self._loss += loss.detach() / self._config.accumulation

    def close(self, step: int, lr: float, norm: Tensor | float | None, extra: dict[str, float]) -> None:
        """End a step: start to gather its numbers and report the numbers of the step before.

        Raises FloatingPointError, on all ranks: the loss of the step before is not finite.
        """
        allocated_gb, reserved_gb, self._retries = memory.peak(self._device)
        host = torch.tensor([0.0, 0.0, float(report.should_stop()), allocated_gb, reserved_gb])
        row = to_device(host, self._device)
        row[0] = self._loss
        if norm is not None:
            row[1] = norm
        self._loss = torch.zeros_like(self._loss)
        rows = _to_host(_gather(row))
        end = _Mark(self._device)
        before, has_norm = self._pending, norm is not None
        self._pending = _Pending(step, lr, rows, has_norm, extra, self._begin, end, self._waited_s)
        self._begin, self._shared, self._waited_s = end, False, 0.0
        if step - self._steps.start + 1 == self._warm_up:
            self._peak_restarted = memory.restart_peak(self._device)
        self._read(before)

    def flush(self) -> None:
        """Report the last closed step now. Before a checkpoint, an evaluation, and at the end.

        Each of these starts a line, so that the next line covers exactly the steps since this.
        """
        before, self._pending = self._pending, None
        self._read(before, due=True)

    def restart_clock(self) -> None:
        """Leave the time since the last step (evaluation, checkpoint) out of the next step's time."""
        self._begin = _Mark(self._device)

    def finish(self) -> None:
        """Report event ``speed``: the figures of the attempt's steps after the warm-up, and the memory at their end."""
        used_gb = torch.tensor([memory.current_gb(self._device)], device=self._device)
        end = {"mem_end_gb": float(_gather(used_gb).max())}
        if summary := self._speed.summary():
            figures = {name: value for name, value in summary.items() if value is not None}
            if any(self._timed_peak_gb):
                figures |= dict(zip(("mem_allocated_gb", "mem_reserved_gb"), self._timed_peak_gb, strict=True))
            report.event("speed", **figures, **end, alloc_retries=self._retries, **memory.place(self._device))

    def _read(self, pending: _Pending | None, *, due: bool = False) -> None:
        if pending is None:
            return
        time_s = pending.end.seconds_since(pending.begin)
        if pending.step not in profiled_steps(self._config):
            self._speed.add(time_s, pending.waited_s)
            self._spent_s, self._spent_steps = self._spent_s + time_s, self._spent_steps + 1
        number, last = pending.step - self._steps.start + 1, pending.step == self._steps.stop - 1
        loss, norm, stop = pending.rows.mean(0).tolist()[:3]
        allocated_gb, reserved_gb = pending.rows.amax(0).tolist()[3:]
        self._peak_gb = max(self._peak_gb[0], allocated_gb), max(self._peak_gb[1], reserved_gb)
        if self._peak_restarted and number > self._warm_up:
            self._timed_peak_gb = allocated_gb, reserved_gb
        self.stop_agreed |= stop > 0
        ends_warm_up = number == self._warm_up  # no line covers steps of both kinds
        if due or last or ends_warm_up or pending.step % self._config.log_every == 0:
            self._report(pending, loss, norm)
        if number == MEMORY_STEP or (last and number < MEMORY_STEP):
            self._report_memory()
        if not math.isfinite(loss):
            raise FloatingPointError(f"non-finite loss {loss} at step {pending.step}")

    def _report(self, pending: _Pending, loss: float, norm: float) -> None:
        pace = self._pace()
        self._print(pending, loss, pace.get("tokens_per_s"))
        self.reported = {
            "ts": pending.end.wall_s,
            "loss": loss,
            "lr": pending.lr,
            **pace,
            "mem_allocated": self._peak_gb[0],
            "mem_reserved": self._peak_gb[1],
            "samples_seen": pending.step * self._config.global_batch,
            **({"grad_norm": norm} if pending.has_norm else {}),
            **pending.extra,
        }
        report.report(pending.step, **self.reported)

    def _pace(self) -> dict[str, float]:
        """Return the mean speed of the steps since the last line, and start over.

        Profiled steps do not count: the profiler's work is in their time.
        """
        if not self._spent_steps:
            return {}
        time_s = self._spent_s / self._spent_steps
        self._spent_s, self._spent_steps = 0.0, 0
        mfu = self._speed.mfu(time_s)
        figures = {} if mfu is None else {"mfu": mfu}
        return {"step_time": time_s, "tokens_per_s": self._speed.tokens / time_s, **figures}

    def _print(self, pending: _Pending, loss: float, tokens_per_s: float | None) -> None:
        """Print a line for `campaign logs`, at most once a second, and for the last step."""
        now_s = time.monotonic()
        last = self._steps.stop - 1
        if dist.get_rank() == 0 and (now_s - self._printed_s >= 1.0 or pending.step == last):
            self._printed_s = now_s
            place = f"step {pending.step}/{last}"
            pace = "" if tokens_per_s is None else f"  {tokens_per_s:,.0f} tokens/s"
            print(f"{place}  loss {loss:.4f}  lr {pending.lr:.2e}{pace}", flush=True)

    def _report_memory(self) -> None:
        """Complete the report from before the first step. On CPUs with a limit, the address space counts."""
        (allocated_gb, reserved_gb), limited_gb = self._peak_gb, memory.limited_peak_gb(self._device)
        report.event(
            "memory",
            micro_batch=self._config.micro_batch,
            peak_allocated_gb=limited_gb or allocated_gb,
            peak_reserved_gb=limited_gb or reserved_gb,
            **memory.place(self._device),
        )


class _Mark:
    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        self.host_s, self.wall_s = time.perf_counter(), time.time()
        if self._event:
            self._event.record()

    def seconds_since(self, earlier: _Mark) -> float:
        """Wait until the device is past this mark; everything queued before it is then on the host."""
        if self._event and earlier._event:
            self._event.synchronize()
            time_ms: float = earlier._event.elapsed_time(self._event)
            return time_ms / 1e3
        return self.host_s - earlier.host_s


def _gather(row: Tensor) -> Tensor:
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    return torch.stack(rows)


def _to_host(rows: Tensor) -> Tensor:
    """Queues the copy; it has arrived when a later mark has passed."""
    if rows.device.type != "cuda":
        return rows
    return torch.empty(rows.shape, pin_memory=True).copy_(rows, non_blocking=True)


def profiled_steps(config: TrainerConfig) -> range:
    """Return the optimizer steps that are profiled."""
    return range(config.profile_at or 0, config.profile_at + PROFILED_STEPS if config.profile_at else 0)


class Profile:
    """Record the operators of some steps on the first rank, and write their times."""

    def __init__(self, config: TrainerConfig, attempt_dir: Path, device: torch.device, meter: Meter) -> None:
        self._steps, self._folder, self._meter = profiled_steps(config), attempt_dir / "profile", meter
        self._device = device
        self._profiler: profile | None = None

    def before(self, step: int) -> None:
        """Begin to record before the first profiled step. An attempt may resume amid them."""
        if step in self._steps and self._profiler is None:
            self._meter.flush()  # or what starting the profiler takes would count as the step before
            self._wait()
            cuda = [ProfilerActivity.CUDA] if self._device.type == "cuda" else []
            self._profiler = profile(activities=[ProfilerActivity.CPU, *cuda])
            if dist.get_rank() == 0:
                self._profiler.start()
            self._meter.restart_clock()

    def after(self, step: int, *, last: bool) -> None:
        """Write the recording after the last profiled step, or the attempt's last."""
        if self._profiler is None or (step + 1 in self._steps and not last):
            return
        self._meter.flush()
        if dist.get_rank() == 0:
            self._wait()
            self._profiler.stop()
            make_folder(self._folder)
            self._profiler.export_chrome_trace(str(self._folder / "trace.json.gz"))
            by = f"self_{'device' if self._device.type == 'cuda' else 'cpu'}_time_total"
            table = self._profiler.key_averages().table(sort_by=by, row_limit=60, max_name_column_width=80)
            write_atomically(self._folder / "operators.txt", table + "\n")
            report.event("profile", folder=str(self._folder), first_step=self._steps.start)
        self._profiler = None
        self._meter.restart_clock()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
