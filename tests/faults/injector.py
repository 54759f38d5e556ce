"""Faults from outside, from a seed: servers die and hang, processes are killed, disks fill, checkpoints break."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dscampaign.tests.support.attempt import submitted_payload
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.slurm_cluster import SlurmCluster

from .disk import SmallDisk
from .ledger import Ledger

HITS_PER_RUN = 3
"""From outside: enough to try every budget, too few to use one up."""

OUTAGE_S = (1.0, 5.0)
NODE_OUTAGE_S = (2.0, 40.0)
"""Short of what makes Slurm give a node up, and beyond it."""

BRAINS = {"kill slurmctld", "stop slurmctld", "kill slurmdbd"}


@dataclass(frozen=True)
class Process:
    """A process of an attempt: its agent, its launcher, or a rank."""

    pid: int
    kind: str
    run: str
    generation: int
    job: str
    node: str


@dataclass
class Victims:
    """What may be hit.

    Attributes:
        reconciler: Kills the reconciler and starts another.
        runs: The campaign's folder of runs.
    """

    cluster: SlurmCluster
    database: PostgresServer
    disk: SmallDisk
    reconciler: Callable[[], None]
    runs: Path
    ledgers: Path


@dataclass
class Injector:
    """Deals the faults like cards: every kind once before any comes again."""

    rng: random.Random
    victims: Victims
    count: Counter[str] = field(default_factory=Counter)
    _hits: Counter[str] = field(default_factory=Counter)
    _deck: list[str] = field(default_factory=list)
    _ahead: dict[str, tuple[float, Callable[[], None]]] = field(default_factory=dict)

    def strike(self) -> str:
        """Does the next fault; returns its name, "" where there was nothing to hit."""
        if not self._deck:
            self._deck = sorted(self._faults())
            self.rng.shuffle(self._deck)
        for name in self._deck:
            if self._free(name) and self._faults()[name]():
                self._deck.remove(name)
                self.count[name] += 1
                return name
        return ""

    def _free(self, name: str) -> bool:
        """Whether it goes with the outages that last: slurmctld does not start where slurmdbd is away too."""
        return name not in self._ahead and not (name in BRAINS and BRAINS & self._ahead.keys())

    def mend(self, everything: bool = False) -> None:
        """Ends the outages whose time has come, and does what an administrator does: Slurm drains nodes by itself."""
        for name, (due_s, act) in list(self._ahead.items()):
            if everything or time.monotonic() >= due_s:
                del self._ahead[name]
                act()
        if not BRAINS & self._ahead.keys():
            self.victims.cluster.undrain()

    def _faults(self) -> dict[str, Callable[[], bool]]:
        cluster = self.victims.cluster
        return {
            "kill slurmctld": lambda: self._server("kill slurmctld", "slurmctld"),
            "stop slurmctld": lambda: self._stopped("stop slurmctld", "slurmctld"),
            "kill slurmdbd": lambda: self._server("kill slurmdbd", "slurmdbd"),
            "kill slurmd": lambda: self._server("kill slurmd", self.rng.choice(cluster.nodes), NODE_OUTAGE_S),
            "kill database": self._database,
            "kill reconciler": self._reconciler,
            "kill agent": lambda: self._kill("agent", signal.SIGKILL),
            "kill launcher": lambda: self._kill("launcher", signal.SIGKILL),
            "kill rank": lambda: self._kill("rank", self.rng.choice((signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV))),
            "preempt": self._preempt,
            "time limit": self._expire,
            "full disk": self._fill,
            "truncate checkpoint": self._truncate,
        }

    # -- servers -------------------------------------------------------------------------------------------------

    def _server(self, name: str, server: str, outage_s: tuple[float, float] = OUTAGE_S) -> bool:
        self.victims.cluster.kill(server)
        self._later(name, outage_s, lambda: self.victims.cluster.start(server))
        return True

    def _stopped(self, name: str, server: str) -> bool:
        self.victims.cluster.pause(server)
        self._later(name, OUTAGE_S, lambda: self.victims.cluster.resume(server))
        return True

    def _database(self) -> bool:
        self.victims.database.stop("immediate")
        self._later("kill database", OUTAGE_S, self.victims.database.start)
        return True

    def _reconciler(self) -> bool:
        self.victims.reconciler()
        return True

    def _fill(self) -> bool:
        self.victims.disk.fill()
        self._later("full disk", OUTAGE_S, self.victims.disk.free)
        return True

    def _later(self, name: str, within_s: tuple[float, float], act: Callable[[], None]) -> None:
        self._ahead[name] = (time.monotonic() + self.rng.uniform(*within_s), act)

    # -- attempts ------------------------------------------------------------------------------------------------

    def _kill(self, kind: str, number: signal.Signals) -> bool:
        victim = self._pick(kind)
        if victim:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, number)
        return victim is not None

    def _expire(self) -> bool:
        victim = self._pick("agent")
        return victim is not None and self._asked("scontrol", "update", f"JobId={victim.job}", "EndTime=now+1")

    def _preempt(self) -> bool:
        """Takes a node, if every preemptable attempt on it has something to resume from."""
        found = [process for process in self._processes("agent") if "preemptable" in process.run]
        nodes = sorted({process.node for process in found})
        nodes = [node for node in nodes if all(self._fair(p) for p in found if p.node == node)]
        if not nodes:
            return False
        node = self.rng.choice(nodes)
        self._hits.update(process.run for process in found if process.node == node)
        return self._asked(
            "sbatch", "-p", "h100", "-w", node, "--gpus-per-node=8", "--time=1", "-o", "/dev/null", "--wrap=sleep 1"
        )

    def _truncate(self) -> bool:
        """Cuts the newest checkpoint of a run that trains."""
        victim = self._pick("rank")
        found = sorted(self.victims.runs.glob(f"{victim.run}/checkpoints/*/g*[0-9]/shard.bin")) if victim else []
        if not victim or not found:
            return False
        newest = max(found, key=lambda path: path.parent.name.rpartition("step")[2])
        with contextlib.suppress(OSError):
            os.truncate(newest, 7)
        who = {"generation": victim.generation, "rank": 0, "pid": 0, "job": victim.job, "node": ""}
        self._write_down(victim.run, {"what": "outside", "name": "truncate", "step": 0, **who})
        return True

    def _write_down(self, run: str, line: dict[str, Any]) -> None:
        descriptor = os.open(self.victims.ledgers / f"{run}.jsonl", os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, (json.dumps({**line, "ts": time.time()}) + "\n").encode())
        os.close(descriptor)

    def _asked(self, *command: str) -> bool:
        try:
            self.victims.cluster.run(*command, "--quiet" if command[0] == "sbatch" else "-Q", timeout_s=5)
        except Exception:  # noqa: BLE001 a controller that is away is a fault of its own
            return False
        return True

    def _pick(self, kind: str) -> Process | None:
        found = [process for process in self._processes(kind) if self._fair(process)]
        if not found:
            return None
        victim = self.rng.choice(found)
        self._hits[victim.run] += 1
        return victim

    def _fair(self, process: Process) -> bool:
        """Whether it was not hit too often, and has saved a step: bad luck must not look like a run that hangs."""
        lines = Ledger.read(self.victims.ledgers, process.run).of(process.generation)
        return self._hits[process.run] < HITS_PER_RUN and any(line.what == "saved" for line in lines)

    def _processes(self, kind: str) -> Iterator[Process]:
        for pid in sorted(self.victims.cluster.job_pids()):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                if (found := _process(pid)) and found.kind == kind:
                    yield found


def _process(pid: int) -> Process | None:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    env = dict(entry.split("=", 1) for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in entry)
    job = f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    node = env.get("SLURMD_NODENAME", "")
    if "dscampaign.jobs.agent" in words and "python" in words[0]:
        payload = submitted_payload(Path(words[-1]), int(env["SLURM_ARRAY_TASK_ID"]))
        return Process(pid, "agent", payload.run, payload.generation, job, node)
    who = env["CAMPAIGN_RUN"], int(env["CAMPAIGN_GENERATION"]), job, node
    if "deepspeed.launcher.runner" in words:
        return Process(pid, "launcher", *who)
    if any(word.endswith("/jobs/rank.py") for word in words) and "deepspeed.launcher.launch" not in words:
        return Process(pid, "rank", *who)
    return None
