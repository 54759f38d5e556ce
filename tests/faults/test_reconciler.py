"""What befalls the reconciler: killed at every effect, two at once, stopped past its lease, clocks that differ."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.orchestrator.reconcile import act, attempt_files, lease
from dscampaign.orchestrator.reconcile import loop as reconcile
from dscampaign.orchestrator.reconcile import submit as submission
from dscampaign.orchestrator.reconcile.actions import Finish
from dscampaign.orchestrator.reconcile.lease import LeaseHolder
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.waiting import CAMPAIGN_HANGS_S, wait_until

from . import processes
from .processes import EXIT_STALE, Boundary
from .promises import broken_promises
from .trial import SLURM, Trial, begin, case

HOUR_S = 3600.0
SOON_S = 2.0


def _ends(actions: object, *_: object) -> bool:
    assert isinstance(actions, list)
    return any(isinstance(action, Finish) for action in actions)


def _submits(command: list[str], **_: object) -> bool:
    return command[0] == "sbatch"


EFFECTS = [
    Boundary(reconcile, "take_lease", after=True),
    Boundary(submission, "write_intent", after=False),
    Boundary(submission, "write_intent", after=True),
    Boundary(act, "_revoke", after=False),
    Boundary(attempt_files, "create_exclusively", after=True),
    Boundary(act, "_revoke", after=True),
    Boundary(submission, "write_atomically", after=True),
    Boundary(submission._Submitter, "_write_files", after=True),
    Boundary(SlurmExecutor, "submit", after=False),
    Boundary(SlurmExecutor, "submit", after=True),
    Boundary(submission._Submitter, "_record_job_ids", after=False),
    Boundary(submission._Submitter, "_record_job_ids", after=True),
    Boundary(reconcile, "drain_attempt", after=False),
    Boundary(reconcile, "drain_attempt", after=True),
    Boundary(act, "record", after=False, when=_ends),
    Boundary(act, "record", after=True, when=_ends),
]
"""In the order of a pass: the first ones meet a new campaign, and each leaves what the next ones need."""


@pytest.mark.parametrize("runs_per_job", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_kill_9_of_the_reconciler_at_every_effect(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_per_job: int
) -> None:
    """After each kill another process goes on with what is there: no job is submitted twice, no end is overlooked."""
    monkeypatch.setattr(SlurmExecutor, "intent_grace_s", SOON_S)
    trial = begin(
        tmp_path,
        [
            case("killed", "6", *(f"exit=3@{step}" for step in (2, 3, 4, 5, 6))),
            *(case(f"beside-{number}", "3") for number in range(1, runs_per_job)),
        ],
        slurm={**SLURM, "runs_per_job": runs_per_job},
        retry={"backoff_s": 0, "crash": 20, "infra": 20},
    )
    url = f"sqlite:///{tmp_path}/campaign.db"
    for effect in EFFECTS:
        killed = processes.start(processes.reconcile, url, trial.campaign, partial(effect.install, signal.SIGKILL))
        killed.join(CAMPAIGN_HANGS_S)
        assert killed.exitcode == -signal.SIGKILL, f"it never came to {effect}"
    done = trial.watch()
    assert set(done.states().values()) == {RunState.COMPLETED}
    assert broken_promises(trial) == []
    ran = {attempt.job_id for attempts in done.attempts.values() for attempt in attempts if attempt.job_id}
    wait_until(lambda: jobs_of(slurm, trial) >= ran, "the accounting")
    assert jobs_of(slurm, trial) == ran


def test_two_reconcilers_at_once(slurm: SlurmCluster, postgres: PostgresServer, tmp_path: Path) -> None:
    """They take turns on two hosts, as fast as the lease lets them; each run's every attempt is submitted once."""
    url = postgres.new_database()
    cases = [case(f"r{number}", "4", "exit=3@2", "raise=again@4") for number in range(3)]
    trial = begin(tmp_path, cases, url)
    logs = [tmp_path / "one", tmp_path / "two"]
    both = [
        processes.start(processes.take_turns, url, trial.campaign, log, partial(_on_another_host, log.name))
        for log in logs
    ]
    for process in both:
        process.join(CAMPAIGN_HANGS_S)
        assert process.exitcode == 0
    done = trial.observe()
    assert set(done.states().values()) == {RunState.COMPLETED}
    assert {len(attempts) for attempts in done.attempts.values()} == {3}
    assert broken_promises(trial) == []
    wait_until(lambda: len(jobs_of(slurm, trial)) >= 9, "the accounting")
    assert len(jobs_of(slurm, trial)) == 9
    assert all(log.read_text() for log in logs), "one of them never acted"


def test_a_leader_stopped_past_its_lease(
    slurm: SlurmCluster, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped just before sbatch and wakes when another has long taken over: its late job executes nothing."""
    monkeypatch.setattr(SlurmExecutor, "intent_grace_s", SOON_S)
    monkeypatch.setattr(lease, "LEASE_TTL_S", SOON_S)
    url = postgres.new_database()
    trial = begin(tmp_path, [case("contested", "12", "--step-s=0.5")], url)
    stop = Boundary(subprocess, "run", after=False, when=_submits)
    leader = processes.start(processes.reconcile, url, trial.campaign, partial(stop.install, signal.SIGSTOP))
    wait_until(lambda: processes.is_stopped(leader), "the leader's stop")
    [late] = trial.observe().attempts["case-contested"]

    trial.watch(until=lambda: trial.ledger("case-contested").last_step() > 2)
    assert leader.pid is not None
    os.kill(leader.pid, signal.SIGCONT)
    leader.join(CAMPAIGN_HANGS_S)
    assert leader.exitcode == EXIT_STALE
    done = trial.watch()

    assert set(done.states().values()) == {RunState.COMPLETED}
    assert [a.failure_class for a in done.attempts["case-contested"]] == ["lost", "completed"]
    [job] = ended_jobs(slurm, late.token)
    assert trial.ledger("case-contested").generations() == [2]
    assert job not in {line.job for line in trial.ledger("case-contested").lines}
    assert broken_promises(trial) == []


def test_a_clock_one_hour_off(slurm: SlurmCluster, postgres: PostgresServer, tmp_path: Path) -> None:
    """The nodes' clock is an hour off one way, the reconciler's the other: only the database's clock counts."""
    cases = [case("crash", "8", "--step-s=0.3", "exit=3@4"), case("silent", "6", "agent=9@3")]
    started = []
    for ahead_s in (HOUR_S, -HOUR_S):
        (folder := tmp_path / f"{ahead_s:+.0f}").mkdir()
        setup = [f'export PYTHONPATH="{_clock(folder, ahead_s)}:$PYTHONPATH"']
        url = postgres.new_database()
        trial = begin(folder, cases, url, slurm={**SLURM, "setup": setup}, retry={"backoff_s": 1})
        shift = partial(_shift_clock, -ahead_s)
        started.append((ahead_s, trial, processes.start(processes.reconcile, url, trial.campaign, shift)))
    for ahead_s, trial, process in started:
        process.join(CAMPAIGN_HANGS_S)
        assert process.exitcode == 0
        done = trial.observe()
        assert set(done.states().values()) == {RunState.COMPLETED}
        assert {name: len(attempts) for name, attempts in done.attempts.items()} == {"case-crash": 2, "case-silent": 2}
        assert broken_promises(trial) == []
        [first, *_] = trial.ledger("case-crash").lines
        assert abs(first.ts - time.time() - ahead_s) < HOUR_S / 2, "the clock was right"


def jobs_of(slurm: SlurmCluster, trial: Trial) -> set[str]:
    """The jobs that Slurm has ever seen of a campaign's attempts."""
    names = {a.token for attempts in trial.observe().attempts.values() for a in attempts}
    lines = slurm.run("sacct", "-X", "-n", "-P", f"--name={','.join(sorted(names))}", "--format=JobID")
    return set(lines.split())


def ended_jobs(slurm: SlurmCluster, token: str) -> list[str]:
    """The jobs of one batch, once they are over."""
    query = ["sacct", "-X", "-n", "-P", f"--name={token}", "--format=JobID,End"]

    def over() -> bool:
        lines = slurm.run(*query).splitlines()
        return bool(lines) and not any(line.endswith("|Unknown") for line in lines)

    wait_until(over, "the late job's end")
    return [line.split("|")[0] for line in slurm.run(*query).splitlines()]


def _on_another_host(name: str) -> None:
    """Nobody can tell whether the process that holds the lease is alive."""
    holder = LeaseHolder(name, str(os.getpid()), "0")
    setattr(LeaseHolder, "me", staticmethod(lambda: holder))  # noqa: B010
    setattr(LeaseHolder, "dead", property(lambda _: False))  # noqa: B010


def _shift_clock(ahead_s: float) -> None:
    real = time.time
    setattr(time, "time", lambda: real() + ahead_s)  # noqa: B010


def _clock(folder: Path, ahead_s: float) -> Path:
    """A folder that, on PYTHONPATH, puts the clock of every Python process wrong."""
    made = folder / "clock"
    made.mkdir()
    (made / "sitecustomize.py").write_text(
        f"import time\n_real = time.time\ntime.time = lambda: _real() + {ahead_s!r}\n"
    )
    return made
