"""What is found out about how processes ended."""

from __future__ import annotations

import json
import math
import os
import re
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dscampaign.files.atomic_files import write_atomically
from dscampaign.jobs.agent import evidence
from dscampaign.jobs.agent.evidence import LogLine, NodeOutcome, RankEnd
from dscampaign.jobs.agent.gpus import Gpu, GpuFacts
from dscampaign.jobs.shared import spool_steps
from dscampaign.jobs.shared.documents import Unreadable
from dscampaign.jobs.shared.layout import AttemptPaths

OUTCOME = NodeOutcome(
    generation=2,
    job_id="7_0",
    node_rank=1,
    host="n1",
    launcher_exit=None,
    ended_by="rendezvous",
    started_s=1.0,
    ended_s=2.0,
    start_step=40,
    last_step=None,
    ranks=(RankEnd(0, 1, {"type": "X", "message": "m", "trace": [], "ts": 1.0}), RankEnd(1, None, None)),
    lines=(LogLine("launcher-0.log", 3, "x"),),
    oom_kills=1,
    target_step=9,
    ending_s=1.5,
    gpus=GpuFacts(2, (Gpu("0", 1, 80), Gpu("1", 0, 80)), None, "gone"),
    memory_peak_bytes=5,
    memory_peak_of="processes",
    memory_limit_bytes=7,
)


@pytest.fixture
def paths(tmp_path: Path) -> AttemptPaths:
    made = AttemptPaths(tmp_path)
    made.logs.mkdir()
    made.ranks.mkdir()
    return made


def spool(paths: AttemptPaths, *lines: object) -> Path:
    texts = (line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    paths.metrics.write_text("".join(texts))
    return paths.metrics


def test_an_outcome_is_read_as_it_was_written(paths: AttemptPaths) -> None:
    assert NodeOutcome.read(paths.outcome(1)) is None
    OUTCOME.write(paths.outcome(1))
    assert NodeOutcome.read(paths.outcome(1)) == OUTCOME


def test_an_outcome_of_an_older_version_is_read(paths: AttemptPaths) -> None:
    raw = asdict(OUTCOME)
    for name in ("ending_s", "gpus", "memory_peak_bytes", "memory_peak_of", "memory_limit_bytes"):
        del raw[name]
    raw["ranks"] = [{name: rank[name] for name in ("rank", "exit", "error")} for rank in raw["ranks"]]
    write_atomically(paths.outcome(0), json.dumps(raw))
    old = NodeOutcome.read(paths.outcome(0))
    assert old is not None
    assert (old.ranks, old.gpus, old.ending_s) == (OUTCOME.ranks, None, None)


def test_an_outcome_of_a_later_version_is_read(paths: AttemptPaths) -> None:
    raw: dict[str, Any] = json.loads(json.dumps(asdict(OUTCOME)))
    raw |= {"nics": 0, "ranks": [{**rank, "cores": [1]} for rank in raw["ranks"]]}
    raw["lines"] = [{**line, "level": "error"} for line in raw["lines"]]
    write_atomically(paths.outcome(0), json.dumps(raw))
    assert NodeOutcome.load(paths.outcome(0)) == OUTCOME


_ERROR = {"type": "X", "message": "m", "trace": [], "ts": 1.0}
_RANK = {"rank": 0, "exit": 1}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"started_s": "soon"}, "started_s: Input should be a valid number, not 'soon'"),
        ({"ended_s": float("nan")}, "ended_s: Input should be"),
        ({"start_step": 10**30}, "start_step: Input should be less than or equal to 9007199254740992"),
        ({"ranks": [{**_RANK, "error": {"type": "X", "message": "m"}}]}, "ranks[0].error.ts: Field required"),
        ({"ranks": [{**_RANK, "error": {**_ERROR, "ts": "x"}}]}, "ranks[0].error.ts: Input should be a valid number"),
    ],
)
def test_a_malformed_outcome_says_what_is_wrong(paths: AttemptPaths, changed: dict[str, object], why: str) -> None:
    paths.outcome(0).write_text(json.dumps({**asdict(OUTCOME), **changed}))
    with pytest.raises(Unreadable, match=re.escape(why)):
        NodeOutcome.load(paths.outcome(0))


def test_what_lies_in_the_place_of_a_record_is_not_waited_for(paths: AttemptPaths) -> None:
    os.mkfifo(paths.outcome(0))
    with pytest.raises(Unreadable, match="Not a regular file"):
        NodeOutcome.load(paths.outcome(0))
    os.mkfifo(paths.metrics)
    assert (spool_steps.steps_before(paths.metrics), spool_steps.last_step(paths.metrics)) == (0, None)
    os.mkfifo(paths.rank_record(0))
    assert evidence.rank_ends(paths, [0], {}, {}) == (RankEnd(0, None, None),)


def test_a_target_is_found_among_the_first_lines(paths: AttemptPaths) -> None:
    target = {"event": "target", "steps": 37}
    assert spool_steps.target_step(spool(paths, {"event": "x"}, "rubbish\n", "[]\n", target, {"step": 1})) == 37
    assert spool_steps.target_step(spool(paths, {"event": "target"}, {"event": "target", "steps": "7"})) is None


def test_lines_of_all_logs_of_this_node_s_ranks(paths: AttemptPaths) -> None:
    (paths.logs / "2025_rank2.log").write_text("two\n")
    (paths.logs / "2025_rank3.log").write_text("three\n")
    (paths.logs / "2025_rank12.log").write_text("another node's\n")
    paths.launcher_log(1).write_text("launcher\n")
    paths.launcher_log(0).write_text("another node's\n")
    found = evidence.gather_lines(paths, range(2, 4), 1)
    assert [(line.file, line.number, line.text) for line in found] == [
        ("2025_rank2.log", 1, "two"),
        ("2025_rank3.log", 1, "three"),
        ("launcher-1.log", 1, "launcher"),
    ]


def test_of_a_long_log_the_suspects_and_the_end_are_kept(paths: AttemptPaths) -> None:
    texts = [f"step {i} loss 1.0" for i in range(5000)]
    texts[100] = "torch.OutOfMemoryError: CUDA out of memory"
    texts[200] = "NVRM: Xid (PCI:0000:3b:00): 79"
    texts[300] = "x" * 10_000 + " error beyond the limit"
    paths.launcher_log(0).write_text("\n".join(texts))
    found = evidence.gather_lines(paths, [], 0)
    kept = [line.number for line in found[: -evidence.TAIL_LINES]]
    assert kept == [100, 101, 200, 201, 5000 - evidence.TAIL_LINES]  # each suspect, and that training went on
    assert [line.text for line in found[-2:]] == ["step 4998 loss 1.0", "step 4999 loss 1.0"]
    assert max(len(line.text) for line in found) <= evidence.LINE_LIMIT


def test_when_the_time_is_up_only_the_ends_of_the_logs_are_read(
    paths: AttemptPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "GATHER_S", 0.0)
    texts = ["ValueError: the first", *(f"error {i}" for i in range(200_000)), "the last: killed"]
    logs = [paths.logs / "2025_rank0.log", paths.logs / "2025_rank1.log", paths.launcher_log(0)]
    for log in logs:
        log.write_text("\n".join(texts) + "\n")
    found = evidence.gather_lines(paths, range(2), 0)
    for log in logs:
        own = [line for line in found if line.file == log.name]
        assert (own[0].text, own[-1].text) == (texts[0], texts[-1])
        assert own[1].text > "error 19"
        assert [line.number for line in own] == sorted({line.number for line in own})
        assert own[-1].number < 20_000


def test_no_pattern_of_the_user_holds_the_evidence_up(paths: AttemptPaths, capfd: pytest.CaptureFixture[str]) -> None:
    lines = ["the licence server said no", *(f"the quick brown fox {i} jumps over the lazy dog" for i in range(500))]
    paths.launcher_log(0).write_text("\n".join([*lines, "RuntimeError: boom", *["x"] * 50]))
    texts = [line.text for line in evidence.gather_lines(paths, [], 0, [r"(\w+\s?)+Error:", "licen[cs]e"])]
    assert {"the licence server said no", "RuntimeError: boom"} <= set(texts)
    assert "takes too long" in capfd.readouterr().err


MIB = 2**20


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """The most memory that was in use since the test began, in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("kept", ["logs/2025_rank0.log", "metrics.jsonl"])
def test_a_line_without_end_is_never_held(paths: AttemptPaths, peak: Callable[[], int], kept: str) -> None:
    endless = paths.dir / kept
    endless.write_text("ValueError: no\n")
    os.truncate(endless, 96 * MIB)  # a hole costs no disk
    found = evidence.gather_lines(paths, [0], 0)
    steps = spool_steps.steps_before(paths.metrics), spool_steps.last_step(paths.metrics)
    assert (steps, spool_steps.target_step(paths.metrics)) == ((0, None), None)
    assert [line.text for line in found[:1]] == (["ValueError: no"] if kept.startswith("logs") else [])
    assert peak() < 24 * MIB


def _steps(*steps: int) -> list[dict[str, object]]:
    return [{"step": step, "loss": 1.0} for step in steps]


def test_a_first_line_stands_for_as_many_steps_as_the_second(paths: AttemptPaths) -> None:
    before = {(): 0, (1, 2): 0, (0, 5): 0, (5, 5, 10): 0, (1, 10): 0, (205, 210): 200, (450,): 449}
    assert {steps: spool_steps.steps_before(spool(paths, *_steps(*steps))) for steps in before} == before


@pytest.mark.parametrize(
    ("steps", "start", "reached"),
    [
        ((), 0, None),
        ((1,), 0, 1),
        ((1, 2, 3), 0, 3),
        ((10, 20, 20, 30), 0, 39),  # every tenth, the last of them evaluated
        ((10,), 0, 19),
        ((0, 1, 2), 0, 3),  # counted from 0
        ((21, 22), 20, 22),
    ],
)
def test_the_highest_step_that_a_spool_leaves_room_for(
    paths: AttemptPaths, steps: tuple[int, ...], start: int, reached: int | None
) -> None:
    assert spool_steps.step_reached(spool(paths, *_steps(*steps)), start) == reached


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (({"step": 1, "loss": 1.0}, '{"step": 2, "loss": NaN}\n', {"step": 3, "lr": 0.1}), ("loss", 2)),
        (('{"step": 1, "loss": Infinity}\n', {"step": 2, "loss": 1.0}), None),
        (('{"step": 1, "loss": 1.0, "eval_loss": NaN}\n',), ("eval_loss", 1)),
        (('{"step": 1, "eval_loss": NaN}\n', '{"step": 2, "loss": NaN}\n'), ("loss", 2)),
        (('{"step": 1, "train/loss": -Infinity}\n',), ("train/loss", 1)),
        (('{"step": 1, "loss": 1.0, "grad_norm": NaN, "box_loss": NaN, "loss_scale": Infinity}\n',), None),
    ],
)
def test_a_loss_that_ends_not_finite(paths: AttemptPaths, lines: tuple[object, ...], found: tuple[str, int]) -> None:
    assert spool_steps.diverged_at(spool(paths, *lines)) == found


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        # a gradient that is lost shows that the 0 beside it is no loss
        ([{"loss": 2.0, "grad_norm": 1.0}, {"loss": 0.0, "grad_norm": math.nan}], ("loss (reported as 0)", 2)),
        ([{"loss": 2.0, "grad_norm": 1.0}, {"loss": 0, "train/grad_norm": math.inf}], ("loss (reported as 0)", 2)),
        ([{"loss": 0.0, "grad_norm": math.nan}] * 3, ("loss (reported as 0)", 1)),
        ([{"loss": 0.0, "grad_norm": math.nan}, {"loss": 2.0, "grad_norm": 1.0}], None),
        ([{"loss": 2.0, "grad_norm": 1.0}, *[{"loss": 1.7, "grad_norm": math.nan}] * 10], ("grad_norm", 2)),
        ([{"loss": 2.0}, *[{"loss": 0.0}] * 3], ("loss (reported as 0)", 2)),
        ([{"loss": 2.0}, *[{"loss": 0.0}] * 3, {"eval_loss": math.nan}], ("eval_loss", 5)),
        # fp16 skips what overflows, for long before it has found its loss scale
        ([{"loss": 2.0, "grad_norm": 1.0}, *[{"loss": 2.0, "grad_norm": math.inf}] * 3], None),
        ([{"loss": 2.0, "grad_norm": math.inf}] * 30, None),
        ([{"loss": 2.0, "grad_norm": 1.0}, *[{"loss": 2.0, "grad_norm": math.inf}] * 10, {"eval_loss": 2.0}], None),
        # a loss that does fall to 0, or was 0 before, or is only sometimes reported
        ([{"loss": 0.01}, *[{"loss": 0.0}] * 9], None),
        ([{"loss": 0.2}, {"loss": 0.0}, {"loss": 0.2}, *[{"loss": 0.0}] * 9], None),
        ([{"loss": 2.0}, *[{"loss": 0.0}] * 9, {"eval_loss": 0.01}], None),
        ([{"loss": 2.0, "grad_norm": 1.0}, *[{"loss": 0.0, "grad_norm": 0.1}] * 9], None),
        ([{"loss": 0.0}] * 9, None),
    ],
)
def test_a_loss_is_not_believed_against_what_else_a_step_reports(
    paths: AttemptPaths, rows: list[dict[str, float]], found: tuple[str, int] | None
) -> None:
    lines = [{"step": step} | row for step, row in enumerate(rows, 1)]
    assert spool_steps.diverged_at(spool(paths, *lines)) == found
    apart = [{"step": line["step"], name: line[name]} for line in lines for name in line.keys() - {"step"}]
    assert spool_steps.diverged_at(spool(paths, *apart)) == found  # each value in a line of its own
