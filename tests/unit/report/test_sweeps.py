"""Figures along a number that the matrix varies, with known answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.report.compare.conditions import Condition, conditions_of
from dscampaign.orchestrator.report.compare.sweeps import grids_of, sweeps_of
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.report.page.plots import draw
from dscampaign.orchestrator.report.page.sweeps import LOSS, MEMORY, SPEED, STEP, failed, measures_of, sweeps
from dscampaign.tests.support.planted import Plant, Planted, PlantStore, results_at


def shape(stage: int, length: int, batch: int, **more: Any) -> Planted:
    """A condition whose step takes 10 ms for each sample of 128 tokens, and twice that with ZeRO 3."""
    step_s = 0.01 * batch * length / 128 * (2 if stage == 3 else 1)
    params = {"zero_stage": stage, "seq_len": length, "micro_batch": batch}
    return Planted(
        f"z{stage}-{length}-{batch}",
        (step_s, step_s * 1.01, step_s * 0.99),
        params=params,
        train={**params, "global_batch": 2 * batch},
        **more,
    )


SHAPES = [shape(stage, length, batch) for stage in (1, 3) for length in (128, 512) for batch in (2, 4, 8)]


def conditions(runs: list[MeasuredRun]) -> list[Condition]:
    return conditions_of(runs)


def lines(runs: list[MeasuredRun], axis: str) -> dict[str, list[float]]:
    """The lines along an axis, with the values of x that they have."""
    [sweep] = [one for one in sweeps_of(conditions(runs)) if one.axis == axis]
    return {line.name: [point.x for point in line.points] for line in sweep.lines}


def test_an_axis_joins_conditions_across_workloads(planted: Plant) -> None:
    runs = planted(*SHAPES)
    assert [sweep.axis for sweep in sweeps_of(conditions(runs))] == ["seq_len", "global_batch"]
    assert lines(runs, "seq_len") == {
        f"zero_stage {stage}, micro_batch {batch}": [128, 512] for stage in (1, 3) for batch in (2, 4, 8)
    }
    assert lines(runs, "global_batch") == {
        f"zero_stage {stage}, seq_len {length}": [4, 8, 16] for stage in (1, 3) for length in (128, 512)
    }


def test_the_figures_along_an_axis_are_those_of_the_conditions(planted: Plant) -> None:
    [along, _] = sweeps_of(conditions(planted(*SHAPES)))
    line = next(line for line in along.lines if line.name == "zero_stage 3, micro_batch 4")
    short, long = (STEP.of(point.condition) for point in line.points)
    assert short is not None
    assert long is not None
    said = [short.value, short.low, short.high, long.value]
    assert said == pytest.approx([80.0, 79.2, 80.8, 320.0], rel=2e-3)  # steps scatter
    memory = MEMORY.of(line.points[0].condition)
    assert memory is not None
    assert (memory.value, memory.low) == (10.0, None)
    assert STEP.text(line.points[0].condition).startswith(("79.9", "80"))


def test_losses_are_not_drawn_along_an_axis_that_changes_the_work(planted: Plant) -> None:
    lengths, batches = sweeps_of(conditions(planted(*SHAPES)))
    assert LOSS not in measures_of(lengths)
    assert LOSS not in measures_of(batches)


def test_losses_are_drawn_where_the_work_is_the_same(planted: Plant) -> None:
    rates = [Planted(f"lr-{lr}", params={"lr": lr}, train={"lr": lr}) for lr in (1e-4, 3e-4, 1e-3)]
    [sweep] = sweeps_of(conditions(planted(*rates)))
    assert (sweep.axis, [line.name for line in sweep.lines], sweep.xs) == ("lr", [""], [1e-4, 3e-4, 1e-3])
    assert {SPEED.label, STEP.label, LOSS.label} <= {one.label for one in measures_of(sweep)}


def test_a_point_that_failed_stays_at_its_place(planted: Plant) -> None:
    broken = shape(1, 512, 8, state=RunState.FAILED, reason="CUDA out of memory")
    runs = planted(*[one for one in SHAPES if one.name != broken.name], broken)
    assert lines(runs, "global_batch")["zero_stage 1, seq_len 512"] == [4, 8, 16]
    [condition] = [one for one in conditions(runs) if one.name == broken.name]
    assert failed(condition) == "failed: CUDA out of memory"
    waiting = [one for one in conditions(runs) if failed(one)]
    assert waiting == [condition]


def test_two_axes_make_a_grid_with_a_hole(planted: Plant) -> None:
    runs = planted(*[one for one in SHAPES if one.name != "z1-512-8"])
    first, second = grids_of(conditions(runs))
    assert (first.across, first.down, first.name) == ("seq_len", "global_batch", "zero_stage 1")
    assert sorted(first.cells) == [(128, 4), (128, 8), (128, 16), (512, 4), (512, 8)]
    assert (second.name, len(second.cells)) == ("zero_stage 3", 6)


@pytest.mark.parametrize(
    "points",
    [
        [Planted("a", params={"lr": 1e-3}, train={"lr": 1e-3})],  # one value
        [Planted(name, params={"mode": name}, train={"attention": name}) for name in ("sdpa", "eager")],  # words
        [Planted(str(on), params={"compile": on}, train={"compile": on}) for on in (False, True)],  # a switch
        [Planted(f"s{n}", params={"seed": n}, train={"seed": n}) for n in (1, 2, 3)],
        [Planted(f"lr-{n}", params={"lr": n / 1e3}, train={"lr": n / 1e3}) for n in (1, 2)],  # two values: an effect
        [  # two numbers that always change together
            Planted(
                f"p{n}", params={"lr": n / 1e3, "weight_decay": n / 10}, train={"lr": n / 1e3, "weight_decay": n / 10}
            )
            for n in (1, 2, 3)
        ],
    ],
)
def test_what_is_no_sweep(planted: Plant, points: list[Planted]) -> None:
    assert sweeps_of(conditions(planted(*points))) == []


def test_a_script_s_own_words_keep_lines_apart(planted: Plant) -> None:
    points = [
        Planted(f"{mode}-{depth}", params={"mode": mode, "depth": depth}, printed=True)
        for mode in ("a", "b")
        for depth in (2, 4, 8)
    ]
    assert lines(planted(*points), "depth") == {"mode a": [2, 4, 8], "mode b": [2, 4, 8]}


def test_the_page_has_a_table_for_each_axis(planted_url: PlantStore) -> None:
    [section] = sweeps(results_at(planted_url(*SHAPES)))
    assert [table.header[:2] for table in section.tables] == [("of", "seq_len"), ("of", "global_batch")]
    assert [picture.name for picture in section.figures] == ["sweep_1", "sweep_2", "grid_1", "grid_2"]
    assert section.tables[0].rows[0][:3] == ("zero_stage 1, micro_batch 2", "128", "25.6k [25.4k, 25.9k]")


def test_longer_samples_in_smaller_batches_are_a_sweep_of_their_length(planted: Plant) -> None:
    points = [
        Planted(f"{length}", params={"label": str(length)}, train={"seq_len": length, "global_batch": 4096 // length})
        for length in (128, 512)
    ]
    assert lines(planted(*points), "seq_len") == {"": [128, 512]}


def test_a_condition_without_a_number_does_not_hide_the_others(planted: Plant) -> None:
    sizes: list[int | str] = [2, 4, 8, "auto"]
    points = [Planted(f"m{size}", params={"micro_batch": size}, train={"micro_batch": size}) for size in sizes]
    assert lines(planted(*points), "micro_batch") == {"": [2, 4, 8]}


def test_a_model_that_failed_has_the_size_that_another_run_of_it_told(planted: Plant) -> None:
    fields = [{"model": model, "zero_stage": stage} for model in ("small", "large") for stage in (1, 3)]
    runs = planted(*(Planted(f"{each['model']}-{each['zero_stage']}", params=each, train=each) for each in fields))
    told = {"small-1": 10, "small-3": 10, "large-3": 100}
    known = [replace(run, parameters=told.get(run.name.partition("-r")[0])) for run in runs]
    assert lines(known, "parameters") == {"zero_stage 1": [10, 100], "zero_stage 3": [10, 100]}
    unknown = [replace(run, parameters=None) if run.train["model"] == "large" else run for run in known]
    assert sweeps_of(conditions(unknown)) == []


def test_what_varies_by_itself_keeps_lines_apart(planted: Plant) -> None:
    points = [
        Planted(f"{batch}-{micro}", params=each, train=each)
        for batch in (8, 16, 32)
        for micro in (1, 2, 4)
        for each in [{"global_batch": batch, "micro_batch": micro}]
    ]
    runs = planted(*points)
    assert lines(runs, "global_batch") == {f"micro_batch {micro}": [8, 16, 32] for micro in (1, 2, 4)}
    assert lines(runs, "micro_batch") == {f"global_batch {batch}": [1, 2, 4] for batch in (8, 16, 32)}
    [grid] = grids_of(conditions(runs))
    assert (grid.across, grid.down, len(grid.cells)) == ("global_batch", "micro_batch", 9)


def test_points_on_other_gpus_are_on_lines_of_their_own(planted: Plant) -> None:
    a100 = "NVIDIA A100-SXM4-80GB"
    points = [
        shape(1, length, 2, device=a100 if length > 256 else "NVIDIA H100") for length in (64, 128, 256, 512, 1024)
    ]
    runs = planted(*points)
    assert lines(runs, "seq_len") == {"on NVIDIA H100": [64, 128, 256], f"on {a100}": [512, 1024]}
    silent = [replace(run, start={}) if run.name.startswith("z1-128") else run for run in runs]
    assert lines(silent, "seq_len")["on NVIDIA H100"] == [64, 256]
    silent = [replace(run, start={}) if a100 in run.device_names else run for run in runs]
    assert lines(silent, "seq_len") == {"": [64, 128, 256, 512, 1024]}


def test_every_axis_has_a_table_and_the_first_ones_a_figure(planted_url: PlantStore) -> None:
    knobs = [f"deepspeed.knob{number}" for number in range(8)]
    points = [
        Planted(f"{knob[-1]}-{value}", params={**dict.fromkeys(knobs, 1), knob: value})
        for knob in knobs
        for value in (1, 2, 3)
        if value > 1 or knob == knobs[0]
    ]
    [section] = sweeps(results_at(planted_url(*points)))
    assert len(section.tables) == 8
    assert len([picture for picture in section.figures if picture.name.startswith("sweep_")]) == 6


@pytest.mark.parametrize("breaks", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_points_that_lie_upon_each_other_are_drawn_as_one(planted_url: PlantStore, breaks: bool) -> None:
    rates = [round(1e-4 * 1.05**place, 9) for place in range(70)]
    points = [Planted(f"lr-{rate}", (0.01, 0.011, 0.012), params={"lr": rate}, train={"lr": rate}) for rate in rates]
    if breaks:
        points[-1] = replace(points[-1], state=RunState.FAILED, reason="CUDA out of memory")
    figure = draw(results_at(planted_url(*points)), ())["sweep_1"]
    figure.draw_without_rendering()
    speed = figure.axes[0]
    assert len(speed.lines) == 2 + breaks  # the line, its points, and what failed
    assert [len(np.asarray(each.get_xdata())) for each in speed.lines] == [70 - breaks] * 2 + [1] * breaks
    assert len(speed.collections) == 1
    assert speed.get_position().width > 0.3
