"""From the spool into the store: every line once, nothing in silence."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest

from dscampaign.db import bulk, metrics, queries, schema
from dscampaign.db.ingest.metrics import MetricSpool
from dscampaign.db.ingest.spool import STALE_S, drain, ingest
from dscampaign.db.records import MemoryObservation, MetricRow, NewRun, RunLatest
from dscampaign.db.states import AttemptState
from dscampaign.tests.support.worlds import World, as_bytes, new_attempt

_ALL = {
    "loss": 1.0,
    "eval_loss": 2.0,
    "lr": 3.0,
    "grad_norm": 4.0,
    "step_time": 5.0,
    "tokens_per_s": 6.0,
    "mem_allocated": 7.0,
    "mem_reserved": 8.0,
    "gpu_util": 9.0,
    "power": 10.0,
    "mfu": 11.0,
}


def _lines(first: int, last: int, **values: float) -> list[dict[str, object]]:
    return [{"step": step, "ts": 1e9 + step, "loss": 1 / step, **values} for step in range(first, last + 1)]


def test_every_value_finds_its_column(world: World) -> None:
    world.write({"step": 5, "ts": 12.5, **_ALL, "samples_seen": 320})
    world.ingest()
    [row] = world.metrics()
    assert (row.attempt_id, row.generation, row.step, row.ts_s) == (1, 1, 5, 12.5)
    named = [row.loss, row.eval_loss, row.lr, row.grad_norm, row.step_time_s, row.tokens_per_s]
    named += [row.mem_allocated_gb, row.mem_reserved_gb, row.gpu_util_pct, row.power_w, row.mfu]
    assert named == list(_ALL.values())
    assert row.extra == {"samples_seen": 320}


@pytest.mark.parametrize("count", [3, 450])
def test_a_spool_is_taken_once(world: World, count: int) -> None:
    """Few rows and many go different ways into Postgres."""
    world.write(*_lines(1, count, extra=7))
    result = world.ingest()
    size = world.spool().stat().st_size
    assert (result.lines, result.new_offset, result.rejected, result.caught_up) == (count, size, 0, True)
    again = world.ingest()
    assert (again.lines, again.new_offset, again.caught_up) == (0, size, True)
    assert [(row.step, row.loss, row.extra) for row in world.metrics()] == [
        (step, 1 / step, {"extra": 7}) for step in range(1, count + 1)
    ]


def test_the_attempt_knows_where_it_began_and_how_far_it_came(world: World) -> None:
    world.write(*_lines(101, 120))
    world.ingest()
    world.write({"step": 110, "eval_loss": 1.0})
    world.ingest()
    with world.store.read() as conn:
        [attempt] = queries.attempts(conn, world.campaign_id)
    assert (attempt.start_step, attempt.last_step) == (100, 120)
    assert attempt.spool_offset == world.spool().stat().st_size


def test_a_torn_line_waits_for_its_rest(world: World) -> None:
    world.write(*_lines(1, 2), b'{"step":3,"lo')
    first = world.ingest()
    assert (first.lines, first.caught_up, len(world.metrics())) == (2, True, 2)
    world.write(b'ss":0.5}\n')
    assert world.ingest().lines == 1
    assert world.metrics()[-1].loss == 0.5
    assert world.events("spool.corrupt") == []


@pytest.mark.parametrize("split", [True, False], ids=["two batches", "one batch"])
def test_lines_of_a_step_complete_each_other_and_the_first_value_counts(world: World, split: bool) -> None:
    world.write({"step": 1, "loss": 3.0, "lr": math.nan, "a": 1})
    if split:
        world.ingest()
    world.write({"step": 1, "loss": 9.0, "lr": 9.0, "eval_loss": math.nan, "grad_norm": 2.0, "a": 9, "b": 2})
    world.ingest()
    [row] = world.metrics()
    assert (row.loss, row.grad_norm, row.extra) == (3.0, 2.0, {"a": 1, "b": 2})
    assert row.lr is not None
    assert math.isnan(row.lr)
    assert row.eval_loss is not None
    assert math.isnan(row.eval_loss)
    assert row.tokens_per_s is None


@pytest.mark.parametrize("count", [1, 300])
def test_values_that_are_not_finite_survive(world: World, count: int) -> None:
    values = {"loss": math.nan, "eval_loss": math.inf, "grad_norm": -math.inf, "mine": math.nan, "yours": math.inf}
    world.write(*({"step": step, **values} for step in range(1, count + 1)))
    world.ingest()
    rows: list[MetricRow | RunLatest] = [*world.metrics(), world.latest()]
    for row in rows:
        assert row.loss is not None
        assert math.isnan(row.loss)
        assert row.eval_loss == math.inf
    last = world.metrics()[-1]
    assert last.grad_norm == -math.inf
    assert math.isnan(last.extra["mine"])
    assert last.extra["yours"] == math.inf
    assert last.lr is None


def test_a_corrupt_line_is_set_aside_and_the_rest_is_taken(world: World) -> None:
    good = json.dumps({"step": 1, "loss": 1.0}) + "\n"
    world.write(good.encode(), 'half{"step":\0', {"step": 2, "loss": 0.5})
    assert world.ingest().rejected == 1
    [event] = world.events("spool.corrupt")
    assert event.data == {"offset": len(good), "bytes": 14, "text": 'half{"step":\ufffd'}
    assert (event.run_id, event.attempt_id) == (world.run_id, 1)
    assert [row.step for row in world.metrics()] == [1, 2]
    world.ingest()
    assert len(world.events("spool.corrupt")) == 1


def test_a_line_without_end_does_not_stop_the_spool(world: World) -> None:
    world.write(b"x" * 250 + b"\n", {"step": 1, "loss": 1.0})
    while not world.ingest(max_bytes=100).caught_up:
        pass
    assert [row.step for row in world.metrics()] == [1]
    [event] = world.events("spool.corrupt")
    assert event.data["offset"] == 0


ODD = [
    '{"event": "target", "steps": 1e400}',
    '{"event": "target", "steps": 1e300}',
    '{"event": "target", "steps": 9.3e18}',
    '{"event": "target", "steps": 1180591620717411303424}',
    '{"event": "target", "steps": NaN}',
    '{"event": "checkpoint", "step": true, "path": "x", "size_bytes": true}',
    '{"event": "checkpoint", "step": 1, "path": "\\ud800\\u0000", "size_bytes": 1e300}',
    '{"event": "memory", "micro_batch": 1099511627776, "usable_gb": 1.0}',
    '{"event": "memory", "micro_batch": true, "usable_gb": 1.0}',
    '{"event": "deep", "x": ' + "[" * 600 + "NaN" + "]" * 600 + "}",
    '{"event": "deep", "x": ' + "[" * 950 + "]" * 950 + "}",
    '{"event": "odd", "ts": 1e300, "x": "\\ud800 \\u0000", "\\udfff": 1}',
    '{"event": "big", "x": 1' + "0" * 5000 + "}",
    '{"event": "long", "message": "' + "x" * 100_000 + '"}',
    '{"step": 3, "ts": 1e300, "loss": 1e308}',
    '{"step": 3, "ts": NaN, "loss": -1e400}',
    '{"step": 9007199254740992, "ts": 0}',
]


def test_a_bad_line_does_not_affect_its_neighbours(world: World) -> None:
    with world.store.write() as conn:
        queries.update_attempt(conn, 1, memory_key="k")
    for step, line in enumerate(ODD, start=10):
        world.write({"step": step, "loss": 1.0}, line)
        assert world.ingest().caught_up, line
        assert step in {row.step for row in world.metrics()}, line
    with world.store.read() as conn:
        told = queries.events(conn, world.campaign_id)
        [run] = queries.runs(conn, world.campaign_id)
    assert all(0 < event.ts_s < 1e11 for event in told)
    assert run.target_step is None
    assert "\0" not in repr(told)
    repr(told).encode()


def test_lines_that_the_store_refuses_are_set_aside_with_their_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a line were taken that no database takes: the line that nobody has thought of."""
    with world.store.write() as conn:
        queries.update_attempt(conn, 1, memory_key="k")
    monkeypatch.setattr("dscampaign.db.ingest.metrics.is_whole", lambda *_: True)
    good = [json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(1, 8)]
    bad = json.dumps({"event": "checkpoint", "step": "many", "path": "x", "size_bytes": {}}) + "\n"
    for line in (*good[:4], bad, *good[4:], bad):
        world.write(line.encode())
    result = world.ingest()
    assert (result.rejected, result.caught_up) == (2, True)
    assert [row.step for row in world.metrics()] == list(range(1, 8))
    at = len("".join(good[:4]))
    told = world.events("spool.corrupt")
    assert [event.data["offset"] for event in told] == [at, len("".join(good)) + len(bad)]
    assert "the store does not take it" in told[0].message
    assert world.events("script.checkpoint") == []


def test_events_of_the_script_come_once(world: World) -> None:
    world.write({"event": "memory", "ts": 77.5, "after_init_gb": 1.5, "worst": math.nan, "who": "a\0\ud800"})
    assert world.ingest().events == 1
    world.ingest()
    [event] = world.events("script.memory")
    assert event.ts_s == 77.5
    assert event.data == {"after_init_gb": 1.5, "worst": "nan", "who": "a\ufffd?"}


def _ledger(world: World) -> list[MemoryObservation]:
    with world.store.read() as conn:
        return [replace(seen, created_s=None) for seen in queries.memory_of_run(conn, world.run_id)]


def test_memory_reports_of_ranks_reach_the_ledger(world: World) -> None:
    with world.store.write() as conn:
        queries.update_attempt(conn, 1, memory_key="gpt2 #1")
    device = {"device": "NVIDIA|H100", "torch": "2.11.0"}
    world.write({"event": "memory", "after_init_gb": 2, "per_sample_gb": 1.25, "usable_gb": 84.0, **device})
    world.ingest()
    expected = MemoryObservation("gpt2 #1|NVIDIA/H100|2.11.0", 1, 4, oom=False, after_init_gb=2, per_sample_gb=1.25)
    assert _ledger(world) == [replace(expected, usable_gb=84.0)]
    world.write({"event": "memory", "peak_reserved_gb": 9.5, "peak_allocated_gb": 9.0, "micro_batch": 4, **device})
    world.ingest()
    world.ingest()
    assert _ledger(world) == [replace(expected, usable_gb=84.0, peak_reserved_gb=9.5, peak_allocated_gb=9.0)]


def test_the_memory_of_one_size_never_stands_beside_another(world: World) -> None:
    """A run that searches for its micro-batch tells of each size that it tries, before it trains with one of them."""
    with world.store.write() as conn:
        queries.update_attempt(conn, 1, memory_key="k")
    tried = [{"micro_batch": size, "peak_reserved_gb": 10.0 + size, "usable_gb": 80.0} for size in (8, 16, 32, 64)]
    world.write(*({"event": "micro_batch_trial", **one} for one in tried))
    world.write({"event": "memory", "micro_batch": 64, "after_init_gb": 8.0, "usable_gb": 80.0})
    world.write({"event": "memory", "micro_batch": 64, "peak_reserved_gb": 74.0})
    world.write({"event": "memory", "micro_batch": 8, "peak_reserved_gb": 75.0})
    world.ingest()
    known = MemoryObservation("k", 1, 64, oom=False, after_init_gb=8.0, usable_gb=80.0, peak_reserved_gb=74.0)
    assert [replace(seen, key="k") for seen in _ledger(world)] == [known]


def _end(world: World) -> None:
    with world.store.write() as conn:
        queries.update_attempt(conn, 1, state=AttemptState.COMPLETED)


def _drain(world: World) -> None:
    drain(world.store, MetricSpool(1, world.spool()), None, lambda: None)


def test_a_truncated_spool_is_reported_once_and_keeps_its_rows(world: World) -> None:
    world.write(*_lines(1, 5))
    world.ingest()
    world.spool().write_bytes(b"")
    for _ in range(3):
        _drain(world)
    assert len(world.events("spool.truncated")) == 1
    assert len(world.metrics()) == 5


@pytest.mark.parametrize("beyond", [10**9, -30], ids=["beyond the file", "within a line"])
def test_a_wrong_offset_costs_no_line_of_an_attempt_that_has_ended(world: World, beyond: int) -> None:
    """As of a role that may set it, or of a file that shrank and grew again; what was taken before comes once."""
    hello, bad = {"event": "hello", "ts": 1.5, "n": 1}, "no JSON"
    world.write(*_lines(1, 6, mine=2.0), hello, {"event": "tick"}, bad)
    world.ingest()
    world.write(*_lines(7, 60, mine=2.0), {"event": "bye"})
    size = world.spool().stat().st_size
    with world.store.write() as conn:
        conn.execute(schema.attempt.update().values(spool_offset=size + beyond))
    world.write({"step": 61, "loss": 1.0}) if beyond < 0 else None
    _end(world)
    _drain(world)
    last = 61 if beyond < 0 else 60
    assert [row.step for row in world.metrics()] == list(range(1, last + 1))
    once = ("script.hello", "script.tick", "script.bye", "spool.corrupt", "spool.truncated")
    assert [len(world.events(kind)) for kind in once] == [1] * 5
    assert world.ingest().new_offset == world.spool().stat().st_size


def test_a_file_that_is_shown_late_is_not_read_again_while_its_attempt_goes_on(world: World) -> None:
    """An agent on another machine has pushed more of it; for longer than a file system may take, it is."""
    world.write(*_lines(1, 5))
    with world.store.write() as conn:
        conn.execute(schema.attempt.update().values(spool_offset=10**9))
    agents_push = not world.store.is_sqlite
    assert world.ingest().new_offset == (10**9 if agents_push else 0)
    with world.store.write() as conn:
        conn.execute(schema.events.update().values(ts_s=schema.events.c.ts_s - STALE_S - 1))
    _drain(world)
    assert len(world.metrics()) == 5


def test_two_drainers_at_once_take_every_line_once(world: World) -> None:
    count = 1200
    world.write(*_lines(1, count), *({"event": "tick", "n": number} for number in range(20)))

    def drain(_: int) -> int:
        taken = 0
        while True:
            result = ingest(world.store, MetricSpool(1, world.spool()), max_bytes=5000)
            taken += result.lines
            if result.caught_up:
                return taken

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(drain, range(2))) == count + 20
    assert [row.step for row in world.metrics()] == list(range(1, count + 1))
    assert [event.data["n"] for event in world.events("script.tick")] == list(range(20))


@pytest.mark.parametrize(("steps", "target"), [(37, 37), ("many", None), (0, None)])
def test_a_target_that_the_script_counted_is_the_run_s(world: World, steps: object, target: int | None) -> None:
    world.write({"event": "target", "ts": 1.0, "steps": steps})
    world.write({"event": "target", "ts": 2.0, "steps": 99} if target else {"event": "other", "ts": 2.0})
    world.ingest()
    with world.store.read() as conn:
        [run] = queries.runs(conn, world.campaign_id)
    assert run.target_step == target


def _stored(world: World, run_id: int) -> list[object]:
    """All that the store has of a run's attempt, but for the times of its own events."""
    with world.store.read() as conn:
        [attempt] = queries.attempts(conn, world.campaign_id, run_id)
        rows = [
            replace(row, attempt_id=0, extra=dict(sorted(row.extra.items())))  # they come in no order
            for row in metrics.metrics(conn, run_id)
        ]
        latest = metrics.latest(conn, world.campaign_id).get(run_id)
        events = [
            (event.kind, event.message, event.data)
            for event in queries.events(conn, world.campaign_id, run_id)
            if event.attempt_id == attempt.id
        ]
    newest = latest and replace(latest, attempt_id=0, run_id=0)
    return [repr(rows), repr(newest), attempt.start_step, attempt.last_step, attempt.spool_offset, events]


def _taken(
    world: World, name: str, lines: Sequence[Mapping[str, object]], cuts: list[int], target: int | None
) -> list[object]:
    with world.store.write() as conn:
        bulk.insert_runs(conn, world.campaign_id, [NewRun(name, {}, {"a": 1}, "h1", 1, target_step=target)])
        run_id = next(run.id for run in queries.runs(conn, world.campaign_id) if run.name == name)
        attempt_id = bulk.insert_attempts(conn, [new_attempt(run_id)])[0].id
    path = world.dir / f"{name}.jsonl"
    for start, end in pairwise([0, *cuts, len(lines)]):
        with path.open("ab") as file:
            file.writelines(map(as_bytes, lines[start:end]))
        drain(world.store, MetricSpool(attempt_id, path), None, lambda: None)
    return _stored(world, run_id)


def _epochs(log_every: int = 1, *, length: int = 10) -> list[dict[str, float]]:
    return [
        {"step": step, "ts": 1e9 + 100 * epoch + step, "loss": 3.0 - epoch - step / 100, "epoch": epoch}
        | ({"acc": float(epoch)} if epoch else {})
        for epoch in range(3)
        for step in range(1 + epoch % log_every, length + 1, log_every)
    ]


def test_stored_steps_depend_on_the_file_alone(world: World) -> None:
    """Whenever the passes run: no row mixes epochs, and lines that do not count are reported."""
    chance = random.Random(7)
    for number in range(15):
        length = chance.randrange(1, 25)
        ahead = chance.choice([0, 1, 3, 30])
        lines = [
            {"step": max(0, step + chance.randrange(-ahead, ahead + 1)), "ts": 1e9 + step}
            | {name: chance.random() for name in chance.sample(["loss", "eval_loss", "lr", "own"], chance.randrange(4))}
            for step in range(length)
        ]
        if chance.random() < 0.5:
            lines = _epochs(chance.choice([1, 3]), length=length)
        target = chance.choice([None, 10, 20])
        whole = _taken(world, f"whole-{number}", lines, [], target)
        cuts = sorted(chance.sample(range(len(lines) + 1), min(4, len(lines))))
        assert _taken(world, f"cut-{number}", lines, cuts, target) == whole
        if number < 5:  # many ingestions
            assert _taken(world, f"single-{number}", lines, list(range(1, len(lines))), target) == whole


@pytest.mark.parametrize("cuts", [[], [10, 20], [5, 15, 25]])
@pytest.mark.parametrize("log_every", [1, 3])
def test_steps_that_are_counted_anew_are_reported_and_mixed_into_none(
    world: World, cuts: list[int], log_every: int
) -> None:
    lines = _epochs(log_every)
    _taken(world, "epochs", lines, [cut for cut in cuts if cut < len(lines)], 10)
    with world.store.read() as conn:
        run_id = queries.runs(conn, world.campaign_id)[-1].id
        rows = list(metrics.metrics(conn, run_id))
        told = [event for event in queries.events(conn, world.campaign_id) if event.kind == "spool.restarted"]
    assert [row.step for row in rows] == list(range(1, 11, log_every))
    assert {row.extra["epoch"] for row in rows} == {0.0}
    assert {tuple(row.extra) for row in rows} == {("epoch",)}
    assert [(event.run_id, event.data["newest"]) for event in told] == [(run_id, 10)]


def test_steps_go_on_after_a_return_to_a_checkpoint_and_earlier_steps_may_be_added_to(world: World) -> None:
    back = [*_lines(1, 20), *_lines(15, 25, late=1.0)]
    _taken(world, "back", back, [22], 30)
    with world.store.read() as conn:
        rows = list(metrics.metrics(conn, queries.runs(conn, world.campaign_id)[-1].id))
    assert [(row.step, "late" in row.extra) for row in rows] == [(step, step > 20) for step in range(1, 26)]
    evaluated: list[dict[str, object]] = [
        *_lines(1, 20),
        {"step": 10, "eval_loss": 2.0},
        {"step": 20, "eval_loss": 1.0},
    ]
    _taken(world, "evaluated", evaluated, [], 30)
    with world.store.read() as conn:
        rows = list(metrics.metrics(conn, queries.runs(conn, world.campaign_id)[-1].id))
        told = [event.data for event in queries.events(conn, world.campaign_id) if event.kind == "spool.restarted"]
    assert [row.step for row in rows if row.eval_loss is not None] == [10, 20]
    assert told == [{"step": 15, "newest": 20}]  # of the first alone


@pytest.mark.parametrize("first", [True, False])
def test_steps_far_beyond_the_target_are_not_taken(world: World, first: bool) -> None:
    far: list[dict[str, object]] = [{"step": step, "loss": 1.0} for step in (10**6, 10**9)]
    lines = [*far, *_lines(1, 40)] if first else [*_lines(1, 40), *far]
    _taken(world, "far", lines, [1], 40)
    with world.store.read() as conn:
        run_id = queries.runs(conn, world.campaign_id)[-1].id
        [attempt] = queries.attempts(conn, world.campaign_id, run_id)
        told = [event.data for event in queries.events(conn, world.campaign_id) if event.kind == "spool.beyond"]
        assert [row.step for row in metrics.metrics(conn, run_id)] == list(range(1, 41))
    assert (attempt.last_step, told) == (40, [{"step": 10**6, "target": 40}])
