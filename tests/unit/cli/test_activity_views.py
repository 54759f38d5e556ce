"""What runs do, where, how long they will take, and where an error is from, as `status` and `explain` show it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import leases, queries, schema
from dscampaign.db.records import EventRow
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.activity import event_text
from dscampaign.orchestrator.campaign.documents import run_details, run_document
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.pages.describe import run_page
from dscampaign.orchestrator.pages.text import Page
from dscampaign.tests.support.cli_world import World
from dscampaign.tests.support.planted import Planted, Try, plant

Output = pytest.CaptureFixture[str]


def newest(world: World, run: str) -> int:
    with world.store.read() as conn:
        return queries.attempts(conn, world.campaign_id, world.run_id(run))[-1].id


def looked_after(world: World) -> None:
    with world.store.write() as conn:
        leases.acquire_lease(conn, f"reconciler:{world.campaign_id}", "login7:4242:abc", 60.0)


def shown(capsys: Output, *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("eval", "evaluating for 1 min 3"),
        ("checkpoint", "saving for 1 min 3"),
        ("start", "starting for 1 min 3"),
        ("compile", "compiling for 1 min 3"),
        ("end", "ending for 1 min 3"),
        ("load_corpus", "load corpus for 1 min 3"),
        ("steps", "training "),
        ("", "running "),
    ],
)
def test_status_and_explain_say_what_a_run_does(world: World, capsys: Output, phase: str, words: str) -> None:
    activity = {"phase": phase, "phase_since_s": time.time() - 95, "node_list": "n[1-2]"}
    world.set_attempt(newest(world, "small"), **activity)
    assert "▶ running" in shown(capsys, "status")  # nobody has looked: what was seen long ago says nothing
    looked_after(world)
    assert f"▶ {words}" in shown(capsys, "status")
    explained = shown(capsys, "explain", "small")
    assert words.rstrip() in explained
    assert "8_0 on n[1-2]" in explained
    assert main(["status", "--json"]) == 0
    [small] = [run for run in json.loads(capsys.readouterr().out)["runs"] if run["name"] == "small"]
    assert (small["state"], small["phase"], small["job_id"], small["node_list"]) == ("running", phase, "8_0", "n[1-2]")
    assert small["phase_since_s"] == activity["phase_since_s"]


def test_status_and_explain_say_how_long_a_run_will_take(world: World, capsys: Output) -> None:
    world.set_run("small", target_step=1000)
    world.set_run("new", state=RunState.CANCELLED)
    now_s = time.time()
    lines = [{"step": step, "ts": now_s - 2 * (400 - step), "loss": 1.0} for step in range(1, 401)]
    attempt = world.attempt("small", 3, micro_batch=4, lines=lines)
    world.set_attempt(attempt, state="running", started_s=now_s - 900, job_id="9_0")
    first = shown(capsys, "status").splitlines()[0]
    assert re.search(r"over about (\w{3} \d\d \w{3} )?\d\d:\d\d, 21 min left with 1 at once", first)
    assert "400 of 1000, " in (explained := shown(capsys, "explain", "small"))
    assert "about 21 min left" in explained  # its like took a minute after its last step


FRAMES = [
    {"file": "/shared/code/0123456789abcdef/train.py", "number": 88, "function": "<module>", "code": "main()"},
    {"file": "/shared/code/0123456789abcdef/probe.py", "number": 17, "function": "main", "code": 'config["x"]'},
    {"file": "/env/lib/python3.11/site-packages/torch/nn.py", "number": 3, "function": "get", "code": ""},
]


def test_explain_shows_where_an_error_was_raised_and_its_words_once(world: World, capsys: Output) -> None:
    line = {"file": "ranks/rank-0.json", "number": 0, "text": "builtins.KeyError: 'x'"}
    evidence = {"reason": "KeyError: 'x'", "line": line, "rule": "script-error", "frames": FRAMES}
    world.set_run("bad", reason="")
    world.set_attempt(newest(world, "bad"), evidence=evidence)
    lines = [text.strip() for text in shown(capsys, "explain", "bad").splitlines()]
    at = lines.index("deterministic: KeyError: 'x'")
    assert lines[at + 1 : at + 5] == [
        "at train.py:88 in <module>: main()",
        'at probe.py:17 in main: config["x"]',
        "at torch/nn.py:3 in get",
        "proof: ranks/rank-0.json, rule script-error",
    ]
    assert not any("KeyError" in text for text in lines[at + 5 :])


def test_explain_has_one_command_for_every_state_and_failure_class(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/planted.db", create=True)
    tries = [Try(last=1, ended=kind) for kind in (None, *FailureClass)]
    runs = [Planted(f"k{n}", [0.1], [3.0], tries=[one], steps=1) for n, one in enumerate(tries)]
    campaign = plant(store, tmp_path, runs)
    for state in RunState:
        with store.write() as conn:
            conn.execute(schema.run.update().values(state=state))
        with store.read() as conn:
            rows = queries.runs(conn, campaign.id)
        for run in rows[:: 1 if state is RunState.FAILED else 9]:
            details = run_details(store, campaign, run)
            assert run_page(details, Page()).count("next: campaign ") == 1
            json.dumps(run_document(details), allow_nan=False)
    store.close()


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("script.start", {"step": 10.0, "flops": 1}, "training starts after step 10"),
        ("script.checkpoint", {"step": 50.0, "size_bytes": 2.5e9}, "checkpoint of step 50, 2.5 GB"),
        ("script.memory", {"peak_reserved_gb": 65.91}, "at most 65.9 GB of memory reserved"),
        ("script.speed", {"tokens_per_s": 48231.0}, "48.2k tokens/s after the warm-up"),
        ("script.speed", {"tokens_per_s": "odd"}, "speed: tokens per s odd"),
        ("script.warm_up", {"lr": 1e-4, "tags": [1]}, "warm up: lr 0.0001, tags [1]"),
        ("script.checkpoint_older", {"reason": "older\nby hand"}, "older by hand"),
    ],
)
def test_events_of_a_script_are_sentences(kind: str, data: dict[str, Any], text: str) -> None:
    assert event_text(EventRow(1, 1, 1, 1, 0.0, kind, "", data)) == text
