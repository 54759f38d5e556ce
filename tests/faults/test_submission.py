"""A submitter that dies at the worst moment, and answers that never come: nothing is lost and nothing runs twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db.records import AttemptRow, CampaignRow
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.reconcile.loop import Reconciler
from dscampaign.tests.support import SCRIPTS
from dscampaign.tests.support.campaigns import observe, open_store, run_to_end, submit
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.waiting import HANGS_S, wait_until

from .killed_submissions import try_kills
from .trial import stand_in

SLOW = SCRIPTS / "slow.py"


def write_spec(folder: Path, *, steps: int = 3, step_s: float = 0.1, runs: int = 2, slurm: str = "") -> Path:
    """A campaign of a script that needs no GPU and learns nothing."""
    spec = folder / "spec.yaml"
    spec.write_text(
        textwrap.dedent(f"""\
        name: submission
        python: {stand_in(folder)}
        ranks_per_node: 1
        slurm: {{partition: h100, gpus_per_node: 0, time: 5, mem: 2G{slurm}}}
        retry: {{backoff_s: 0}}
        command: ["{SLOW}", "{steps}", "{step_s}", "1"]
        train: {{steps: {steps}}}
        matrix:
          env.DEPTH: {list(range(runs))}
        """)
    )
    return spec


def wrap_sbatch(folder: Path, body: str) -> dict[str, str]:
    """An environment whose sbatch is the real one with something around each submission."""
    real = shutil.which("sbatch")
    wrapper = folder / "bin" / "sbatch"
    wrapper.parent.mkdir()
    asks = 'case " $* " in *" --test-only "*) exec "$REAL" "$@" ;; esac'
    wrapper.write_text(f"#!/bin/bash\nREAL={real}\n{asks}\n{body}\n")
    wrapper.chmod(0o755)
    return {**os.environ, "PATH": f"{wrapper.parent}:{os.environ['PATH']}"}


def submit_in_a_process(spec: Path, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`campaign submit`, as a user types it."""
    command = [sys.executable, "-m", "dscampaign.orchestrator.cli", "submit", str(spec), "--dir", str(folder), "--yes"]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=HANGS_S, check=False)


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_a_submission_killed_at_any_moment_is_neither_lost_nor_repeated(tmp_path: Path, kills: int) -> None:
    """`python -m tests.faults.killed_submissions` tries many more moments, of thousands of runs."""
    assert try_kills(tmp_path, runs=15 * kills, kills=kills, seed=os.getpid()) == []


def test_a_submitter_killed_before_it_knew_the_job_id_is_not_repeated(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    env = wrap_sbatch(tmp_path, '"$REAL" "$@" >/dev/null; kill -9 $PPID')
    killed = submit_in_a_process(spec, tmp_path, env)
    assert killed.returncode == -signal.SIGKILL
    store = Store.open(f"sqlite:///{tmp_path}/campaign.db")
    campaign = submit(spec, tmp_path, store)
    before = observe(store, campaign)
    assert {a.state for rows in before.attempts.values() for a in rows} == {AttemptState.INTENT}

    done = run_to_end(store, campaign)

    assert set(done.states().values()) == {RunState.COMPLETED}
    assert all(len(rows) == 1 for rows in done.attempts.values())
    assert len([e for e in done.events() if e.kind == "adopted"]) == 2
    assert jobs_of(slurm, done.attempts, once=2) == 2


def test_an_answer_that_never_came_is_looked_for_not_repeated(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, runs=1)
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    env = wrap_sbatch(tmp_path, f'"$REAL" "$@" >/dev/null; echo "{lost}" >&2; exit 1')
    assert submit_in_a_process(spec, tmp_path, env).returncode == 3
    store = Store.open(f"sqlite:///{tmp_path}/campaign.db")
    done = run_to_end(store, submit(spec, tmp_path, store))
    assert set(done.states().values()) == {RunState.COMPLETED}
    assert jobs_of(slurm, done.attempts, once=1) == 1


def test_a_submission_that_led_to_nothing_is_revoked_and_tried_again(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(tmp_path, runs=1)
    env = wrap_sbatch(tmp_path, 'echo "something nobody has seen before" >&2; exit 1')
    assert submit_in_a_process(spec, tmp_path, env).returncode == 3
    store = Store.open(f"sqlite:///{tmp_path}/campaign.db")
    campaign = submit(spec, tmp_path, store)
    monkeypatch.setattr("dscampaign.orchestrator.executors.slurm.SlurmExecutor.intent_grace_s", 0.0)
    done = run_to_end(store, campaign)
    assert set(done.states().values()) == {RunState.COMPLETED}
    assert [a.failure_class for a in done.attempts["DEPTH-0"]] == ["lost", "completed"]


def test_what_sbatch_will_never_take_fails_at_once_with_its_words(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, runs=1, slurm=", account: nobody, constraint: no-such-feature")
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    done = run_to_end(store, submit(spec, tmp_path, store))
    [run] = done.runs.values()
    assert run.state is RunState.FAILED
    assert "nvalid feature" in run.reason
    assert len(done.attempts[run.name]) == 1


def test_a_controller_that_does_not_answer_changes_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, steps=20, step_s=0.5, runs=1)
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    campaign = submit(spec, tmp_path, store)
    reconciler = Reconciler(store, campaign)
    # a controller that is paused while a job starts makes Slurm wait two minutes before it tries again
    wait_until(lambda: bool(reconciler.run_pass()) and has_trained(store, campaign), "the first step")
    before = observe(store, campaign)
    slurm.pause("slurmctld")
    blind = reconciler.run_pass()
    slurm.resume("slurmctld")
    assert blind.troubles
    assert not blind.actions
    assert as_decided(observe(store, campaign).attempts) == as_decided(before.attempts)
    reconciler.close()
    done = run_to_end(store, campaign)
    assert set(done.states().values()) == {RunState.COMPLETED}


def as_decided(attempts: dict[str, list[AttemptRow]]) -> dict[str, list[AttemptRow]]:
    """The attempts without how far they are: that comes from the training, which goes on whoever answers."""
    progress: dict[str, Any] = {
        "last_step": None,
        "spool_offset": 0,
        "heartbeat_s": None,
        "phase": "",
        "phase_since_s": None,
    }
    return {name: [replace(row, **progress) for row in rows] for name, rows in attempts.items()}


def has_trained(store: Store, campaign: CampaignRow) -> bool:
    """Whether all runs have reported a step."""
    return all(rows and rows[-1].last_step for rows in observe(store, campaign).attempts.values())


def jobs_of(slurm: SlurmCluster, attempts: dict[str, list[AttemptRow]], once: int) -> int:
    """How many jobs Slurm has ever seen of these attempts, once its accounting shows so many."""
    names = ",".join(sorted({a.token for rows in attempts.values() for a in rows}))

    def seen() -> int:
        return len(slurm.run("sacct", "-X", "-n", "-P", f"--name={names}", "--format=JobID").splitlines())

    wait_until(lambda: seen() >= once, "the accounting")
    return seen()
