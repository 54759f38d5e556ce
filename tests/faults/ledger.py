"""What was executed, as the training script itself wrote it down, whatever the program under test believes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """One event of one process of an attempt."""

    what: str
    step: int
    generation: int
    rank: int
    pid: int
    job: str
    node: str
    ts: float
    name: str = ""
    gpus: str = ""


@dataclass(frozen=True)
class Ledger:
    """All lines of one run, over all its attempts and ranks, in the order in which they were written."""

    run: str
    lines: tuple[Line, ...]

    @classmethod
    def read(cls, folder: Path, run: str) -> Ledger:
        """The ledger so far; empty while nothing was executed."""
        path = folder / f"{run}.jsonl"
        texts = path.read_text().splitlines() if path.exists() else []
        return cls(run, tuple(Line(**json.loads(text)) for text in texts))

    def steps(self, generation: int) -> list[int]:
        """The steps that the first rank of one attempt executed, in order."""
        return [line.step for line in self.of(generation) if line.what == "step" and line.rank == 0]

    def of(self, generation: int) -> list[Line]:
        """The lines of one attempt."""
        return [line for line in self.lines if line.generation == generation]

    def generations(self) -> list[int]:
        """The attempts of which a process began, in order."""
        return sorted({line.generation for line in self.lines})

    def last_step(self) -> int:
        """The newest step that any attempt executed."""
        return max((line.step for line in self.lines if line.what == "step"), default=0)

    def faults(self) -> list[str]:
        """The faults that have happened, of the script's own making or from outside."""
        return [line.name for line in self.lines if line.name]


def duplicate_executions(ledger: Ledger) -> Iterator[str]:
    """Every way in which something ran twice: two processes as one rank, two attempts at a time, a step again."""
    yield from _two_processes(ledger)
    yield from _at_a_time(ledger)
    for generation in ledger.generations():
        steps = ledger.steps(generation)
        if any(after != before + 1 for before, after in pairwise(steps)):
            yield f"{ledger.run}: attempt {generation} executed the steps {steps}"


def _two_processes(ledger: Ledger) -> Iterator[str]:
    processes: dict[tuple[int, int], set[tuple[str, int]]] = defaultdict(set)
    for line in (line for line in ledger.lines if line.what != "outside"):
        processes[line.generation, line.rank].add((line.job, line.pid))
    for (generation, rank), found in processes.items():
        if len(found) > 1:
            yield f"{ledger.run}: rank {rank} of attempt {generation} was {len(found)} processes: {sorted(found)}"


def _at_a_time(ledger: Ledger) -> Iterator[str]:
    """Once an attempt has begun, no process of an earlier one executes anything."""
    newest = 0
    for line in ledger.lines:
        if line.generation < newest and line.what != "outside":
            yield f"{ledger.run}: attempt {line.generation} executed step {line.step} after attempt {newest} had begun"
        newest = max(newest, line.generation)


@dataclass(frozen=True)
class Restart:
    """Where an attempt after the first began.

    Attributes:
        saved: The newest step of which the script knew that it was saved.
        saving: The newest step that it may have saved, or was killed while it did.
    """

    saved: int
    saving: int
    began: int


def restarts(ledger: Ledger) -> list[Restart]:
    """Every attempt after the first, in order."""
    found, saved, saving, generation = [], 0, 0, 0
    for line in ledger.lines:
        if line.what == "start" and line.generation > generation:
            if generation:
                found.append(Restart(saved, saving, line.step))
            generation = line.generation
            saved = saving = line.step
        elif line.what == "saving":
            saving = max(saving, line.step)
        elif line.what == "saved":
            saved = line.step
    return found


def read_all(folder: Path, runs: Sequence[str]) -> dict[str, Ledger]:
    """The ledger of each run."""
    return {run: Ledger.read(folder, run) for run in runs}
