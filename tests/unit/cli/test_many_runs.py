"""A campaign of hundreds of runs on a small screen: conditions, causes of failures, and what is asked for alone."""

from __future__ import annotations

import json
import os
import select
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.db.records import Lease, NewAttempt, NewRun
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.selection import Selection
from dscampaign.orchestrator.campaign.status import CampaignStatus, conditions_of, failures_of, read_status
from dscampaign.orchestrator.cli import output
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.cli.pages.status import status_page
from dscampaign.orchestrator.cli.pages.text import Page, fold
from dscampaign.tests.support.waiting import wait_until

Output = pytest.CaptureFixture[str]

POINTS, REPEATS = 100, 5
_BOTH = (RunState.FAILED, RunState.RUNNING)
REASONS = {
    "oom": ("cuda-oom", "CUDA out of memory. Tried to allocate {0} GiB of {0}{0} MiB"),
    "deterministic": ("script-error", "KeyError: 'layers.{0}.weight' · look at line {0}"),
    "crash": ("", "exited with status 3, see /scratch/{0}/log"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """500 runs: the first repeat of every fifth point failed, its second one runs, others completed or wait."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
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
        queries.insert_runs(conn, campaign_id, new)
        for run in queries.runs(conn, campaign_id):
            point, repeat = divmod(run.ordinal, REPEATS)
            if point % 5 == 0 and repeat == 0:
                kind = list(REASONS)[point // 5 % 3]
                rule, reason = REASONS[kind]
                state, evidence = RunState.FAILED, {"rule": rule, "reason": reason.format(point)}
                attempt = NewAttempt(run.id, 1, "t", "h", 4, 1, 8, 1, "slurm", "spool")
                row = queries.insert_attempts(conn, [attempt])[0]
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
    groups = failures_of(status)
    assert [(len(group), group[0].failure_class) for group in groups] == [
        (7, "oom"),
        (7, "deterministic"),
        (6, "crash"),
    ]


def test_repeats_are_one_condition_the_worst_first(status: CampaignStatus) -> None:
    conditions = conditions_of(status.runs)
    assert len(conditions) == POINTS
    assert [condition.name for condition in conditions[:3]] == ["lr-0", "lr-5", "lr-10"]
    assert conditions[0].counts == {RunState.FAILED: 1, RunState.RUNNING: 1, RunState.COMPLETED: 3}
    assert [c.badness[0] for c in conditions] == sorted(c.badness[0] for c in conditions)


@pytest.mark.parametrize(("width", "height"), [(80, 23), (140, 50), (60, 18)])
def test_hundreds_of_runs_fit_the_screen_with_every_answer(status: CampaignStatus, width: int, height: int) -> None:
    lines = status_page(status, Page(width=width), height).splitlines()
    assert sum(-(-max(len(line), 1) // width) for line in lines) <= height
    page = "\n".join(lines)
    assert "500 runs: 230 pending, 20 running, 230 completed, 20 failed" in page.replace("\n", "")
    assert "7 failed, oom: CUDA out of memory." in page
    assert "next: campaign explain sweep lr-0" in page
    assert "campaign status sweep --all" in page
    assert "campaign reconcile sweep --watch" in page
    assert [line for line in lines if line.startswith("lr-0 ")]


def at_work(status: CampaignStatus) -> CampaignStatus:
    """As seen a minute after a reconciler: its 20 running runs, each an hour longer than the next, 1,000 tokens/s."""
    running = [run for run in status.runs if run.state is RunState.RUNNING]
    now_s, hour = 1e6, {run.run_id: place for place, run in enumerate(reversed(running), 1)}
    runs = tuple(
        run._replace(started_s=now_s - 3600 * hour[run.run_id], ts_s=now_s - 5, tokens_per_s=1000.0)
        if run.run_id in hour
        else run
        for run in status.runs
    )
    left_s, limits_s = {running[0].run_id: 300.0}, {run.run_id: 86_400.0 for run in running[:2]}
    lease = Lease("", "h:1:x", 1, now_s - 60)
    return replace(
        status, runs=runs, now_s=now_s, reconciler=lease, left_s=left_s, limits_s=limits_s, ended_last_hour=31
    )


def test_a_screen_says_how_fast_it_goes_and_what_runs_longest(status: CampaignStatus) -> None:
    seen = at_work(status)
    page = status_page(seen, Page(width=200), 30)
    assert "20k tokens/s of 20 running · 31 runs ended in the last hour" in page
    longest = (
        "lr-0-r1 for 20 h of 1 d (5 min left), lr-5-r1 for 19 h of 1 d, lr-10-r1 for 18 h, lr-15-r1 for 17 h, "
        "lr-20-r1 for 16 h"
    )
    assert f"running longest: {longest}\n" in page
    assert len(page.splitlines()) <= 30
    assert "tokens/s" not in status_page(seen, Page(width=200), 20)  # rather a row of a condition
    assert "running longest" not in status_page(replace(seen, now_s=2e6), Page(width=200), 30)  # nobody looked since


def test_the_limits_of_the_runs_that_run_longest_are_read(folder: Path) -> None:
    store = Store.open(f"sqlite:///{folder}/campaign.db")
    times = ["30", "4:00:00", "1-12", None, "5", "5", "5", "10", "20"]
    with store.write() as conn:
        [campaign] = queries.list_campaigns(conn)
        running = [run for run in queries.runs(conn, campaign.id) if run.state is RunState.RUNNING]
        for started_s, (run, time) in enumerate(zip(running, times, strict=False), 1):
            row = queries.insert_attempts(conn, [NewAttempt(run.id, 1, "t", "h", 4, 1, 8, 1, "slurm", "spool")])[0]
            queries.update_attempt(conn, row, state=AttemptState.RUNNING, started_s=float(started_s))
            queries.update_run(conn, run.id, config={"slurm": {"time": time} if time else {}})
    found = read_status(store, campaign)
    few = read_status(store, campaign, Selection(patterns=[run.name for run in running[7:9]]))
    store.close()
    limits_s = {run.id: 60.0 * minutes for run, minutes in zip(running, [30, 240, 2160, 0, 5], strict=False) if minutes}
    assert found.limits_s == limits_s
    assert few.limits_s == {running[7].id: 600.0, running[8].id: 1200.0}


def test_a_speed_of_the_attempt_before_is_not_counted(status: CampaignStatus) -> None:
    seen = at_work(status)
    old = [run._replace(ts_s=1.0) if run.name == "lr-0-r1" else run for run in seen.runs]
    assert "19k tokens/s of 19 running" in status_page(replace(seen, runs=tuple(old)), Page(width=200), 30)


def test_runs_that_ended_within_the_hour_are_counted_once(folder: Path) -> None:
    store = Store.open(f"sqlite:///{folder}/campaign.db")
    with store.write() as conn:
        [campaign] = queries.list_campaigns(conn)
        now_s = store.now(conn)
        failed, running = ([run for run in queries.runs(conn, campaign.id) if run.state is state] for state in _BOTH)
        for generation, ago_s in ((2, 600), (3, 60)):
            again = NewAttempt(failed[0].id, generation, f"t{generation}", "h", 4, 1, 8, 1, "slurm", "spool")
            queries.update_attempt(conn, queries.insert_attempts(conn, [again])[0], ended_s=now_s - ago_s)
        goes_on = NewAttempt(running[0].id, 1, "r", "h", 4, 1, 8, 1, "slurm", "spool")
        queries.update_attempt(conn, queries.insert_attempts(conn, [goes_on])[0], ended_s=now_s - 60)
    found = read_status(store, campaign).ended_last_hour
    store.close()
    assert found == 1


def test_a_narrow_screen_cuts_no_command(status: CampaignStatus) -> None:
    page = fold(status_page(status, Page(width=24), 30), 24)
    for command in ("campaign explain sweep lr-0", "campaign status sweep --failed", "`campaign status sweep --all`"):
        assert any(command in line for line in page.splitlines())


@pytest.mark.parametrize("colour", ["0", "1"])
def test_every_command_of_a_full_screen_carries_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output, colour: str
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(output, "terminal_size", lambda _: os.terminal_size((100, 24)))
    monkeypatch.setenv("PAGER", "")
    monkeypatch.setenv("NO_COLOR", "" if colour == "1" else "1")
    assert main(["status", "--dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert ("\x1b" in out) is (colour == "1")
    for command in ("explain sweep lr-0", "status sweep --failed", "status sweep --all", "reconcile sweep --watch"):
        assert f"campaign {command} --dir {folder}" in out
    assert len(out.splitlines()) < 24  # else a pager begins


def test_few_runs_are_shown_one_by_one(status: CampaignStatus) -> None:
    few = status.of(Selection(patterns=("lr-1?",)))
    rows = status_page(few, Page(width=100), 30).split("\n\n")[1].splitlines()[1:]
    assert [row.split()[0] for row in rows] == [run.name for run in few.runs] == [f"lr-1{n}" for n in range(10)]


def test_a_pipe_gets_every_run(folder: Path, capsys: Output) -> None:
    assert main(["status", "--dir", str(folder)]) == 0
    rows = capsys.readouterr().out.split("\n\n")[1].splitlines()[1:]
    assert sum(row.startswith("lr-") for row in rows) == 500


def test_only_chosen_runs_are_shown(folder: Path, capsys: Output) -> None:
    def names(*words: str) -> list[str]:
        assert main(["status", "--dir", str(folder), "--json", *words]) == 0
        return [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]]

    assert len(names("--failed")) == 20
    assert len(names("--state", "failed,running")) == 40
    assert names("--failed", "--run", "lr-0", "--run", "lr-9*") == ["lr-0", "lr-90", "lr-95"]
    assert names("--state", "held") == []
    assert main(["status", "--dir", str(folder), "--state", "held", "--run", "lr-9*"]) == 0
    out, err = capsys.readouterr()
    assert ("shown: no run\n" in out, err) == (True, "no run of sweep that matches lr-9* is held\n")
    assert main(["status", "--dir", str(folder), "--run", "rl-9*"]) == 2
    assert "no run matches rl-9* in sweep\nhint: `campaign status sweep" in capsys.readouterr().err
    assert main(["status", "--dir", str(folder), "--state", "faild"]) == 2
    assert 'did you mean "failed"?' in capsys.readouterr().err


def test_keys_come_from_a_terminal_until_it_ends() -> None:
    with Path(os.devnull).open() as nothing:
        assert not output.keys_may_come(nothing)
    keyboard, end = os.openpty()
    with os.fdopen(end) as terminal:
        assert output.keys_may_come(terminal)
        os.write(keyboard, b"ls\n")
        wait_until(lambda: bool(select.select([terminal], [], [], 0)[0]), "the line")
        assert output.keys_may_come(terminal)
        assert terminal.readline() == "ls\n"
        os.write(keyboard, b"\x04")
        wait_until(lambda: not output.keys_may_come(terminal), "the end")
        os.close(keyboard)
        assert not output.keys_may_come(terminal)


def test_a_pager_gets_what_is_longer_than_the_screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setenv("PAGER", f"sh -c 'cat > {seen}; echo $LESS >> {seen}'")
    monkeypatch.setenv("LINES", "10")
    monkeypatch.delenv("LESS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = "\n".join(map(str, range(50)))
    output.echo_screen(text)
    assert not seen.exists()  # no terminal
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    output.echo_screen("short")
    assert not seen.exists()
    monkeypatch.setattr(output, "keys_may_come", lambda _stream: False)
    output.echo_screen(text)
    assert not seen.exists()
    monkeypatch.setattr(output, "keys_may_come", lambda _stream: True)
    output.echo_screen(text)
    assert seen.read_text() == f"{text}\nFRX\n"
    monkeypatch.setenv("PAGER", "/nowhere/less")
    output.echo_screen(text)  # printed after all
