"""Energy and what a token costs, with answers that are known beforehand."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from typing import Any

import pytest

from dscampaign.db import gpu_queries, queries
from dscampaign.db.gpu_records import AttemptGpus, GpuUse, TokenEnergy, j_per_token, total
from dscampaign.db.ingest.attempt import GpuSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.db.records import WARM_UP_STEPS
from dscampaign.tests.support.worlds import World, as_bytes

TOKENS = 1000.0
"""Of one step, which takes a second."""


def sampled(world: World, lines: Sequence[dict[str, Any]], node: int = 0, gpus: int = 1) -> None:
    """Takes these samples into the store, as of so many GPUs."""
    spool = world.dir / f"gpus-{node}.jsonl"
    devices = {"devices": [{"gpu": gpu, "name": "NVIDIA H200"} for gpu in range(gpus)], "node": f"n{node}"}
    spool.write_bytes(b"".join(map(as_bytes, [devices, *lines])))
    ingest(world.store, GpuSpool(1, spool, node))


def counter(seconds: Sequence[float], joules: Callable[[float], float], **more: Any) -> list[dict[str, Any]]:
    return [{"ts": ts, "span_s": 1.0, "gpu": [0], "energy_j": [joules(ts)], **more} for ts in seconds]


def stepped(world: World, steps: Iterable[int] = range(1, 101), start_s: float = 1000.0, pause_s: float = 0.0) -> None:
    """A step a second; the first ends a second after the start, and a pause follows step 50."""
    line = {"tokens_per_s": TOKENS, "step_time": 1.0}
    world.write(*({"step": step, "ts": start_s + step + pause_s * (step > 50), **line} for step in steps))
    world.ingest()


def use(world: World) -> AttemptGpus:
    with world.store.read() as conn:
        found = gpu_queries.attempt_gpus(conn, 1)
    assert found is not None
    return found


def per_token(world: World) -> TokenEnergy:
    found = use(world).per_token
    assert found is not None
    return found


def test_energy_is_the_growth_of_the_counter(world: World) -> None:
    sampled(world, counter([1000, 1001, 1005], lambda ts: 5000 + 300 * (ts - 1000)))
    [gpu] = use(world).gpus
    assert gpu.energy_j == pytest.approx(1500)
    assert (gpu.samples, gpu.from_s, gpu.to_s, gpu.node, gpu.name) == (3, 1000, 1005, "n0", "NVIDIA H200")


def test_a_counter_that_began_anew_counts_from_there(world: World) -> None:
    shown: dict[float, float] = {1: 900, 2: 1000, 3: 50, 4: 150}
    sampled(world, counter(list(shown), shown.__getitem__))
    assert use(world).energy_j == pytest.approx(100 + 50 + 100)


def test_means_are_over_time_and_peaks_over_samples(world: World) -> None:
    base = {"gpu": [0]}
    sampled(
        world,
        [
            {**base, "ts": 1, "span_s": 1, "power_w": [100], "power_avg_w": [110], "util_pct": [0], "throttle": [0x40]},
            {**base, "ts": 4, "span_s": 3, "power_w": [500], "power_avg_w": [450], "util_pct": [100], "throttle": [4]},
            {**base, "ts": 8, "span_s": 4, "temperature_c": [71], "mem_used_gb": [9.5], "ecc_errors": [3]},
            {**base, "ts": 9, "span_s": 4, "temperature_c": [65], "mem_used_gb": [2.5], "ecc_errors": [5]},
        ],
    )
    [gpu] = use(world).gpus
    assert (gpu.power_w, gpu.power_peak_w) == pytest.approx((400, 500))
    assert (gpu.power_avg_w, gpu.power_avg_peak_w) == pytest.approx((365, 450))
    assert gpu.util_pct == pytest.approx(75)
    assert (gpu.slowed, gpu.power_capped) == pytest.approx((0.25, 0.75))
    assert (gpu.temperature_max_c, gpu.mem_used_max_gb, gpu.ecc_errors) == (71, 9.5, 2)
    assert gpu.energy_j is None


def test_energy_per_token_excludes_the_warm_up(world: World) -> None:
    """900 W while it compiles, 300 W from the end of step 20 on."""
    stepped(world)
    ends_s = 1000 + WARM_UP_STEPS
    sampled(world, counter(range(995, 1106), lambda ts: 900 * min(ts, ends_s) + 300 * max(0, ts - ends_s)))
    found = per_token(world)
    assert astuple(found) == pytest.approx((20, 100, 80.0, 300 * 80, 80 * TOKENS))
    assert found.j_per_token == pytest.approx(0.3)


def test_the_ends_of_the_window_are_interpolated(world: World) -> None:
    """Samples 3.7 s apart, at no step's end."""
    stepped(world, start_s=1000.25)
    seconds = [990 + 3.7 * number for number in range(40)]
    sampled(world, counter(seconds, lambda ts: 250 * ts))
    found = per_token(world)
    assert (found.first_step, found.last_step, found.energy_j) == pytest.approx((20, 100, 250 * 80))


def test_a_line_stands_for_the_steps_since_the_one_before(world: World) -> None:
    with world.store.write() as conn:
        queries.update_attempt(conn, 1, start_step=0)
    stepped(world, range(10, 101, 10))
    sampled(world, counter(range(995, 1106), lambda ts: 300 * ts))
    assert astuple(per_token(world)) == pytest.approx((20, 100, 80.0, 300 * 80, 80 * TOKENS))


def test_time_without_steps_costs_energy_and_makes_no_tokens(world: World) -> None:
    """A checkpoint of 30 s after step 50."""
    stepped(world, pause_s=30.0)
    sampled(world, counter(range(995, 1136), lambda ts: 300 * ts))
    found = per_token(world)
    assert (found.seconds, found.energy_j) == pytest.approx((110, 300 * 110))
    assert found.tokens == pytest.approx(80 * TOKENS)


def test_an_attempt_that_resumed_warms_up_again(world: World) -> None:
    stepped(world, range(501, 601))
    sampled(world, counter(range(1495, 1606), lambda ts: 300 * ts))
    found = per_token(world)
    assert (found.first_step, found.last_step) == (520, 600)


def test_only_steps_that_all_gpus_cover_count(world: World) -> None:
    """The second GPU is seen from second 1040 on, the first one until 1090."""
    stepped(world)
    both = [(ts, 300.0 * ts if ts <= 1090 else None, 100.0 * ts if ts >= 1040 else None) for ts in range(995, 1106)]
    lines = [{"ts": ts, "span_s": 1.0, "gpu": [0, 1], "energy_j": [one, two]} for ts, one, two in both]
    sampled(world, lines, gpus=2)
    assert astuple(per_token(world)) == pytest.approx((40, 90, 50.0, 400 * 50, 50 * TOKENS))
    assert use(world).energy_j == pytest.approx(300 * 95 + 100 * 65)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_node_without_telemetry_makes_the_cost_unknown(world: World, nodes: int) -> None:
    with world.store.write() as conn:
        queries.update_attempt(conn, 1, nodes=2)
    stepped(world)
    for node in range(nodes):
        sampled(world, counter(range(995, 1106), lambda ts: 300 * ts), node=node)
    found = use(world).per_token
    assert (found.energy_j if found else None) == (pytest.approx(2 * 300 * 80) if nodes == 2 else None)


def test_several_attempts_are_weighed_by_their_tokens() -> None:
    parts = [TokenEnergy(1, 2, 1.0, 100.0, 1000.0), TokenEnergy(2, 3, 1.0, 900.0, 3000.0), None]
    attempts = [AttemptGpus(number, (), part) for number, part in enumerate(parts)]
    assert j_per_token(attempts) == pytest.approx(0.25)
    assert j_per_token(attempts[2:]) is None
    assert (total([1.0, 2.0]), total([1.0, None]), total([])) == (3.0, None, None)


def test_a_run_counts_the_attempts_of_its_present_configuration(world: World) -> None:
    sampled(world, counter([1, 2], lambda ts: 5 * ts))
    for generation, config_hash in ((2, "other"), (3, "h1"), (4, "h1")):
        attempt_id = world.attempt(generation, config_hash)
        spool = world.dir / f"of-{generation}.jsonl"
        spool.write_bytes(b"".join(map(as_bytes, counter([1, 2], lambda ts: 7 * ts))))
        if generation < 4:
            ingest(world.store, GpuSpool(attempt_id, spool, 0))
    with world.store.read() as conn:
        assert [used.energy_j for used in gpu_queries.run_gpus(conn, world.run_id)] == pytest.approx([5, 7])


def timed(world: World) -> tuple[GpuUse, ...]:
    with world.store.read() as conn:
        [found] = gpu_queries.run_gpus(conn, world.run_id)
    return found.timed


def used(seconds: Sequence[float], busy: Callable[[float], float]) -> list[dict[str, Any]]:
    return [{"ts": ts, "span_s": 1.0, "gpu": [0], "util_pct": [busy(ts)], "power_w": [busy(ts)]} for ts in seconds]


def test_timed_use_excludes_start_warm_up_and_end(world: World) -> None:
    """A step a second from 1000 s on; it compiles for 20 steps, and saves after the last one, idle."""
    stepped(world, range(1, 41))
    sampled(world, used(range(900, 1100), lambda ts: 55 if 1020 <= ts <= 1040 else 2))
    [gpu] = timed(world)
    assert (gpu.samples, gpu.from_s, gpu.to_s, gpu.sampled_s) == (21, 1020, 1040, 21)
    assert (gpu.util_pct, gpu.power_peak_w) == (55, 55)
    with world.store.read() as conn:
        [whole] = gpu_queries.run_gpus(conn, world.run_id)
    assert whole.util_pct == pytest.approx((21 * 55 + 179 * 2) / 200)
