"""Numbers of each optimizer step, read one step late so that reading never makes the device wait; and a profile."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
from .speed import Speed, Work, peak_flops, profiled_steps

MEMORY_STEP = 3  # steps of an attempt after which its memory has seen every kind of peak
FOLDER = "profile"
TRACE = "trace.json.gz"
TABLE = "operators.txt"

_ROWS = 60


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
    share: tuple[_Mark, _Mark] | None
    waited_s: float


class Meter:
    """Gathers each step's numbers from all ranks, reports them, and knows whether all agreed to stop."""

    def __init__(self, config: TrainerConfig, device: torch.device, steps: range, flops_per_token: float) -> None:
        self.stop_agreed = False
        self.reported: dict[str, float] = {}
        self._config = config
        self._device = device
        self._steps = steps.stop - 1
        self._loss = torch.zeros((), device=device)
        self._pending: _Pending | None = None
        self._begin = _Mark(device)
        self._read_steps = 0
        self._rank, self._said_s = dist.get_rank(), -math.inf
        self._share: tuple[_Mark, _Mark] | None = None
        self._busy_s: float | None = None
        self._waited_s = 0.0
        self._retries = 0
        self._peaks, self._closed_steps = memory.Peaks(device), 0
        self._timed_peak: dict[str, float] = {}
        self._spent_s, self._spent_steps = 0.0, 0
        self._work = Work(
            config.global_batch * config.seq_len,
            config.world_size,
            flops_per_token,
            peak_flops(memory.place(device)["device"]),
        )
        self._warm_up = warm_up_steps(config.untimed_steps, len(steps))
        self._speed = Speed(self._work, self._warm_up)
        self._profiled = profiled_steps(config.profile_at)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Enclose the host's wait for data."""
        begin_s = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - begin_s

    @contextmanager
    def own_share(self, step: int) -> Iterator[None]:
        """Enclose a forward pass; time the first of each step and report it to the agent.

        Until then a rank waits for no other, unless ZeRO 3 gathers weights or ranks share samples: then the time is
        not the rank's own.
        """
        if self._share is not None:
            yield
            return
        begin = _Mark(self._device)
        yield
        self._share = (begin, _Mark(self._device))
        report.progress(step, self._busy_s)

    def add(self, loss: Tensor) -> None:
        """Add a micro-batch's mean loss (all micro-batches have the same number of tokens)."""
        self._loss += loss.detach() / self._config.accumulation

    def close(self, step: int, lr: float, norm: Tensor | float | None, extra: dict[str, float]) -> None:
        """End a step: start to gather its numbers and report the numbers of the step before.

        Raises FloatingPointError, on all ranks: the loss of the step before is not finite.
        """
        peak, timed = self._peaks.read()
        self._retries = peak.retries
        held = (peak.allocated_gb, peak.reserved_gb, timed.allocated_gb, timed.reserved_gb)
        host = torch.tensor([0.0, 0.0, float(report.should_stop()), *held])
        row = to_device(host, self._device)
        row[0] = self._loss
        if norm is not None:
            row[1] = norm
        self._loss = torch.zeros_like(self._loss)
        rows = _to_host(_gather(row))
        end = _Mark(self._device)
        before, self._pending = (
            self._pending,
            _Pending(step, lr, rows, norm is not None, extra, self._begin, end, self._share, self._waited_s),
        )
        self._begin, self._share, self._waited_s = end, None, 0.0
        self._closed_steps += 1
        if self._closed_steps == self._warm_up:
            self._peaks.restart()
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
            figures = {name: value for name, value in summary.items() if value is not None} | self._timed_peak
            report.event("speed", **figures, **end, alloc_retries=self._retries, **memory.place(self._device))

    def _read(self, pending: _Pending | None, *, due: bool = False) -> None:
        if pending is None:
            return
        time_s = pending.end.seconds_since(pending.begin)
        waits = self._config.zero_stage == 3 or self._config.engine == "fsdp2" or self._config.ranks_per_sample > 1
        if pending.share and not waits:
            self._busy_s = pending.share[1].seconds_since(pending.share[0])
        if pending.step not in self._profiled:
            self._speed.add(time_s, pending.waited_s)
            self._spent_s, self._spent_steps = self._spent_s + time_s, self._spent_steps + 1
        self._read_steps += 1
        loss, norm, stop = pending.rows.mean(0).tolist()[:3]
        worst = pending.rows.amax(0).tolist()
        if worst[6]:
            self._timed_peak = {"mem_allocated_gb": worst[5], "mem_reserved_gb": worst[6]}
        self.stop_agreed |= stop > 0
        ends_warm_up = self._read_steps == self._warm_up  # no line covers steps of both kinds
        if due or ends_warm_up or pending.step % self._config.log_every == 0 or pending.step == self._steps:
            self._report(pending, loss, norm, worst)
        if self._read_steps == MEMORY_STEP or (pending.step == self._steps and self._read_steps < MEMORY_STEP):
            self._report_memory(worst[3], worst[4])
        if not math.isfinite(loss):
            raise FloatingPointError(f"non-finite loss {loss} at step {pending.step}")

    def _report(self, pending: _Pending, loss: float, norm: float, worst: list[float]) -> None:
        pace = self._pace()
        self._say(pending, loss, pace.get("tokens_per_s"))
        self.reported = {
            "ts": pending.end.wall_s,
            "loss": loss,
            "lr": pending.lr,
            **pace,
            "mem_allocated": worst[3],
            "mem_reserved": worst[4],
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
        mfu = self._work.mfu(time_s)
        figures = {} if mfu is None else {"mfu": mfu}
        return {"step_time": time_s, "tokens_per_s": self._work.tokens / time_s, **figures}

    def _say(self, pending: _Pending, loss: float, tokens_per_s: float | None) -> None:
        """Print a line for `campaign logs`, at most once a second, and for the last step."""
        now_s = time.monotonic()
        if self._rank == 0 and (now_s - self._said_s >= 1.0 or pending.step == self._steps):
            self._said_s = now_s
            place = f"step {pending.step}/{self._steps}"
            pace = "" if tokens_per_s is None else f"  {tokens_per_s:,.0f} tokens/s"
            print(f"{place}  loss {loss:.4f}  lr {pending.lr:.2e}{pace}", flush=True)

    def _report_memory(self, allocated_gb: float, reserved_gb: float) -> None:
        """Complete the report from before the first step. On CPUs with a limit, the address space counts."""
        limited_gb = memory.limited_peak_gb(self._device)
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
