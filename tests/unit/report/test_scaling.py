"""What more ranks bring: strong and weak scaling apart, each on one kind of machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.scaling import scaling_of
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted

Row = tuple[str, str, Any]
STRONG, WEAK = "batch", "batch of a rank"


def rows(runs: Sequence[MeasuredRun], keeps: str | None = None) -> list[Row]:
    """Of each condition its name, beside which it stands, and its efficiency in percent."""
    found = [one for one in scaling_of(conditions_of(runs)) if keeps in (None, one.keeps)]
    return [(one.condition.name, one.reference.name, pytest.approx(100 * one.efficiency, abs=2)) for one in found]


def on(name: str, ranks: int, step_s: float, batch: int = 8, micro_batch: int = 4, **slurm: Any) -> Planted:
    train = {"global_batch": batch, "micro_batch": micro_batch}
    return Planted(name, (step_s,) * 3, ranks=ranks, train=train, config={"slurm": slurm})


def test_other_batches_are_apart(planted: Plant) -> None:
    runs = planted(on("r1-b8", 1, 0.1), on("r1-b32", 1, 0.2, 32), on("r2-b8", 2, 0.07), on("r2-b32", 2, 0.12, 32))
    assert rows(runs) == [
        ("r1-b8", "r1-b8", 100),
        ("r2-b8", "r1-b8", 71),
        ("r1-b32", "r1-b32", 100),
        ("r2-b32", "r1-b32", 83),
    ]


def test_a_batch_that_grows_with_the_ranks_is_weak_scaling(planted: Plant) -> None:
    runs = planted(on("r1-b8", 1, 0.1), on("r1-b16", 1, 0.2, 16), on("r2-b16", 2, 0.125, 16))
    assert rows(runs, STRONG) == [("r1-b16", "r1-b16", 100), ("r2-b16", "r1-b16", 80)]
    assert rows(runs, WEAK) == [("r1-b8", "r1-b8", 100), ("r2-b16", "r1-b8", 80)]


def test_other_machines_are_apart(planted: Plant) -> None:
    runs = planted(
        on("r1-a", 1, 0.3, partition="a100"),
        on("r1-h", 1, 0.1, partition="h100"),
        on("r2-a", 2, 0.15, partition="a100"),
        on("r2-h", 2, 0.05, partition="h100"),
    )
    assert rows(runs) == [("r1-a", "r1-a", 100), ("r2-a", "r1-a", 100), ("r1-h", "r1-h", 100), ("r2-h", "r1-h", 100)]


@pytest.mark.parametrize("field", ["gpus_per_node", "gres"])
def test_gpus_are_told_by_their_type(planted: Plant, field: str) -> None:
    kinds = ("gpu:h100:2", "gpu:h100:4", "gpu:a100:4")
    asked: list[dict[str, Any]] = [{field: kind if field == "gres" else kind.removeprefix("gpu:")} for kind in kinds]
    found = planted(*(on(kind, int(kind[-1]), 0.1, **slurm) for kind, slurm in zip(kinds, asked, strict=True)))
    assert rows(found) == [("gpu:h100:2", "gpu:h100:2", 100), ("gpu:h100:4", "gpu:h100:2", 50)]


def test_cpus_are_no_fewer_gpus(planted: Plant) -> None:
    assert rows(planted(on("cpu", 1, 1.0, gpus_per_node="0"), on("gpu", 2, 0.1, gpus_per_node="2"))) == []


def test_a_micro_batch_may_shrink_with_more_ranks(planted: Plant) -> None:
    runs = planted(on("one", 1, 0.2, micro_batch=8), on("two", 2, 0.1, micro_batch=4))
    assert rows(runs) == [("one", "one", 100), ("two", "one", 100)]


def test_micro_batches_that_vary_by_themselves_are_apart(planted: Plant) -> None:
    asked = [on(f"r{ranks}-m{size}", ranks, size / 10 / ranks, 8, size) for ranks in (1, 2) for size in (2, 4)]
    assert rows(planted(*asked)) == [
        ("r1-m2", "r1-m2", 100),
        ("r2-m2", "r1-m2", 100),
        ("r1-m4", "r1-m4", 100),
        ("r2-m4", "r1-m4", 100),
    ]


def test_as_many_ranks_on_more_nodes_are_apart(planted: Plant) -> None:
    runs = planted(on("1x1", 1, 0.4, nodes=1), on("1x4", 4, 0.1, nodes=1), on("2x2", 4, 0.2, nodes=2))
    assert rows(runs) == [("1x1", "1x1", 100), ("1x4", "1x1", 100)]


def test_of_a_script_nobody_knows_the_batch(planted: Plant) -> None:
    script = {"command": ["train.py"]}
    runs = planted(
        *(Planted(f"{n}", (0.1,) * 3, ranks=n, train={"global_batch": 8}, config=script) for n in (1, 2)),
    )
    silent = [_without_batch(run) for run in runs]
    assert [one.keeps for one in scaling_of(conditions_of(silent))] == ["", ""]
    assert rows(silent) == [("1", "1", 100), ("2", "1", 50)]


def _without_batch(run: MeasuredRun) -> MeasuredRun:
    train = {name: value for name, value in run.config["train"].items() if name != "global_batch"}
    return replace(run, config={**run.config, "train": train})
