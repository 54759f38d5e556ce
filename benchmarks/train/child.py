"""What the child processes that train in their own loop share: clock, tokens, being the only rank."""

from __future__ import annotations

import os
import resource
import socket
import time
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from .work import Measured, Request


class StepClock:
    """Times steps without making the host wait for the device, but for once at each end of the window."""

    def __init__(self, request: Request) -> None:
        self._cuda = request.device == "cuda"
        self._warmup, self._steps, self._started_s = request.warmup, request.steps, request.started_s
        self._events: list[torch.cuda.Event] = []
        self._times_s: list[float] = []
        self._ends_s: list[float] = []
        self._setup_s = 0.0

    def tick(self) -> None:
        """After each optimizer step."""
        self._times_s.append(time.perf_counter())
        if self._cuda:
            self._events.append(torch.cuda.Event(enable_timing=True))
            self._events[-1].record()
        if len(self._times_s) == self._warmup:
            self._setup_s = time.time() - self._started_s
        if len(self._times_s) in (self._warmup, self._warmup + self._steps):
            if self._cuda:
                torch.cuda.synchronize()
            self._ends_s.append(time.perf_counter())

    def measured(self, loss: float) -> Measured:
        """The figures, after the last step.

        Raises:
            RuntimeError: there were fewer steps than asked for.
        """
        if len(self._ends_s) != 2:
            raise RuntimeError(f"{len(self._times_s)} steps, not {self._warmup + self._steps}")
        window_ms = 1000 * (self._ends_s[1] - self._ends_s[0]) / self._steps
        return Measured(self._step_ms(), window_ms, peak_gb(cuda=self._cuda), self._setup_s, loss)

    def _step_ms(self) -> list[float]:
        window = slice(self._warmup - 1, self._warmup + self._steps)
        if self._cuda:
            events = self._events[window]
            return [float(a.elapsed_time(b)) for a, b in pairwise(events)]
        times_s = self._times_s[window]
        return [1000 * (b - a) for a, b in pairwise(times_s)]


def peak_gb(*, cuda: bool) -> float:
    """What this process took at most, in GB (10^9 bytes): see ``Measured.peak_mem_gb``."""
    if cuda:
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


class Tokens(Dataset[dict[str, Tensor]]):
    """The prepared tokens as samples, as many as all steps need: short texts begin again."""

    def __init__(self, request: Request, *, mask: bool = False) -> None:
        """Args: mask: samples have an attention mask, as tokenizers make it."""
        self._tokens = np.memmap(request.tokens, dtype=request.dtype, mode="r")
        self._work = request.work
        self._steps = request.warmup + request.steps
        self._mask = mask

    def __len__(self) -> int:
        return self._steps * self._work.micro_batch

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.from_numpy(self._read(index, 1)[0, :-1].copy())
        return {"input_ids": ids, "labels": ids, **({"attention_mask": torch.ones_like(ids)} if self._mask else {})}

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step (0 is the first), each (micro_batch, seq_len)."""
        ids = torch.from_numpy(self._read(step * self._work.micro_batch, self._work.micro_batch))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def _read(self, first: int, count: int) -> NDArray[np.int64]:
        length = self._work.seq_len
        positions = (first + np.arange(count))[:, None] * length + np.arange(length + 1)
        ids: NDArray[np.int64] = np.take(self._tokens, positions, mode="wrap").astype(np.int64)
        return ids


def precision_sections(request: Request) -> dict[str, Any]:
    """The section of DeepSpeed's configuration that says the number format."""
    return {} if request.work.precision == "fp32" else {request.work.precision: {"enabled": True}}


def be_the_only_rank() -> None:
    """What a launcher would say to a single process; call it before DeepSpeed is imported."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def without_cpu_kernels(request: Request) -> None:
    """Keeps DeepSpeed from compiling its reduction for ranks on CPUs, which takes a minute and is not needed."""
    import deepspeed

    if request.device == "cpu":
        deepspeed.ops.__compatible_ops__ = {}
