"""A reconciler that runs on after the shell is closed, on a real cluster."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.db.states import RunState
from dscampaign.orchestrator.reconcile.lease import JOB_PREFIX
from dscampaign.tests.faults.trial import SLURM
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.waiting import CAMPAIGN_HANGS_S, HANGS_S, wait_until

CAMPAIGN = [sys.executable, "-m", "dscampaign.orchestrator.cli"]
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists():
    time.sleep(0.1)
if os.environ["CAMPAIGN_GENERATION"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Shell:
    """A user's shell in a folder; the training waits for the file `go`, and its first attempt fails."""

    def __init__(self, folder: Path, slurm: SlurmCluster) -> None:
        self.folder, self._slurm = folder, slurm
        self.env = {**os.environ, "CAMPAIGN_DETACH": "yes"}
        (folder / "train.py").write_text(SCRIPT)

    def spec(self, name: str, **values: Any) -> str:
        spec: dict[str, Any] = {"name": name, "command": f"train.py {self.folder}/go", "launcher": "python"}
        spec |= {"slurm": SLURM, "ranks_per_node": 1, "retry": {"backoff_s": 0}, "train": {"steps": 1}, **values}
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(spec))
        return f"{name}.yaml"

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [*CAMPAIGN, *words]
        return subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=pipe, stderr=pipe, text=True)

    def type(self, *words: str) -> str:
        """Return all that the command prints."""
        process = self.start(*words)
        out, err = process.communicate(timeout=HANGS_S)
        assert process.returncode == 0, err
        return err + out

    def closed_after(self, *words: str) -> str:
        """Kill the shell, and all that it started, after a command; return the reconciler that it named."""
        line = f"{shlex.join([*CAMPAIGN, *words])} >told 2>&1; touch done; exec sleep 600"
        laptop = subprocess.Popen(["bash", "-c", line], cwd=self.folder, env=self.env, start_new_session=True)
        self.until("the command", (self.folder / "done").exists)
        os.killpg(laptop.pid, signal.SIGKILL)
        laptop.wait()
        told = (self.folder / "told").read_text()
        match = re.search(r"retries: .*\b(?:job|pid) (\d+)", told)
        assert match, told
        return match[1]

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.type("status", name, "--json"))
        return found

    def jobs(self) -> list[str]:
        """The ids of the reconciler's jobs that wait or run."""
        rows = self._slurm.run("squeue", "-h", "-t", "pending,running", "-o", "%A %j").splitlines()
        return [row.split()[0] for row in rows if row.split()[1].startswith(JOB_PREFIX)]

    def until(self, what: str, happens: Callable[[], bool]) -> None:
        wait_until(happens, what, timeout_s=CAMPAIGN_HANGS_S)

    def go(self) -> None:
        (self.folder / "go").touch()

    def completes(self, name: str) -> None:
        self.until("the end", lambda: bool(self.status(name)["settled"]))
        [run] = self.status(name)["runs"]
        assert (run["state"], len(run["attempts"])) == (RunState.COMPLETED, 2)


@pytest.fixture
def shell(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path, slurm)
    yield made
    made.go()
    slurm.run("scancel", "--user=root")


def test_two_submissions_at_a_time_start_one_job_and_without_it_retries_are_off(
    shell: Shell, slurm: SlurmCluster
) -> None:
    both = [shell.start("submit", shell.spec(name), "--yes") for name in ("one", "two")]
    told = {match[1] for process in both if (match := re.search(r"retries: .*\bjob (\d+)", process.communicate()[1]))}
    assert told == set(shell.jobs())
    [job] = told
    assert shell.status("two")["retries"]["job_id"] == job
    slurm.run("scancel", job)
    shell.until("its end", lambda: not shell.jobs())
    assert "retries: off, " in shell.type("status", "one")
    again = shell.type("reconcile", "one", "--detach")
    [second] = shell.jobs()
    assert f"job {second} (" in again or f"(job {second})" in again


def test_a_closed_laptop_stops_no_process_that_is_detached(shell: Shell) -> None:
    pid = shell.closed_after("submit", shell.spec("here", executor="local"), "--yes", "--detach")
    assert f"(pid {pid} on " in shell.type("reconcile", "here", "--detach")
    shell.go()
    shell.completes("here")


@pytest.mark.nightly
def test_a_closed_laptop_stops_no_job_and_the_next_submission_starts_another(shell: Shell, slurm: SlurmCluster) -> None:
    job = shell.closed_after("submit", shell.spec("away"), "--yes")
    assert [job] == shell.jobs()
    shell.until("its start", lambda: f"retries: on (job {job})" in shell.type("status", "away"))
    slurm.run("scancel", "--batch", "--signal=USR1", job)  # as Slurm does before the time limit
    shell.until("the successor", lambda: shell.jobs() not in ([job], []) and job not in shell.jobs())
    [successor] = shell.jobs()
    shell.until("its lease", lambda: f"retries: on (job {successor})" in shell.type("status", "away"))
    shell.go()
    shell.completes("away")
    assert slurm.wait_job(successor) == "COMPLETED"
    shell.type("submit", shell.spec("next"), "--yes")
    assert len(shell.jobs()) == 1
    shell.completes("next")


@pytest.mark.nightly
def test_a_successor_takes_over_before_the_time_limit(shell: Shell) -> None:
    shell.type("submit", shell.spec("long", reconciler={"time": 6}), "--yes")
    [job] = shell.jobs()
    shell.until("the successor", lambda: shell.jobs() not in ([job], []) and job not in shell.jobs())
    shell.go()
    shell.completes("long")


@pytest.mark.nightly
def test_a_password_reaches_the_job_and_is_seen_nowhere(
    shell: Shell, slurm: SlurmCluster, postgres: PostgresServer
) -> None:
    secret = f"horse-{uuid.uuid4().hex}"
    shell.env["CAMPAIGN_STORE"] = postgres.new_database().replace("postgres@", f"postgres:{secret}@")
    shell.type("db", "upgrade")
    both = [shell.start("submit", shell.spec(name), "--yes") for name in ("one", "two")]
    told = [process.communicate()[1] for process in both]
    [job] = shell.jobs()
    shell.until("its start", lambda: f"retries: on (job {job})" in shell.type("status", "one"))
    told += [slurm.run("scontrol", "show", "job", "-d", job), slurm.run("ps", "-eo", "args")]
    shell.go()
    shell.completes("one")
    shell.completes("two")
    told += [file.read_text() for file in (shell.folder / "campaign/.reconciler").iterdir()]
    assert any(JOB_PREFIX in text for text in told)
    assert not [text for text in told if secret in text]
