"""What the command shows of a campaign: status, describe, explain, logs, export."""

import csv
import io
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import bulk, leases, queries
from dscampaign.db.records import NewRun
from dscampaign.db.schema import lease
from dscampaign.db.states import Cause, CauseCode, RunState
from dscampaign.orchestrator.campaign.logs import Wanted, await_attempt, follow_log
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.cli_world import World

Output = pytest.CaptureFixture[str]


def document(capsys: Output, *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def shown(capsys: Output, *words: str) -> list[str]:
    assert main([*words]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_status_page_has_a_row_for_each_run(world: World, capsys: Output) -> None:
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sweep · 4 runs: 1 pending, 1 running, 1 completed, 1 failed")
    rows = {line.split()[0]: line.split() for line in lines[3:7]}
    assert rows["done"] == ["done", "✓", "completed", "3/3", "1", "48.2k", "8", "1", "7_0"]
    assert rows["small"][:7] == ["small", "▶", "running", "1/3", "2.5", "8→4", "2"]
    assert rows["bad"][3:5] == ["1/3", "nan"]
    assert rows["new"] == ["new", "·", "pending", "–/3"]


def test_failures_come_last_with_what_to_type_next(world: World, capsys: Output) -> None:
    main(["status"])
    out = capsys.readouterr().out
    assert "bad failed: KeyError: 'x'[bold] · look at x\nnext: campaign explain sweep bad\n" in out
    assert out.rstrip().endswith("retries: off, not reconciled yet; start with `campaign reconcile sweep --detach`")


def test_status_says_who_looks_after_the_campaign(world: World, capsys: Output) -> None:
    with world.store.write() as conn:
        leases.acquire_lease(conn, f"reconciler:{world.campaign_id}", "login7:4242:abc", 60.0)
    main(["status"])
    assert "retries: on (pid 4242 on login7)" in capsys.readouterr().out
    main(["explain", "new"])
    assert "reconcile" not in capsys.readouterr().err
    with world.store.write() as conn:
        holder = f"{socket.gethostname()}:0:abc"  # no process has this number
        conn.execute(lease.update().values(holder=holder, asked_s=world.store.now(conn) - 720))
    main(["status"])
    assert (
        f"retries: off, the reconciler (pid 0 on {socket.gethostname()}) has died; "
        "start with `campaign reconcile sweep --detach`" in capsys.readouterr().out
    )
    for words in (["explain", "new"], ["recommend"], ["compare", "new", "bad"]):
        main(words)
        assert "sweep: reconciled 12 min ago; next: campaign reconcile sweep\n" in capsys.readouterr().err


def test_status_as_a_document(world: World, capsys: Output) -> None:
    found = document(capsys, "status", "sweep")
    assert (found["schema_version"], found["campaign"], found["settled"]) == (1, "sweep", False)
    assert found["counts"] == {
        "pending": 1, "queued": 0, "running": 1, "completed": 1, "failed": 1, "held": 0, "cancelled": 0, "screened": 0,
        "pruned": 0,
    }  # fmt: skip
    done, small, bad, new = found["runs"]
    assert (done["state"], done["step"], done["target_step"], done["loss"]) == ("completed", 3, 3, 1.0)
    assert (small["global_batch"], small["micro_batch"], small["accumulation"], small["world_size"]) == (64, 4, 2, 8)
    assert [attempt["failure_class"] for attempt in small["attempts"]] == ["oom", None]
    assert bad["loss"] == "NaN"
    assert (new["micro_batch"], new["accumulation"], new["attempts"]) == (8, 1, [])


def test_a_spec_file_stands_for_its_campaign_though_it_is_broken(world: World, tmp_path: Path, capsys: Output) -> None:
    spec = tmp_path / "elsewhere.yaml"
    spec.write_text(f"name: sweep\ndir: {world.dir}\nnonsense: 1\n")
    os.chdir("/")
    assert document(capsys, "status", str(spec))["campaign"] == "sweep"


def test_explain_shows_the_proof_and_what_to_do(world: World, capsys: Output) -> None:
    assert main(["explain", "bad"]) == 0
    out = capsys.readouterr().out
    assert "deterministic: KeyError: 'x'[bold]" in out
    assert "proof: launcher-0.log:17, rule script-error" in out
    assert "this line may not show the cause\n" in out
    assert "   n1: rank 0 → no record; rank 3 → SIGKILL\n" in out
    assert "KeyError: 'x'[bold]\n" in out  # neither an escape sequence nor markup gets through
    assert "\x1b" not in out
    assert "hint: look at x" in out
    assert "next: campaign logs sweep bad" in out
    assert main(["explain", "sweep"]) == 0
    failures = capsys.readouterr().out.partition("Failures\n")[2].partition("\n\n")[0]
    assert failures.splitlines() == [
        "  bad failed: KeyError: 'x'[bold] · look at x",
        "  next: campaign explain sweep bad",
    ]


def test_explain_says_how_a_run_that_is_held_goes_on(world: World, capsys: Output) -> None:
    with world.store.write() as conn:
        cause = Cause(CauseCode.MISSING_VARIABLES, ("HF_TOKEN",))
        queries.update_run(conn, world.run_id("new"), state=RunState.HELD, cause=cause)
        queries.update_run(conn, world.run_id("bad"), state=RunState.HELD, reason="out of room")
    assert [line for line in shown(capsys, "explain", "sweep", "new") if line.startswith("next")] == [
        "next: campaign reconcile sweep --watch   (with HF_TOKEN set)"
    ]
    assert shown(capsys, "explain", "sweep", "bad")[-1] == "next: campaign logs sweep bad"  # nobody knows the cause
    with world.store.read() as conn:
        [attempt] = queries.attempts(conn, world.campaign_id, world.run_id("bad"))
    world.set_attempt(attempt.id, evidence={"reason": "no room", "sure": "certain"})
    assert shown(capsys, "explain", "sweep", "bad")[-1] == "next: campaign retry sweep bad   (once the cause is fixed)"


def test_explain_shows_parameters_as_they_are_written(world: World, capsys: Output) -> None:
    with world.store.write() as conn:
        run = NewRun("data", {"data": "Märchen 童話"}, {}, "data", 9, target_step=3)
        bulk.insert_runs(conn, world.campaign_id, [run])
    assert 'parameters  data = "Märchen 童話"' in shown(capsys, "explain", "data")


def test_describe_shows_the_campaign(world: World, capsys: Output) -> None:
    main(["describe"])
    out = capsys.readouterr().out
    assert "/specs/sweep.yaml at abc123" in out
    assert "bad: attempt 1: deterministic" in out
    assert document(capsys, "describe", "sweep", "bad")["attempts"][0]["evidence"]["rule"] == "script-error"


def test_logs_takes_the_newest_log_of_the_rank(world: World, capfdbinary: Any) -> None:
    logs = world.attempt_paths("small", 2).logs
    (logs / "20250101000000_rank1.log").write_text("old\n")
    (logs / "20250102000000_rank1.log").write_text("one\ntwo\nthree\n")
    (logs / "20250102000000_rank11.log").write_text("another rank\n")
    assert main(["logs", "small", "--rank", "1", "-n", "2"]) == 0
    assert capfdbinary.readouterr().out == b"two\nthree\n"


def test_logs_of_what_is_not_there(world: World, capsys: Output) -> None:
    assert main(["logs", "new"]) == 2
    assert "new has no log\nhint: it has not been submitted yet" in capsys.readouterr().err
    assert main(["logs", "small"]) == 2
    hint = "hint: it has not started yet; wait for it with -f, or see another --attempt"
    assert f"no log of rank 0 in g0002\n{hint}" in capsys.readouterr().err
    assert main(["logs", "small", "--attempt", "9"]) == 2
    assert "small has no attempt 9\nhint: it has 1, 2" in capsys.readouterr().err
    assert main(["logs", "small", "--rank", "8"]) == 2
    assert "small has no rank 8\nhint: it has ranks 0 to 7" in capsys.readouterr().err
    assert main(["logs", "small", "--launcher", "--rank", "2"]) == 2
    assert "small has no node 2\nhint: it has nodes 0 to 1" in capsys.readouterr().err


def test_a_followed_log_ends_with_its_attempt_and_misses_nothing(world: World) -> None:
    paths, out = world.attempt_paths("small", 2), io.BytesIO()
    rank_log = paths.logs / "20250102000000_rank0.log"
    wanted = Wanted(paths, world.dir, (), rank=0, launcher=False, over=False)
    written = iter([(paths.launcher_log(0), "starting\n"), (rank_log, "step 1\n"), (rank_log, "step 2\n")])

    def meanwhile(_seconds: float) -> None:
        path, text = next(written, (rank_log, "step 3\n"))
        with path.open("a") as log:
            log.write(text)
        if text == "step 3\n":
            paths.outcome(0).write_text("{}")

    follow_log(wanted, None, out, sleep=meanwhile)
    assert out.getvalue() == b"starting\nstep 1\nstep 2\nstep 3\n"


def test_following_waits_for_the_attempt_that_a_retry_brings(world: World) -> None:
    """Not the log of the attempt that ended, which has been read already."""
    world.set_run("bad", state=RunState.PENDING)
    with world.store.read() as conn:
        [campaign] = queries.list_campaigns(conn)
        run = queries.run_by_name(conn, campaign.id, "bad")
    assert run is not None
    said: list[str] = []
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            world.attempt("bad", 2, lines=[])

    await_attempt(world.store, campaign, run, said.append, sleep)
    assert (said, len(naps)) == (["bad is pending; waiting for attempt 2"], 2)
    await_attempt(world.store, campaign, run, said.append, sleep)  # it goes on
    world.set_run("bad", state=RunState.FAILED)
    await_attempt(world.store, campaign, run, said.append, sleep)  # nothing is to come
    assert len(naps) == 2


def test_export_of_steps_has_a_column_for_each_figure(world: World, capsys: Output) -> None:
    assert main(["export", "sweep"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["run"], row["step"], row["loss"]) for row in rows] == [
        ("done", "1", "3.0"), ("done", "2", "1.5"), ("done", "3", "1.0"), ("small", "1", "2.5"), ("bad", "1", "nan"),
    ]  # fmt: skip
    assert [row["my_figure"] for row in rows] == ["", "", "", "1.5", ""]


def test_a_completed_run_that_reported_nothing_is_told_what_to_add(world: World, capsys: Output) -> None:
    world.attempt("new", lines=[])
    world.set_run("new", state=RunState.COMPLETED, generation=1)
    said = "the script reported no metrics. Add to it: from dscampaign import report, and after each step:"
    assert f"new: {said}" in " ".join(shown(capsys, "status"))
    assert "or set train.steps, so that a count" in " ".join(shown(capsys, "status"))
    assert f"metrics {said}" in " ".join(" ".join(shown(capsys, "explain", "new")).split())
    assert said not in " ".join(shown(capsys, "explain", "done"))
