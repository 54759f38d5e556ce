"""`campaign submit` killed at random moments, and typed again: each run is submitted, and none of them twice.

    python -m tests.faults.killed_submissions [--runs 3000] [--kills 40] [--seed N]

Slurm is a stub that queues what it is given, so that only the submitter is put to the test: an array is in its queue or
is not, whatever became of the process that asked for it.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dscampaign.benchmarks.scale import UNSETTLED, make_campaign
from dscampaign.db import queries, schema
from dscampaign.db.states import ACTIVE_ATTEMPT, AttemptState
from dscampaign.db.store import Store
from dscampaign.tests.support.waiting import HANGS_S

LONG_AGO_S = 3600.0
"""More than any grace for a job to show up, and than the wait before the next attempt."""

CAMPAIGN = "scale"


@dataclass(frozen=True)
class Kill:
    """One submission, how long it was let run, and whether what it had started was killed with it."""

    after_s: float
    children: bool


def try_kills(folder: Path, runs: int, kills: int, seed: int) -> list[str]:
    """Tries so many moments of one submission, each with a store of its own; returns the promises that were broken."""
    chance = random.Random(seed)
    began = time.monotonic()
    broken = list(_tried(folder / "whole", runs, None))
    takes_s = time.monotonic() - began
    for number in range(kills):
        kill = Kill(chance.uniform(0.0, takes_s), chance.random() < 0.5)
        broken += [f"{kill}: {what}" for what in _tried(folder / str(number), runs, kill)]
    return broken


def _tried(folder: Path, runs: int, kill: Kill | None) -> Iterator[str]:
    """What is wrong after a submission, killed or not, another one, and as many passes as it takes."""
    folder.mkdir()
    env = make_campaign(folder, runs)
    submit = [sys.executable, "-m", "dscampaign.orchestrator.cli", "submit", "spec.yaml", "--yes"]
    if kill is not None:
        _run_killed(submit, folder, env, kill)
    yield from _run(submit, folder, env)
    store = Store.open(f"sqlite:///{folder}/campaign/campaign.db")
    try:
        for _ in range(3):  # the first gives up what surely has no job, the second puts it back, the third submits it
            _let_time_pass(store)
            yield from _run([*submit[:3], "reconcile", CAMPAIGN], folder, env)
        yield from _wrong(store, folder, runs)
    finally:
        store.close()


def _run_killed(command: Sequence[str], folder: Path, env: Mapping[str, str], kill: Kill) -> None:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        process.wait(kill.after_s)
    except subprocess.TimeoutExpired:
        if kill.children:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()


def _run(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> Iterator[str]:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=HANGS_S, check=False)
    if done.returncode not in (0, UNSETTLED):
        yield f"{command[3]} ended with {done.returncode}: {done.stderr[-500:]}"


def _let_time_pass(store: Store) -> None:
    """As if intents had been made long ago, and what waits for its next attempt had waited long enough."""
    row = schema.attempt.c
    with store.write() as conn:
        old = {name: row[name] - LONG_AGO_S for name in ("created_s", "heartbeat_s")}
        conn.execute(schema.attempt.update().where(row.state == AttemptState.INTENT).values(old))
        conn.execute(schema.attempt.update().values(ended_s=row.ended_s - LONG_AGO_S))


def _wrong(store: Store, folder: Path, runs: int) -> Iterator[str]:
    """Compares what the store believes with what is in the queue."""
    with store.read() as conn:
        campaign = queries.campaign_by_name(conn, CAMPAIGN)
        assert campaign is not None
        recorded = len(queries.runs(conn, campaign.id))
        active = [row for row in queries.attempts(conn, campaign.id) if row.state in ACTIVE_ATTEMPT]
    if recorded != runs:
        yield f"{recorded} runs are recorded, not {runs}"
    if len({row.run_id for row in active}) != runs or len(active) != runs:
        yield f"{len(active)} attempts of {len({row.run_id for row in active})} runs are to run, not one of each"
    queued = Counter(_queue(folder))
    known = {(row.token, row.job_id): row for row in active}
    if lost := [key for key in known if key not in queued]:
        yield f"{len(lost)} attempts have no job, the first {lost[0]}"
    if strange := [key for key in queued if key not in known]:
        yield f"{len(strange)} jobs are of no attempt, the first {strange[0]}"
    if doubled := [key for key, number in queued.items() if number > 1]:
        yield f"{len(doubled)} jobs are there twice, the first {doubled[0]}"


def _queue(folder: Path) -> Iterator[tuple[str, str]]:
    """Names and ids of the jobs that Slurm has."""
    for line in (folder / "slurm" / "queue").read_text().splitlines():
        job_id, *_, name = line.split("|")
        yield name, job_id


def main() -> int:
    """Tries the kills and prints what was broken; exit code 1 if anything was."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=3000)
    options.add_argument("--kills", type=int, default=40)
    options.add_argument("--seed", type=int, default=None, help="default: another one each time")
    given = options.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory(prefix="killed-") as folder:
        broken = try_kills(Path(folder), given.runs, given.kills, seed)
    print(f"{given.kills} submissions of {given.runs:,} runs killed (--seed {seed}); broken promises: {len(broken)}")
    print("\n".join(broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
