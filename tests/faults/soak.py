"""A campaign of many short runs under random faults, and a report of what became of it.

    python -m tests.faults.soak [--seconds 1200] [--seed N]        (make soak)

Most attempts are started by a stand-in for the `deepspeed` launcher, which takes seconds to start; a few in a hundred
use the real one. Everything else is real: Slurm, its agents, PostgreSQL, the reconciler as a process of its own. The
folder is kept where a promise was broken, with the database's.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

from dscampaign.db.errors import StoreError
from dscampaign.db.records import CampaignRow
from dscampaign.db.states import SETTLED_RUN
from dscampaign.orchestrator.executors import slurm
from dscampaign.orchestrator.executors.job_listing import list_jobs
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.tests.support.campaigns import Observed
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.slurm_fixtures import running_cluster
from dscampaign.tests.support.waiting import CAMPAIGN_HANGS_S

from . import processes
from .disk import SmallDisk
from .injector import Injector, Victims
from .ledger import Ledger
from .promises import broken_promises
from .trial import SLURM, Trial, begin, grow
from .workload import Planned, draw

NODES = 4
CPUS_PER_TASK = 32  # of the 128 that a node claims: sixteen attempts at a time
DISK_MB = 256
SECONDS_PER_RUN = 3.0
WAVES = 5
STRIKING_SHARE = 0.7
"""Of the time; the rest is for what was struck to come to its end."""

GAP_S = (0.2, 2.0)
NOT_ROOT = 1000
"""Whoever runs this is root, but users are not: what root cancels here, Slurm itself has cancelled."""

INTENT_GRACE_S = 10.0
TIME_LIMIT_MIN = 2
"""Of a job: a node that waits for another one's dead agent would do so for ten minutes."""

LOST_GRACE_S = 25.0  # more than two heartbeats of an agent; ten minutes would be longer than most soaks
RETRY = {"backoff_s": 1, "max_backoff_s": 5, "crash": 12, "infra": 30, "host_oom": 4}


@dataclass
class Report:
    """What became of a soak: lines to print, and every promise that was broken."""

    lines: list[str]
    broken: list[str]

    def text(self) -> str:
        """The report as printed."""
        return "\n".join([*self.lines, f"broken promises: {len(self.broken)}", *self.broken])


@dataclass
class Soak:
    """A soak in `folder`, whose path is short because sockets lie in it."""

    folder: Path
    seed: int
    seconds: float
    _trial: Trial = field(init=False)
    _reconciler: BaseProcess = field(init=False)
    _planned: list[Planned] = field(default_factory=list)

    def run(self) -> Report:
        """Runs it."""
        rng = random.Random(self.seed)
        start_s = time.monotonic()
        with ExitStack() as stack:
            cluster = stack.enter_context(running_cluster(self.folder / "slurm", NODES))
            database = stack.enter_context(PostgresServer())
            disk = stack.enter_context(SmallDisk(self.folder / "disk", DISK_MB))
            url = database.new_database()
            self._draw(rng, 0)
            slurm = {**SLURM, "cpus_per_task": CPUS_PER_TASK, "time": TIME_LIMIT_MIN, "signal_delay_s": 20}
            cases = [planned.case for planned in self._planned]
            self._trial = begin(self.folder, cases, url, dir=disk.path / "c", slurm=slurm, retry=RETRY)
            self._start_reconciler(url)
            victims = Victims(
                cluster,
                database,
                disk,
                partial(self._kill_reconciler, url),
                disk.path / "c" / "faults" / "runs",
                self._trial.ledgers,
            )
            injector = Injector(random.Random(self.seed + 1), victims)
            self._strike(injector, rng, start_s)
            settled = self._settle(start_s)
            self._reconciler.kill()
            self._reconciler.join()
            report = self._report(injector, time.monotonic() - start_s)
            if not settled:
                report.broken.append(f"not settled: {self._unsettled()}; {cluster.run('squeue', '-h')}")
            self._trial.store.close()
            if report.broken:
                database.stop()
                shutil.copytree(database.dir, self.folder / "postgres")
        return report

    def _draw(self, rng: random.Random, wave: int) -> None:
        """A wave's share of the runs."""
        total = max(WAVES, int(self.seconds / SECONDS_PER_RUN))
        for number in range(total * wave // WAVES, total * (wave + 1) // WAVES):
            self._planned.append(draw(rng, number))

    def _strike(self, injector: Injector, rng: random.Random, start_s: float) -> None:
        """Fault after fault, and wave after wave of runs: the spec grows while its campaign runs."""
        until_s = start_s + self.seconds * STRIKING_SHARE
        wave, began_s = 1, time.monotonic()
        while (now_s := time.monotonic()) < until_s:
            if wave < WAVES and now_s - began_s > wave * (until_s - began_s) / WAVES:
                self._draw(rng, wave)
                wave += 1
            self._submit_all()
            injector.strike()
            injector.mend()
            time.sleep(injector.rng.uniform(*GAP_S))
        while wave < WAVES:
            self._draw(rng, wave)
            wave += 1
        injector.mend(everything=True)
        self._submit_all()

    def _submit_all(self) -> None:
        """Records what the campaign does not have yet; a database that is away is for the next time."""
        if len(self._planned) > self._trial.cases:
            with suppress(StoreError):
                grow(self._trial, [planned.case for planned in self._planned])

    def _settle(self, start_s: float) -> bool:
        until_s = max(start_s + self.seconds, time.monotonic() + CAMPAIGN_HANGS_S)
        while time.monotonic() < until_s:
            if not self._unsettled():
                return True
            time.sleep(1)
        return False

    def _unsettled(self) -> list[str]:
        runs = self._trial.observe().runs
        return [name for name, run in runs.items() if run.state not in SETTLED_RUN] or (
            [] if len(runs) == len(self._planned) else ["some were never recorded"]
        )

    def _start_reconciler(self, url: str) -> None:
        self._reconciler = processes.start(_reconcile_for_ever, url, self._trial.campaign)

    def _kill_reconciler(self, url: str) -> None:
        self._reconciler.kill()
        self._reconciler.join()
        self._start_reconciler(url)

    def _report(self, injector: Injector, seconds: float) -> Report:
        seen = self._trial.observe()
        lines = [f"seed {self.seed}, {seconds:.0f} s", *_summary(seen), _line("faults", injector.count)]
        broken = [
            *broken_promises(self._trial),
            *(text for planned in self._planned for text in _verdict(planned, seen, self._trial.ledger(planned.name))),
        ]
        return Report(lines, broken)


def _verdict(planned: Planned, seen: Observed, ledger: Ledger) -> Iterator[str]:
    """Whether a run ended as its script deserves."""
    run = seen.runs.get(planned.name)
    if run is None or run.state not in planned.deserves:
        what = f"{run.state}: {run.reason}" if run else "never recorded"
        yield f"{planned.name} deserves {'/'.join(sorted(planned.deserves))}, and is {what}"
    elif planned.mistaken:
        tried = {line.generation for line in ledger.lines if line.name.startswith("mistake")}
        kinds = [one.failure_class for one in seen.attempts[planned.name] if one.generation in tried]
        if kinds.count("deterministic") != 1 and kinds.count("crash") != 2:  # a likely mistake is tried twice
            yield f"{planned.name}: a mistake, tried as {kinds}"


def _summary(seen: Observed) -> list[str]:
    attempts = [attempt for rows in seen.attempts.values() for attempt in rows]
    delays = [a.evidence["seen_s"] - a.ended_s for a in attempts if a.ended_s and "seen_s" in a.evidence]
    delay = f"median {statistics.median(delays):.1f} s, most {max(delays):.1f} s" if delays else "none"
    return [
        _line("runs", Counter(str(run.state) for run in seen.runs.values())),
        _line("attempts", Counter(attempt.failure_class or "?" for attempt in attempts)),
        f"steps: {sum(len(seen.steps(name)) for name in seen.runs)}",
        f"from an attempt's end to the decision, outages included: {delay}",
    ]


def _reconcile_for_ever(url: str, campaign: CampaignRow) -> None:
    SlurmExecutor.intent_grace_s, SlurmExecutor.lost_grace_s = INTENT_GRACE_S, LOST_GRACE_S
    SlurmExecutor.user = property(lambda _: NOT_ROOT)  # type: ignore[assignment, method-assign] # who may cancel
    # the jobs are root's all the same
    slurm.list_jobs = lambda *query: list_jobs(*query[:3], os.getuid())  # type: ignore[attr-defined, call-arg]
    while True:
        with suppress(StoreError):  # it was away when the store was opened
            processes.reconcile(url, campaign)
        time.sleep(processes.POLL_S)


def _line(what: str, counted: Counter[str]) -> str:
    return f"{what}: {counted.total()}: " + ", ".join(f"{count} {name}" for name, count in counted.most_common())


def main() -> int:
    """Runs a soak and prints its report; exit code 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    print(f"soak: seed {seed}, {options.seconds:.0f} s, in {folder}", flush=True)
    report = Soak(folder, seed, options.seconds).run()
    print(report.text(), flush=True)
    if not report.broken:
        shutil.rmtree(folder)
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
