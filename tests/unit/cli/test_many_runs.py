"""A campaign of hundreds of runs on a small screen: conditions, causes of failures, and what is asked for alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dscampaign.db import bulk, queries
from dscampaign.db.records import NewAttempt, NewRun
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.status import CampaignStatus, failures_of, read_status
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.pages.status import status_page
from dscampaign.orchestrator.pages.text import Page

Output = pytest.CaptureFixture[str]

POINTS, REPEATS = 100, 5
REASONS = {
    "oom": ("cuda-oom", "CUDA out of memory. Tried to allocate {0} GiB of {0}{0} MiB"),
    "deterministic": ("script-error", "KeyError: 'layers.{0}.weight' · look at line {0}"),
    "crash": ("", "exited with status 3, see /scratch/{0}/log"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """500 runs: the first repeat of every fifth point failed, its second one runs, others completed or wait."""
    store = Store.open(f"sqlite:///{tmp_path}/campaign/campaign.db", create=True)
    with store.write() as conn:
        campaign_id = queries.insert_campaign(
            conn, name="sweep", spec="", spec_hash="", dir=str(tmp_path / "campaign"), executor="slurm"
        )
        new = [
            NewRun(f"lr-{point}{f'-r{repeat}' * bool(repeat)}", {}, {}, "h", point * REPEATS + repeat, repeat, 10)
            for point in range(POINTS)
            for repeat in range(REPEATS)
        ]
        bulk.insert_runs(conn, campaign_id, new)
        for run in queries.runs(conn, campaign_id):
            point, repeat = divmod(run.ordinal, REPEATS)
            if point % 5 == 0 and repeat == 0:
                kind = list(REASONS)[point // 5 % 3]
                rule, reason = REASONS[kind]
                state, evidence = RunState.FAILED, {"rule": rule, "reason": reason.format(point)}
                attempt = NewAttempt(run.id, 1, "t", "h", 4, 1, 8, 1, "slurm", "spool")
                row = bulk.insert_attempts(conn, [attempt])[0].id
                queries.update_attempt(conn, row, state=AttemptState.FAILED, failure_class=kind, evidence=evidence)
                queries.update_run(conn, run.id, state=state, reason=evidence["reason"])
            elif point % 5 == 0 and repeat == 1:
                queries.update_run(conn, run.id, state=RunState.RUNNING)
            elif point < 50:
                queries.update_run(conn, run.id, state=RunState.COMPLETED)
    store.close()
    return tmp_path / "campaign"


@pytest.fixture
def status(folder: Path) -> CampaignStatus:
    store = Store.open(f"sqlite:///{folder}/campaign.db")
    with store.read() as conn:
        campaign = queries.list_campaigns(conn)[0]
    found = read_status(store, campaign)
    store.close()
    return found


def test_runs_of_one_cause_are_one_group_the_largest_first(status: CampaignStatus) -> None:
    found = [(len(group), group[0].failure_class) for group in failures_of(status)]
    assert found == [(7, "oom"), (7, "deterministic"), (6, "crash")]


@pytest.mark.parametrize(("width", "height"), [(80, 23), (140, 50), (60, 18)])
def test_hundreds_of_runs_fit_the_screen_with_every_answer(status: CampaignStatus, width: int, height: int) -> None:
    lines = status_page(status, Page(width=width), height).splitlines()
    assert sum(-(-max(len(line), 1) // width) for line in lines) <= height
    page = "\n".join(lines)
    assert "500 runs: 230 pending, 20 running, 230 completed, 20 failed" in page.replace("\n", "")
    assert "7 failed, oom: CUDA out of memory." in page
    assert "next: campaign explain sweep lr-0" in page
    assert "campaign status sweep --all" in page
    assert "campaign reconcile sweep --detach" in page
    assert [line for line in lines if line.startswith("lr-0 ")]


def test_a_pipe_gets_every_run_and_few_notes(folder: Path, capsys: Output) -> None:
    with Store.open(f"sqlite:///{folder}/campaign.db").write() as conn:
        conn.exec_driver_sql("UPDATE run SET reason = 'waiting: place ' || id WHERE state = 'pending'")
    assert main(["status", "--dir", str(folder)]) == 0
    sections = capsys.readouterr().out.split("\n\n")
    assert sum(row.startswith("lr-") for row in sections[1].splitlines()[1:]) == 500
    assert sections[3].count("waiting: place") == 10
    assert sections[3].splitlines()[-1].startswith("… and 220 more runs: `campaign explain sweep RUN --dir")


def test_only_chosen_runs_are_shown(folder: Path, capsys: Output) -> None:
    def names(*words: str) -> list[str]:
        assert main(["status", "--dir", str(folder), "--json", *words]) == 0
        return [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]]

    assert len(names("--failed")) == 20
    assert len(names("--state", "failed,running")) == 40
    assert names("sweep", "lr-0", "lr-9*", "--failed") == ["lr-0", "lr-90", "lr-95"]
    assert names("--state", "held") == []
    assert main(["status", "--dir", str(folder), "--state", "held", "lr-9*"]) == 0
    out, err = capsys.readouterr()
    assert ("shown: no run\n" in out, err) == (True, "no such run of sweep is held\n")
    assert main(["status", "--dir", str(folder), "rl-9*"]) == 2
    assert "no run named rl-9* in sweep\nhint: `campaign status sweep" in capsys.readouterr().err
    assert main(["status", "--dir", str(folder), "--state", "faild"]) == 2
    assert 'did you mean "failed"?' in capsys.readouterr().err
