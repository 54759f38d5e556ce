"""Runs with random troubles of their own, and the state that each of them deserves in the end. Drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dscampaign.db.states import RunState

from .trial import REAL, case

REAL_SHARE = 0.04
"""Runs that the real `deepspeed` launcher starts: five seconds of a core each time."""

COMPLETED = frozenset({RunState.COMPLETED})
FAILED = frozenset({RunState.FAILED})
GIVEN_UP = frozenset({RunState.FAILED, RunState.HELD})

SCAVENGE: Mapping[str, Any] = {"slurm.partition": "scavenge", "slurm.gpus_per_node": "h100:1"}
ON_CPU: Mapping[str, Any] = {"env.DS_ACCELERATOR": "cpu"}
MEMORY: Mapping[str, Any] = {"slurm.gpus_per_node": "h100:1", "slurm.mem": "300M"}
IMPATIENT: Mapping[str, Any] = {"retry.crash": 3}
MISTAKES = ("extra-key", "batch", "no-module", "wrong-argument", "wrong-name", "syntax")


@dataclass(frozen=True)
class Planned:
    """One run of the soak.

    Attributes:
        case: What the spec says of it.
        deserves: The states in which it may end.
        mistaken: Whether its script makes a mistake: a certain one is tried once, a likely one twice.
    """

    name: str
    case: Mapping[str, Any]
    deserves: frozenset[RunState]
    mistaken: bool = False


def draw(rng: random.Random, number: int) -> Planned:
    """The run of that number."""
    kinds: dict[Callable[[random.Random, str], Planned], int] = {
        _plain: 6,
        _unlucky: 7,
        _preemptable: 4,
        _wide: 2,
        _mistaken: 2,
        _hopeless: 1,
        _hungry: 1,
    }
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    return kind(rng, f"{kind.__name__.strip('_')}-{number}")


def _plain(rng: random.Random, label: str) -> Planned:
    """Nothing of its own goes wrong."""
    real = REAL if rng.random() < REAL_SHARE * 2 else {}
    return _planned(label, *_training(rng), **real)


def _unlucky(rng: random.Random, label: str) -> Planned:
    """Something goes wrong once or twice that another try gets over."""
    steps, *options = _training(rng)
    kinds = ["kill=9", "kill=6", "kill=11", "exit=3", "raise=boom", "launcher=9", "agent=9", "save=9", "truncate=9"]
    troubles = [f"{kind}@{rng.randint(2, int(steps))}" for kind in rng.sample(kinds, rng.choice((1, 1, 2)))]
    real = REAL if rng.random() < REAL_SHARE else {}
    return _planned(label, steps, *options, *troubles, **real)


def _preemptable(rng: random.Random, label: str) -> Planned:
    """Whoever is of higher priority may take its node."""
    return _planned(label, *_training(rng), **SCAVENGE, **ON_CPU)


def _wide(rng: random.Random, label: str) -> Planned:
    """Two ranks, on one node or on two."""
    nodes = rng.choice((1, 2))
    return _planned(label, *_training(rng), **{"slurm.nodes": nodes, "ranks_per_node": 3 - nodes})


def _mistaken(rng: random.Random, label: str) -> Planned:
    """Would fail for ever in the same way."""
    name = rng.choice(MISTAKES)
    return Planned(f"case-{label}", case(label, "3", f"mistake={name}@1x99"), FAILED, mistaken=True)


def _hopeless(rng: random.Random, label: str) -> Planned:
    """Never comes past one step, for a reason that nobody knows."""
    step = rng.randint(2, 5)
    return Planned(f"case-{label}", case(label, "8", f"raise=never further@{step}x99", **IMPATIENT), GIVEN_UP)


def _hungry(rng: random.Random, label: str) -> Planned:
    """Needs more memory than it has asked for."""
    return _planned(label, "6", f"alloc=400@{rng.randint(1, 4)}x99", **MEMORY)


def _training(rng: random.Random) -> tuple[str, ...]:
    """Between one and ten seconds."""
    return str(rng.randint(6, 20)), f"--step-s={rng.uniform(0.15, 0.5):.2f}", "--every=1"


def _planned(label: str, *command: str, **settings: Any) -> Planned:
    return Planned(f"case-{label}", case(label, *command, **settings), COMPLETED)
