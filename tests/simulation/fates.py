"""The ways in which a job can end, and what the program may make of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fate:
    """How a job ends.

    Attributes:
        state: Slurm's word for it.
        classes: what the attempt may be called, when the program saw all that there was to see.
        exit: the ranks' exit code, None for a signal.
        error: type and message that the first rank wrote down.
        ended_by: the agents' word.
        word: whether the agents leave one at all.
        blind: what it may be called as well when Slurm had forgotten the job.
        zombie: the processes go on.
        saves: a checkpoint is written at the end.
        reaches: the training goes on to its target first.
    """

    state: str
    classes: frozenset[str]
    exit: int | None = None
    error: tuple[str, str] | None = None
    ended_by: str = ""
    word: bool = True
    blind: frozenset[str] = frozenset()
    step_out_of_memory: bool = False
    zombie: bool = False
    saves: bool = False
    reaches: bool = False


def _fate(state: str, *classes: str, **values: object) -> Fate:
    return Fate(state, frozenset(classes), **values)  # type: ignore[arg-type]


GUESSES = frozenset({"lost", "crash"})
COMPLETES = _fate("COMPLETED", "completed", exit=0, reaches=True)

FATES = {
    "completes": COMPLETES,
    "completes, Slurm says FAILED": _fate("FAILED", "completed", exit=0, reaches=True),
    "stops": _fate("COMPLETED", "stopped", exit=85, ended_by="stop", saves=True),
    "raises": _fate("FAILED", "crash", exit=1, error=("builtins.RuntimeError", "boom")),
    "loses a rank": _fate("FAILED", "crash"),
    "has a mistake": _fate("FAILED", "deterministic", exit=1, error=("builtins.SyntaxError", "invalid syntax")),
    "diverges": _fate(
        "FAILED", "diverged", exit=1, error=("builtins.FloatingPointError", "non-finite loss nan at step 3")
    ),
    "is out of GPU memory": _fate(
        "FAILED",
        "oom",
        exit=1,
        error=("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate {micro_batch}.00 GiB"),
    ),
    "is out of host memory": _fate("OUT_OF_MEMORY", "host_oom", word=False, blind=GUESSES),
    "is out of host memory, hidden": _fate("FAILED", "host_oom", blind=GUESSES, step_out_of_memory=True),
    "is preempted": _fate("PREEMPTED", "preempted", ended_by="signal", blind=GUESSES),
    "is preempted without a word": _fate("PREEMPTED", "preempted", word=False, blind=GUESSES),
    "runs out of time": _fate("TIMEOUT", "time_limit", ended_by="signal", blind=GUESSES),
    "runs out of time without a word": _fate("TIMEOUT", "time_limit", word=False, blind=GUESSES),
    "loses its node": _fate("NODE_FAIL", "node", word=False, blind=GUESSES),
    "loses its node, trains on": _fate("NODE_FAIL", "node", word=False, blind=GUESSES, zombie=True),
    "loses its agent": _fate("FAILED", "crash", word=False, blind=GUESSES),
    "is cancelled by somebody": _fate("CANCELLED", "cancelled", ended_by="signal", blind=GUESSES),
}

PENDING_FATES = {
    "never boots": _fate("BOOT_FAIL", "node", word=False, blind=GUESSES),
    "is cancelled by somebody": _fate("CANCELLED", "cancelled", word=False, blind=GUESSES),
}
"""What may become of a job that has not begun."""

VANISHES = _fate("", "lost", "crash", word=False)
"""Slurm has lost its state: the job is gone, and nobody says anything."""
