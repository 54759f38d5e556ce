"""The agent's part in the search for a micro-batch: rounds, what is kept for siblings, what ends it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.agent.node import Node, Start
from dscampaign.jobs.agent.search import Search, Searched, found_before, prepare
from dscampaign.jobs.shared.layout import AttemptPaths, CampaignPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.tests.support.attempt import make_payload

SHARE = 64


class Ranks:
    """What the ranks of a search would do: speeds by size, and sizes that do not fit."""

    def __init__(self, step_s: dict[int, float], too_big: int | None = None, ended_by: str = "", code: int = 0) -> None:
        self.step_s, self.too_big, self.ended_by, self.code = step_s, too_big, ended_by, code
        self.begun: list[int] = []
        self.meet = threading.Barrier(1)

    def __call__(self, payload: Payload, paths: AttemptPaths, start: Start) -> tuple[int, str]:
        assert payload.train is not None
        assert payload.train["search"] == {"share": SHARE, "seconds": 60.0, "too_big": None}
        size = payload.train["micro_batch"]
        assert payload.train["global_batch"] == size * payload.train["accumulation"] * payload.world_size
        assert json.loads(paths.train_config.read_text())["micro_batch"] == size
        assert start.resume == ""
        self.begun.append(size)
        self.meet.wait(60)
        with paths.metrics.open("w") as spool:
            for one, step_s in self.step_s.items():
                if one >= size and not (self.too_big and one >= self.too_big):
                    line = {"event": "trial", "micro_batch": one, "step_s": step_s, "peak_gb": None, "usable_gb": None}
                    spool.write(json.dumps(line) + "\n")
        if self.too_big is not None:
            paths.did_not_fit(1).write_text(json.dumps({"micro_batch": max(size, self.too_big)}))
            return 1, "teardown"
        return self.code, self.ended_by


class Attempt:
    """An attempt of a run that searches, on one node of `nodes`."""

    def __init__(self, folder: Path, run: str = "r", rank: int = 0, nodes: int = 1) -> None:
        sizes = {"micro_batch": 8, "accumulation": 8, "global_batch": 2 * SHARE * nodes}
        batch = {"train_batch_size": 2 * SHARE, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 8}
        train = {"micro_batch": 8, "accumulation": 8, "global_batch": 2 * SHARE * nodes}
        self.payload = make_payload(folder, run=run, search="abc", train=train, ds_config=batch, nodes=nodes, **sizes)
        self.paths = AttemptPaths(Path(self.payload.attempt_dir))
        self.paths.dir.mkdir(parents=True, exist_ok=True)
        self.said: dict[str, dict[str, Any]] = {}
        self.node = Node("7_0", rank, f"n{rank}", "")
        self.start = Start("7_0", "n0", "127.0.0.1", 1, "/checkpoint", 0, 1.0, search_from=8)

    def search(self, ranks: Ranks, over: Callable[[], str] = lambda: "") -> Searched:
        prepare(self.payload, 8)
        self.start.write(self.paths.started)
        return Search(self.payload, self.node, ranks, self.tell).run(self.start, over)

    def tell(self, event: str, **data: Any) -> None:
        self.said[event] = data


FAST_AT_32 = {8: 1.0, 16: 0.8, 32: 0.6, 64: 0.7}


def test_the_fastest_is_trained_with_at_the_same_global_batch(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    found = attempt.search(Ranks(FAST_AT_32))
    assert (found.payload.micro_batch, found.payload.accumulation, found.ended_by) == (32, 2, "")
    assert found.payload.train == {"micro_batch": 32, "accumulation": 2, "global_batch": 128}
    assert json.loads(attempt.paths.train_config.read_text()) == found.payload.train
    told = Start.read(attempt.paths.started)
    assert told == found.start
    assert (told.micro_batch, told.accumulation, told.search_from, told.resume) == (32, 2, None, "/checkpoint")
    said = attempt.said["micro_batch_search"]
    assert (said["micro_batch"], said["tried"], said["did_not_fit"]) == (32, [8, 16, 32, 64], None)
    assert said["reason"].startswith("micro-batch 32 of 8, 16, 32, 64, found in ")
    assert attempt.said["micro_batch_trial"]["micro_batch"] == 64


def test_memory_that_runs_out_later_keeps_what_was_measured(tmp_path: Path) -> None:
    attempt, ranks = Attempt(tmp_path), Ranks(FAST_AT_32, too_big=32)
    assert attempt.search(ranks).payload.micro_batch == 16
    assert ranks.begun == [8]
    assert attempt.said["micro_batch_search"]["did_not_fit"] == 32


def test_where_nothing_fits_the_training_says_so_and_nobody_else_learns_a_size(tmp_path: Path) -> None:
    attempt, ranks = Attempt(tmp_path), Ranks({}, too_big=1)
    assert attempt.search(ranks).payload.micro_batch == 1
    assert ranks.begun == [8, 4, 2, 1]
    assert found_before(attempt.payload) is None


@pytest.mark.parametrize("why", ["signal", "superseded", "peer"])
def test_what_ends_the_attempt_ends_the_search_and_nothing_is_kept(tmp_path: Path, why: str) -> None:
    attempt = Attempt(tmp_path)
    assert attempt.search(Ranks(FAST_AT_32, ended_by=why)).ended_by == why
    assert found_before(attempt.payload) is None
    assert Start.read(attempt.paths.started) == attempt.start


def test_the_first_find_counts_for_all_siblings(tmp_path: Path) -> None:
    first, second = Attempt(tmp_path, "r"), Attempt(tmp_path, "r-r1")
    first.search(Ranks(FAST_AT_32))
    assert found_before(second.payload) == (32, 2)
    assert second.search(Ranks({8: 1.0, 16: 0.5, 32: 0.6, 64: 0.6})).payload.micro_batch == 32
    assert second.said["micro_batch_search"]["tried"] == [8, 16, 32, 64]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"micro_batch": 7}', '{"micro_batch": 0}', '{"micro_batch": "8"}'])
def test_what_is_no_size_for_the_batch_is_not_adopted(tmp_path: Path, content: str) -> None:
    payload = Attempt(tmp_path).payload
    run = Path(payload.run_dir)
    path = CampaignPaths(run.parents[2], run.parents[1].name).found_micro_batch("abc")
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert found_before(payload) is None


def test_other_nodes_search_as_often_as_the_first_and_train_with_its_size(tmp_path: Path) -> None:
    first, second = (Attempt(tmp_path, rank=rank, nodes=2) for rank in (0, 1))
    ranks, others = Ranks({4: 2.0, 8: 1.0}, too_big=8), Ranks({})
    ranks.meet = others.meet = threading.Barrier(2)
    found: list[Searched] = []
    prepare(first.payload, 8)
    first.start.write(first.paths.started)
    waiting = threading.Thread(
        target=lambda: found.append(Search(second.payload, second.node, others, second.tell).run(second.start, str))
    )
    waiting.start()
    decided = first.search(ranks)
    waiting.join(60)
    assert ranks.begun == others.begun == [8, 4]
    assert found == [Searched(decided.start, decided.payload)]
    assert decided.payload.micro_batch == 4
    assert second.said == {}
