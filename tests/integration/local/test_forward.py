"""A campaign whose runs are watched in other tools: one curve a run there, whatever happens to it or to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db.states import RunState
from dscampaign.jobs.forward import processes
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.faults.trial import stand_in
from dscampaign.tests.support import SCRIPTS, curves
from dscampaign.tests.support.campaigns import Observed, open_store, run_to_end, submit

SCRIPT = SCRIPTS / "curve.py"
STEPS, CRASH_AT, EVERY = 12, 8, 5

SPEC = """\
name: watched
executor: local
local: {{parallel: 2}}
python: {launcher}
retry: {{backoff_s: 0}}
train: {{steps: {steps}}}
command: [{script}, "{steps}", "{{crash_at}}", "{every}", "0.5"]
env: {{WANDB_MODE: offline, MLFLOW_TRACKING_URI: "sqlite:///{folder}/mlflow.db"}}
forward: [wandb, tensorboard, mlflow]
matrix:
  case:
    - {{label: crashes, crash_at: {crash_at}}}
    - {{label: hangs, crash_at: 0, env.PYTHONPATH: "{path}", forward: [wandb, tensorboard]}}
"""

FIRST = [(step, 100.0 + step) for step in range(1, STEPS + 1)]
ONCE = [(s, 100.0 + s) for s in range(1, CRASH_AT + 1)] + [(s, 200.0 + s) for s in range(CRASH_AT + 1, STEPS + 1)]
ANEW = [(s, 100.0 + s) for s in range(1, EVERY + 1)] + [(s, 200.0 + s) for s in range(EVERY + 1, STEPS + 1)]
"""The second attempt begins after the step that was saved, and makes steps anew."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """The campaign after it has settled; in one of its runs W&B hangs from the beginning."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "fake").mkdir()
    (folder / "fake" / "wandb.py").write_text("import time\ntime.sleep(1000)\n")
    curves.make_mlflow_tables(f"sqlite:///{folder}/mlflow.db")
    path = os.pathsep.join([str(folder / "fake"), *filter(None, [os.environ.get("PYTHONPATH")])])
    spec = folder / "spec.yaml"
    sizes = {"steps": STEPS, "crash_at": CRASH_AT, "every": EVERY}
    spec.write_text(SPEC.format(script=SCRIPT, launcher=stand_in(folder), folder=folder, path=path, **sizes))
    store = open_store(f"sqlite:///{folder}/campaign.db")
    done = run_to_end(store, submit(spec, folder, store))
    last = Path(done.attempts["case-crashes"][-1].spool_path).parent
    # a busy machine may not have finished in time: this passes the rest on, as the event advises
    words = [sys.executable, "-m", "dscampaign.jobs.forward", str(last), "mlflow"]
    environment = os.environ | dict(done.runs["case-crashes"].config["env"])
    subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, check=True)
    yield done
    store.close()


def described(done: Observed, run: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    where = ["--dir", str(Path(done.campaign.dir)), "--store", done.store.url_without_password]
    assert main(["describe", "watched", run, "--json", *where]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_neither_a_crash_nor_a_tool_costs_the_store_a_step(done: Observed) -> None:
    assert set(done.states().values()) == {RunState.COMPLETED}
    tried = {name: [attempt.failure_class for attempt in rows] for name, rows in done.attempts.items()}
    assert tried == {"case-crashes": ["crash", "completed"], "case-hangs": ["completed"]}
    assert [(row.step, row.loss) for row in done.metrics("case-crashes")] == ANEW
    assert [(row.step, row.loss) for row in done.metrics("case-hangs")] == FIRST


def test_a_run_of_two_attempts_is_one_curve_in_each_tool(done: Observed, capsys: pytest.CaptureFixture[str]) -> None:
    found = described(done, "case-crashes", capsys)
    elsewhere, forward = found["forwarded"], Path(found["run_dir"]) / "forward"
    server = f"sqlite:///{Path(done.campaign.dir) / 'mlflow.db'}"
    assert curves.tensorboard_curve(Path(elsewhere["tensorboard"]["where"]), "loss") == ANEW
    assert curves.mlflow_curve(server, elsewhere["mlflow"]["run_id"], "loss") == ONCE
    files = curves.wandb_files(forward)
    assert [curves.wandb_run(file).run_id for file in files] == [elsewhere["wandb"]["run_id"]] * 2
    assert curves.wandb_curve(files, "loss") == ONCE
    assert curves.mlflow_run(server, elsewhere["mlflow"]["run_id"]).info.status == "FINISHED"


def test_a_tool_that_hangs_costs_the_others_nothing(done: Observed, capsys: pytest.CaptureFixture[str]) -> None:
    found = described(done, "case-hangs", capsys)
    assert found["forwarded"].keys() == {"tensorboard"}
    assert curves.tensorboard_curve(Path(found["forwarded"]["tensorboard"]["where"]), "loss") == FIRST
    [unfinished] = [event for event in found["events"] if event["kind"] == "forward.unfinished"]
    assert unfinished["data"]["tool"] == "wandb"
    assert f"within {processes.FINISH_S:g} s" in unfinished["message"]


def test_ids_are_exported_with_the_runs(done: Observed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--dir", str(Path(done.campaign.dir)), "--store", done.store.url_without_password]
    assert (
        main(["export", "watched", "--what", "runs", "--format", "json", "--output", str(tmp_path / "r.json"), *where])
        == 0
    )
    crashes, hangs = json.loads((tmp_path / "r.json").read_text())["rows"]
    elsewhere = described(done, "case-crashes", capsys)["forwarded"]
    for tool in ("wandb", "tensorboard", "mlflow"):
        assert crashes[f"forward.{tool}"] == elsewhere[tool]["run_id"]
    assert hangs["forward.wandb"] is None
