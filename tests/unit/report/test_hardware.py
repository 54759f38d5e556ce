"""What a run took of its machine."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dscampaign.db.gpu_records import AttemptGpus, GpuUse, TokenEnergy
from dscampaign.db.records import METRIC_COLUMNS, AttemptRow
from dscampaign.db.series import Series
from dscampaign.orchestrator.report.measure.hardware import Memory, gpus_of, memory_of

GPU = GpuUse(
    node_rank=0,
    gpu=0,
    node="n1",
    name="NVIDIA H200",
    samples=40,
    from_s=0.0,
    to_s=40.0,
    util_pct=2.0,
    power_w=130.0,
    power_peak_w=700.0,
    power_avg_w=130.0,
    power_avg_peak_w=600.0,
    energy_j=5200.0,
    temperature_max_c=70.0,
    mem_used_max_gb=40.0,
    slowed=0.5,
    power_capped=0.0,
    ecc_errors=0,
    sampled_s=40.0,
)
TIMED = replace(GPU, samples=12, util_pct=55.0, power_w=400.0, power_peak_w=500.0, slowed=0.0, sampled_s=24.0)


def memory(nodes: list[dict[str, Any]], speed: Mapping[str, Any] | None = None) -> Memory:
    """Of a run whose steps told of 6 GB, then of 9 GB held; 10 GB are usable."""
    figures = {name: array("d", [math.nan] * 2) for name in METRIC_COLUMNS.values()}
    figures |= {"mem_allocated_gb": array("d", [5.0, 8.0]), "mem_reserved_gb": array("d", [6.0, 9.0])}
    series = Series(array("q", [1, 2]), array("q", [1, 1]), figures, {})
    attempt = cast(AttemptRow, SimpleNamespace(evidence={"nodes": nodes}))
    return memory_of([attempt], series, [AttemptGpus(1, (GPU,), None)], {"usable_gb": 10}, speed or {})


def test_figures_are_of_the_timed_window_and_energy_of_all() -> None:
    found = gpus_of([AttemptGpus(1, (GPU,), None, (TIMED,))])
    assert (found.util_pct, found.power_w, found.power_peak_w, found.slowed) == (55.0, 400.0, 500.0, 0.0)
    assert (found.samples, found.few) == (12, False)
    assert found.energy_j == 5200.0


@pytest.mark.parametrize(
    ("attempts", "energy_j"),
    [
        (((1, 0, 60, 1), (2, 60, 100, 1)), None),
        (((1, 0, 60, 1), (2, 60, None, 1)), 5200.0),
        (((1, 0, 60, 2),), None),
        (((1, 0, 60, 1),), 5200.0),
    ],
)
def test_energy_takes_samples_of_all_that_made_steps(
    attempts: Sequence[tuple[int, int, int | None, int]], energy_j: float | None
) -> None:
    """Each attempt with its number, its first and last step and its nodes; of one node of the first there are some."""
    names = ("id", "start_step", "last_step", "nodes")
    rows = [cast(AttemptRow, SimpleNamespace(**dict(zip(names, values, strict=True)))) for values in attempts]
    window = TokenEnergy(20, 60, 40.0, 400.0, 1000.0)
    found = gpus_of([AttemptGpus(1, (GPU,), window, (TIMED,))], rows)
    assert found.energy_j == energy_j
    assert found.j_per_token == pytest.approx(0.4)


def test_few_samples_or_none_are_told() -> None:
    assert gpus_of([AttemptGpus(1, (GPU,), None, (replace(TIMED, samples=9),))]).few
    none = gpus_of([AttemptGpus(1, (GPU,), None)])
    assert (none.few, none.samples, none.util_pct) == (True, 0, None)
    other = replace(GPU, gpu=1)
    assert gpus_of([AttemptGpus(1, (GPU, other), None, (TIMED,))]).samples == 0
    assert not gpus_of([]).few


def test_memory_is_compared_after_the_warm_up_and_has_to_fit_with_it() -> None:
    found = memory([], {"mem_allocated_gb": 5.5, "mem_reserved_gb": 8.0})
    assert (found.allocated, found.reserved, found.peak_reserved) == (5.5, 8.0, 9.0)
    assert found.share == 0.9


def test_host_memory_is_only_what_is_known_to_be_the_attempt_s_own() -> None:
    assert memory([{"memory_peak_bytes": 19_524_251_648}]).host is None
    told = [{"memory_peak_bytes": bytes_, "memory_peak_of": "processes"} for bytes_ in (2 * 10**9, 3 * 10**9)]
    assert memory(told).host == 3.0
    assert memory([{"memory_peak_bytes": None, "memory_peak_of": ""}]).host is None
