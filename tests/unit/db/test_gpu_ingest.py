"""Telemetry from a node's file into the store: every sample once, nothing in silence."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import gpu_queries
from dscampaign.db.gpu_records import GPU_FIGURES, GpuDevice, GpuSample
from dscampaign.db.ingest import attempt
from dscampaign.db.ingest.attempt import GpuSpool
from dscampaign.db.ingest.spool import IngestResult, ingest
from dscampaign.tests.support.worlds import World, as_bytes

DEVICES = {
    "devices": [
        {"gpu": 0, "name": "NVIDIA H200", "uuid": "GPU-a", "mem_total_gb": 150.8, "power_limit_w": 700.0},
        {"gpu": 1, "name": "NVIDIA H200", "sm_clock_max_mhz": 1980, "mem_clock_max_mhz": None},
    ],
    "node": "n1",
    "ts": 1.0,
}
FIGURES = {"power_w": [529.5, 540.5], "power_avg_w": [500, 510], "throttle": [0, 4], "ecc_errors": [None, 0]}


def sample(ts_s: float, **figures: Any) -> dict[str, Any]:
    return {"ts": ts_s, "span_s": 1.0, "gpu": [0, 1], **(figures or FIGURES)}


def spool(world: World, node: int = 0) -> Path:
    return world.dir / f"gpus-{node}.jsonl"


def write(world: World, *lines: str | bytes | Mapping[str, object], node: int = 0) -> None:
    with spool(world, node).open("ab") as file:
        file.write(b"".join(map(as_bytes, lines)))


def take(world: World, node: int = 0, **options: int) -> IngestResult:
    return ingest(world.store, GpuSpool(1, spool(world, node), node), **options)


def samples(world: World) -> list[GpuSample]:
    with world.store.read() as conn:
        return list(gpu_queries.gpu_samples(conn, 1))


def test_every_figure_finds_its_column(world: World) -> None:
    values = {name: [number, number + 50] for number, name in enumerate(GPU_FIGURES, 1)}
    write(world, sample(12.5, **values))
    assert take(world).lines == 1
    first, second = samples(world)
    assert (first.node_rank, first.gpu, first.ts_s, first.span_s) == (0, 0, 12.5, 1.0)
    assert [getattr(first, name) for name in GPU_FIGURES] == list(range(1, len(GPU_FIGURES) + 1))
    assert (second.gpu, second.power_w) == (1, first.power_w + 50 if first.power_w else None)


def test_the_gpus_of_an_attempt_are_known(world: World) -> None:
    write(world, DEVICES, DEVICES)
    take(world)
    with world.store.read() as conn:
        assert gpu_queries.gpu_devices(conn, 1) == [
            GpuDevice(1, 0, 0, "n1", "NVIDIA H200", "GPU-a", 150.8, 700.0),
            GpuDevice(1, 0, 1, "n1", "NVIDIA H200", sm_clock_max_mhz=1980),
        ]


@pytest.mark.parametrize("count", [3, 450])
def test_a_file_is_taken_once(world: World, count: int) -> None:
    """Few rows and many go different ways into Postgres."""
    write(world, DEVICES, *(sample(float(second)) for second in range(count)))
    result = take(world)
    size = spool(world).stat().st_size
    assert (result.lines, result.new_offset, result.rejected, result.caught_up) == (count + 1, size, 0, True)
    assert (again := take(world)).lines == 0
    assert again.caught_up
    found = samples(world)
    assert [(row.gpu, row.ts_s) for row in found] == [(gpu, float(ts)) for gpu in (0, 1) for ts in range(count)]
    assert {row.power_w for row in found} == {529.5, 540.5}
    assert {(row.gpu, row.throttle, row.ecc_errors) for row in found} == {(0, 0, None), (1, 4, 0)}


def test_each_node_has_an_offset_of_its_own(world: World) -> None:
    write(world, sample(1.0), node=0)
    write(world, sample(1.0), sample(2.0), node=1)
    assert (take(world, 0).lines, take(world, 1).lines, take(world, 0).lines) == (1, 2, 0)
    with world.store.read() as conn:
        held = gpu_queries.node_offsets(conn, [1, 7])
    assert held == {1: {node: spool(world, node).stat().st_size for node in (0, 1)}}
    assert [(row.node_rank, row.ts_s) for row in samples(world) if row.gpu] == [(0, 1.0), (1, 1.0), (1, 2.0)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("half{", "not JSON"),
        ("[1]", "not a JSON object"),
        ({"ts": 1.0, "power_w": [1.0, 2.0]}, "not a sample"),
        ({**sample(1.0), "gpu": ["a", 1]}, "not a sample"),
        ({**sample(1.0), "gpu": [True, 1]}, "not a sample"),
        ('{"gpu":[0],"ts":NaN,"span_s":1}', "not a sample"),
        ({"devices": [{"name": "x"}]}, "not a list of GPUs"),
        ({"event": ""}, "an event without a name"),
    ],
)
def test_a_corrupt_line_is_set_aside_and_the_rest_is_taken(world: World, line: Any, why: str) -> None:
    write(world, sample(1.0), line, sample(2.0))
    assert (take(world).rejected, len(samples(world))) == (1, 4)
    [event] = world.events("spool.corrupt")
    assert event.message == f"{why} at byte {len(as_bytes(sample(1.0)))} of gpus-0.jsonl"
    assert (event.run_id, event.attempt_id) == (world.run_id, 1)


def test_events_of_a_gpu_are_recorded_once(world: World) -> None:
    write(world, {"event": "slowed", "ts": 7.5, "message": "GPU 1 of n1 is slowed down", "gpu": 1, "reasons": ["hot"]})
    assert take(world).events == 1
    take(world)
    [event] = world.events("gpu.slowed")
    assert (event.ts_s, event.message, event.attempt_id) == (7.5, "GPU 1 of n1 is slowed down", 1)
    assert event.data == {"gpu": 1, "reasons": ["hot"], "node_rank": 0}


def test_a_transaction_that_breaks_off_leaves_nothing_and_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ConnectionError

    write(world, DEVICES, sample(1.0), {"event": "tick"})
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "upsert", broken)
        with pytest.raises(ConnectionError):
            take(world)
    with world.store.read() as conn:
        assert (gpu_queries.node_offsets(conn, [1]), gpu_queries.gpu_devices(conn, 1)) == ({}, [])
    assert (take(world).lines, len(samples(world)), len(world.events("gpu.tick"))) == (3, 2, 1)
