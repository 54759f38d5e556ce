"""A plan: the likely times and GPU-hours by earlier runs, and a summary of many runs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import bulk, queries
from dscampaign.db.ingest.metrics import MetricSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.db.records import NewAttempt
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.jobs.shared.job_array import read_array
from dscampaign.orchestrator.campaign.desired import record
from dscampaign.orchestrator.campaign.location import PlaceOptions
from dscampaign.orchestrator.campaign.plan import Plan, PlannedRun, Sign
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.cli.spec import read_submission
from dscampaign.orchestrator.formatting import near_time, shell_line
from dscampaign.orchestrator.pages.plan import plan_page
from dscampaign.orchestrator.pages.text import Page
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.tests.support.fake_slurm import FakeSlurm
from dscampaign.tests.support.spec_files import load_spec

Output = pytest.CaptureFixture[str]

SPEC = """\
name: first
command: train.py --size {size}
train: {steps: 100, lr: 0.1}
slurm: {partition: gpu, gpus_per_node: 4, time: 60, runs_per_job: 2}
repeats: 2
matrix: {size: [1, 2]}
"""
START_S = 1_700_000_000.0


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("# reads CAMPAIGN_DS_CONFIG")
    (tmp_path / "sweep.yaml").write_text(SPEC)
    return tmp_path / "sweep.yaml"


def complete(spec: Path, *names: str) -> Store:
    """Record the campaign; these runs took 80 s until their steps, 100 steps of 1 s, and 20 s after them."""
    submission, where = read_submission(spec, (), PlaceOptions())
    store = where.open(create=True)
    campaign = record(store, submission)
    with store.read() as conn:
        runs = {run.name: run for run in queries.runs(conn, campaign.id)}
    for name in names:
        spool = spec.parent / f"{name}.jsonl"
        spool.write_text("".join(f'{{"step": {n}, "ts": {START_S + 80 + n}, "loss": 1.0}}\n' for n in range(1, 101)))
        run = runs[name]
        new = NewAttempt(run.id, 1, "t", run.config_hash, None, None, 4, 1, "slurm", str(spool))
        with store.write() as conn:
            attempt = bulk.insert_attempts(conn, [new])[0].id
        ingest(store, MetricSpool(attempt, spool))
        ended: dict[str, Any] = {"started_s": START_S, "ended_s": START_S + 200, "failure_class": "completed"}
        with store.write() as conn:
            queries.update_attempt(conn, attempt, state=AttemptState.COMPLETED, **ended)
            queries.update_run(conn, run.id, state=RunState.COMPLETED)
    return store


def planned(capsys: Output, *sets: str) -> tuple[str, dict[str, Any]]:
    """The last line of the plan, and its document."""
    words = ["plan", "sweep.yaml", *(f"--set={one}" for one in sets)]
    assert main(words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert main([*words, "--json"]) == 0
    return last, json.loads(capsys.readouterr().out)


def test_without_any_like_run_the_figure_is_the_most(spec: Path, capsys: Output) -> None:
    last, document = planned(capsys)
    assert last.endswith("· 2 jobs · 1 sbatch array · at most 8 GPU-hours")
    assert (document["jobs"], document["gpu_hours"], document["likely_gpu_hours"]) == (2, 8.0, None)


def test_a_later_campaign_takes_as_long_as_an_earlier_one(spec: Path, capsys: Output) -> None:
    complete(spec, "size-1", "size-2").close()
    last, document = planned(capsys, "name=second", "train.lr=0.3", "slurm.time=30")
    assert last.endswith("likely 0.89 GPU-hours (by earlier campaigns), at most 4")
    assert (document["gpu_hours"], document["likely_gpu_hours"]) == (4.0, pytest.approx(4 * 800 / 3600))
    assert [run["likely_s"] for run in document["runs"]] == [200.0] * 4
    assert {run["likely_by"] for run in document["runs"]} == {"earlier_campaigns"}
    last, document = planned(capsys, "name=second", "matrix.size=[1, 2, 3]", "repeats=1", "slurm.runs_per_job=1")
    assert "likely 4.4 GPU-hours (by earlier campaigns, their time limit), at most 12" in last


def test_repeats_come_first_then_the_nearest_condition(spec: Path, capsys: Output) -> None:
    complete(spec, "size-1").close()
    last, document = planned(capsys)
    likely = {run["name"]: (run["likely_s"], run["likely_by"]) for run in document["runs"]}
    assert likely["size-1-r1"] == (200.0, "repeats")
    assert likely["size-2"] == likely["size-2-r1"] == (200.0, "nearest_conditions")
    assert likely["size-1"] == (None, None)  # it is kept
    assert "(by the nearest conditions, like runs)" in last
    assert main(["plan", "sweep.yaml"]) == 0
    assert "3 min 20 s of 60 min" in capsys.readouterr().out
    assert main(["status", "first"]) == 0
    assert "1 completed · likely 10 min, one after another, once they start" in capsys.readouterr().out


def test_follow_ups_of_runs_to_come_count(spec: Path, capsys: Output) -> None:
    (spec.parent / "eval.py").write_text("")
    spec.write_text(SPEC + 'then: {eval: {command: "eval.py {checkpoint}", slurm: {time: 30}}}\n')
    last, document = planned(capsys)
    assert last.endswith("· 4 follow-ups later · 2 jobs · 1 sbatch array · at most 12 GPU-hours")
    assert (document["to_submit"], document["later"], document["gpu_hours"]) == (4, 4, 12.0)
    with (store := complete(spec, "size-1", "size-1-r1")).write() as conn:
        queries.update_run(conn, queries.runs(conn, 1)[-1].id, state=RunState.FAILED, desired="present")
    store.close()
    last, document = planned(capsys)
    assert document["later"] == 3  # none follows a run that failed
    assert "(by their time limit, the nearest conditions), at most 8" in last


def test_a_command_is_shown_as_it_was_written(spec: Path, capsys: Output) -> None:
    spec.write_text(SPEC.replace("{size}", "{size} --out {run_dir}/o [--resume {resume_from}] --name '{size} x'"))
    assert main(["plan", "sweep.yaml"]) == 0
    assert "train.py --size 1 --out {run_dir}/o --name '1 x'`" in capsys.readouterr().out
    assert shell_line(["[--resume", "{resume_from}]", "{a b}"]) == "[--resume {resume_from}] '{a b}'"


def test_an_experiment_that_the_spec_has_changed_says_nothing(spec: Path, capsys: Output) -> None:
    with (store := complete(spec, "size-1", "size-2")).write() as conn:
        for run in queries.runs(conn, 1):
            queries.update_run(conn, run.id, state=RunState.CANCELLED)
    store.close()
    kept = planned(capsys)[1]["runs"]
    assert [run["likely_s"] for run in kept] == [None, 200.0, None, 200.0]  # cancelled runs stay so
    changed = planned(capsys, "train.global_batch=8", "train.micro_batch=1")[1]["runs"]
    assert [run["likely_s"] for run in changed] == [None] * 4


def test_runs_side_by_side_share_a_node_s_hours(spec: Path, capsys: Output) -> None:
    spec.write_text(SPEC.replace("gpus_per_node: 4", "gpus_per_node: 4, gpus_per_run: 2"))
    complete(spec, "size-1", "size-2").close()
    _, document = planned(capsys, "name=second")
    assert (document["jobs"], document["gpu_hours"]) == (2, 8.0)
    assert document["likely_gpu_hours"] == pytest.approx(2 * 4 * 200 / 3600)


def test_submit_asks_by_the_likely_hours(spec: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    complete(spec, "size-1", "size-2").close()
    monkeypatch.setenv("CAMPAIGN_ASK_ABOVE_GPU_HOURS", "0.5")
    assert main(["submit", "sweep.yaml", "--set=name=second"]) == 2
    error = capsys.readouterr().err
    assert "0.89 GPU-hours (likely; at most 8) exceed ask_above_gpu_hours = 0.5" in error


def test_retries_in_one_job_have_one_time_limit(spec: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    store = complete(spec)
    with store.write() as conn:
        for run in queries.runs(conn, 1):
            queries.update_run(conn, run.id, state=RunState.FAILED)
    store.close()
    monkeypatch.setenv("CAMPAIGN_ASK_ABOVE_GPU_HOURS", "0.5")
    assert main(["retry", "first", "--all"]) == 2
    assert "8 GPU-hours exceed ask_above_gpu_hours = 0.5" in capsys.readouterr().err


def test_the_plan_has_the_start_that_slurm_expects(spec: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeSlurm(spec.parent / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    said = "sbatch: Job 7 to start at {} using 8 processors on nodes n1 in partition gpu\n"
    fake.answers("sbatch", err=said.format("2031-02-03T04:05:06"))
    last, document = planned(capsys)
    assert document["first_start_s"] is not None
    assert f"Slurm expects to start at {near_time(document['first_start_s'], START_S)}" in last
    assert "04:05" in last
    fake.answers("sbatch", err="sbatch: no idea\n")
    last, document = planned(capsys)
    assert document["first_start_s"] is None
    assert "expects" not in last


def test_a_job_knows_how_long_each_of_its_runs_takes(
    spec: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(spec, "size-1").close()
    fake = FakeSlurm(spec.parent / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    fake.answers("sbatch", "12\n")
    main(["submit", "sweep.yaml", "--set=name=second", "--yes"])
    [path] = (spec.parent / "campaign/second/batches").glob("*/payloads.jsonl")
    with path.open("rb", buffering=0) as file:
        likely = {payload["run"]: payload["likely_s"] for payload in read_array(file, path)}
    assert likely == {"size-1": 200.0, "size-1-r1": 200.0, "size-2": None, "size-2-r1": None}, capsys.readouterr().err


MANY = """\
name: sweep
command: train.py --seed {seed} --size {size}
max_runs: 1000
train: {steps: 100}
slurm: {gpus_per_node: 8, time: 60}
repeats: 3
matrix:
  size: [1, 2, 3, 4, 5]
  train.lr: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
"""


@pytest.fixture
def many(spec: Path) -> Path:
    spec.write_text(MANY)
    return spec


def test_of_many_runs_the_first_are_shown(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "sweep.yaml"]) == 0
    text = capsys.readouterr().out
    assert sum(line.startswith("+  size-") for line in text.splitlines()) == 7  # each with its repeats
    assert "… and 130 more runs: `campaign plan sweep.yaml --all`" in text
    assert "Plan: 150 to submit" in text


def test_rows_that_are_not_like_all_others_are_shown(many: Path) -> None:
    runs = expand(load_spec(many))
    items = [PlannedRun(Sign.CREATE, run.name, "", run, run.micro_batch) for run in runs]
    items[7] = replace(items[7], sign=Sign.RESUBMIT, why="crashed")
    items[90] = replace(items[90], sign=Sign.KEEP, differing=("slurm.time: 60 → 90",))
    items.append(PlannedRun(Sign.CANCEL, "old", "no longer in the spec"))
    lines = plan_page(Plan("sweep", "slurm", tuple(items)), Page()).splitlines()
    text = "\n".join(lines)
    assert [name in text for name in (items[7].name, items[90].name, "old", "crashed")] == [True] * 4
    assert "… and 131 more runs: `campaign plan SPEC --all`" in text
