"""submit, reconcile, cancel, retry: one pass of the same loop each, here with processes of this machine.

`python:` names a stand-in for the interpreter, so that no run needs a training stack: one that fails, one that waits.
"""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import leases, queries
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.faults.trial import stand_in

Output = pytest.CaptureFixture[str]

SPEC = """\
name: demo
executor: local
ranks_per_node: 1
local: {{parallel: 2}}
python: {python}
command: train.py {{depth}}
train: {{steps: 5}}
matrix: {{depth: {depths}}}
retry: {{crash: 0, backoff_s: 0}}
"""


class Place:
    """A folder with a spec."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.spec = folder, folder / "demo.yaml"
        (folder / "train.py").touch()
        self.python = folder / "python"

    def write(self, shell: str, depths: str = "[1]") -> str:
        """Writes a spec whose interpreter is this line of shell; returns the spec's path."""
        self.python.write_text(f"#!/bin/sh\n{shell}\n")
        self.python.chmod(0o755)
        self.spec.write_text(SPEC.format(python=self.python, depths=depths))
        return str(self.spec)

    @property
    def store(self) -> Store:
        return Store.open(f"sqlite:///{self.folder}/campaign/campaign.db")

    def status(self, capsys: Output) -> Any:
        capsys.readouterr()
        assert main(["status", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def states(self, capsys: Output) -> dict[str, str]:
        return {run["name"]: run["state"] for run in self.status(capsys)["runs"]}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield Place(tmp_path)
    if (tmp_path / "campaign").exists():
        main(["cancel", "demo", "--all"])
        main(["reconcile", "demo", "--watch"])


def test_a_campaign_from_submission_to_verdict(place: Place, capsys: Output) -> None:
    spec = place.write('echo "ModuleNotFoundError: No module named torch" >&2; exit 1', "[1, 2]")
    assert main(["submit", spec]) == 0
    out, err = capsys.readouterr()
    assert "Plan: 2 to submit, 0 kept, 0 to cancel · on this machine, 2 at a time" in err
    assert re.search(r"depth-1: submitted as job local-\S+, attempt 1\n", err)
    assert "next: campaign reconcile demo --detach" in err
    assert out == "demo · 2 runs: 2 queued\n"

    assert main(["reconcile", "--watch"]) == 1
    out, err = capsys.readouterr()
    assert "depth-1: attempt 1 ended, deterministic: ModuleNotFoundError" in err
    assert "2 failed (not retried): ModuleNotFoundError: No module named torch" in out
    assert main(["reconcile"]) == 1

    assert main(["submit", spec]) == 1  # nothing to do, and that two runs have failed is no success
    err = capsys.readouterr().err
    assert "Plan: 0 to submit, 2 kept" in err
    assert "failed or held, not submitted again: " in err
    assert [len(run["attempts"]) for run in place.status(capsys)["runs"]] == [1, 1]

    assert main(["retry", "demo", "depth-2"]) == 0
    assert main(["reconcile", "--watch"]) == 1
    assert [len(run["attempts"]) for run in place.status(capsys)["runs"]] == [1, 2]
    assert main(["logs", "depth-1", "--launcher"]) == 0


def test_cancel_ends_what_runs(place: Place, capsys: Output) -> None:
    main(["submit", place.write("exec sleep 60", "[1, 2]")])
    assert main(["reconcile"]) == 8
    assert main(["cancel", "demo"]) == 2
    assert "hint: name them, or `campaign cancel demo --all`" in capsys.readouterr().err
    assert main(["cancel", "demo", "--all"]) == 0
    assert main(["reconcile", "--watch"]) == 0
    assert place.states(capsys) == {"depth-1": "cancelled", "depth-2": "cancelled"}
    assert main(["cancel", "demo", "depth-9"]) == 2
    capsys.readouterr()
    main(["retry"])
    assert "nothing to retry\nunchanged: 2 cancelled\n" in capsys.readouterr().err


def test_submit_leaves_the_rest_to_a_reconciler_that_is_at_work(place: Place, capsys: Output) -> None:
    spec = place.write("exec sleep 60", "[1]")
    main(["submit", spec])
    store = place.store
    with store.write() as conn:
        campaign = queries.list_campaigns(conn)[0]
        epoch = leases.acquire_lease(conn, f"reconciler:{campaign.id}", "login7:4242:x", 60.0)
    place.write("exec sleep 60", "[1, 2]")
    capsys.readouterr()
    assert main(["submit", spec]) == 0
    assert "being reconciled by pid 4242 on login7" in capsys.readouterr().err
    assert main(["reconcile"]) == 8
    assert place.states(capsys)["depth-2"] == "pending"
    with store.write() as conn:
        assert epoch is not None
        leases.release_lease(conn, f"reconciler:{campaign.id}", epoch)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_an_interrupted_watch_says_that_jobs_go_on_and_frees_the_lease(place: Place, number: int) -> None:
    spec = place.write("exec sleep 60")
    command = [sys.executable, "-m", "dscampaign.orchestrator.cli", "submit", spec, "--watch"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stderr is not None
        for line in watch.stderr:
            if "attempt 1 running" in line:
                break
        watch.send_signal(number)
        rest = watch.stderr.read()
    assert watch.returncode == 130
    assert "stopped; the jobs keep running. `campaign reconcile demo --watch` resumes" in rest
    with place.store.read() as conn:
        lease = leases.read_lease(conn, f"reconciler:{queries.list_campaigns(conn)[0].id}")
    assert lease is not None
    assert lease.expires_s <= time.time() + 1


def test_a_script_of_ones_own_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "from dscampaign import report\nfor step in range(1, 4):\n    report(step=step, loss=1 / step)\n"
    )
    spec = tmp_path / "own.yaml"
    place = f"executor: local\npython: {stand_in(tmp_path)}\nranks_per_node: 1"
    spec.write_text(f"name: own\n{place}\ncommand: train.py\ntrain: {{steps: 3}}\n")
    assert main(["submit", str(spec), "--watch", "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert (run["state"], run["step"], run["loss"]) == ("completed", 3, pytest.approx(1 / 3))


def test_the_python_that_the_set_up_chooses_runs_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """An agent loads nothing of it: not even a module that hides one of ours."""
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "env"], check=True)
    (tmp_path / "sqlalchemy.py").write_text("raise ImportError")
    (tmp_path / "train.py").write_text("import sys\nprint('prefix', sys.prefix, flush=True)\n")
    setup = f"[source env/bin/activate, 'export PYTHONPATH={tmp_path}']"
    text = f"name: own\nexecutor: local\nlauncher: python\nlocal: {{setup: {setup}}}\ncommand: python train.py\n"
    (tmp_path / "own.yaml").write_text(text)
    assert main(["submit", "own.yaml", "--watch"]) == 0
    capsys.readouterr()
    assert main(["logs", "run"]) == 0
    assert f"prefix {tmp_path}/env" in capsys.readouterr().out
    assert main(["explain", "run"]) == 0
    assert f"runs {tmp_path}/env/bin/python" in capsys.readouterr().out


def on_terminal(words: list[str], typed: bytes) -> tuple[int, str]:
    """Runs the command on a terminal of its own; returns its exit code and what the terminal got."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "-m", "dscampaign.orchestrator.cli", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as child:
        os.close(theirs)
        os.write(ours, typed)
        shown = b""
        with contextlib.suppress(OSError):  # the last writer has gone
            while block := os.read(ours, 65536):
                shown += block
    os.close(ours)
    return child.returncode, shown.decode()


def test_a_terminal_is_asked_before_a_large_submission(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_ASK_ABOVE_RUNS", "1")
    spec = place.write("exit 1", "[1, 2]")
    code, shown = on_terminal(["submit", spec], b"n\n")
    assert code == 1
    assert "2 runs exceed ask_above_runs = 1. Submit? [y/N]" in shown
    assert "nothing was submitted" in shown
    assert not (place.folder / "campaign").exists()
