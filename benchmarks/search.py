"""How many trials does a search need? Planted landscapes with a known optimum, the samplers and halving as they are.

    python benchmarks/search.py > benchmarks/results/search.txt

A search has arrived when the excess of its best whole trial over the optimum is at most 5 % of that of a typical
random trial, in the last landscape 25 %. There nine of ten random trials run out of memory; `tpe, ungraded` does not
know how much the allocation that failed asked for. Halving is counted in whole trials: the steps of all its trials
together, divided by those of one.

Halving lives on early losses that rank trials as late ones do. `early`: the whole excess shows from the first step on,
beside noise. `late`: it grows as 1 - exp(-step / 90), so that noise hides most of it at the first rungs.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dscampaign.db.records import RunRow
from dscampaign.db.states import RunState, Stage
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.reconcile.search import SearchState, SearchStep, TrialRun, decide_search
from dscampaign.orchestrator.spec.search_section import SearchConfig
from dscampaign.orchestrator.spec.trials import TrialTemplate

SEEDS: Final = 20
MOST: Final = 80
WITHIN: Final = 0.05
WHOLE: Final = 270


WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "random": {"sampler": "random"},
    "tpe": {"sampler": "tpe"},
    "tpe, ungraded": {"sampler": "tpe"},
    "gp": {"sampler": "gp"},
    "asha, early": {"sampler": "tpe", "halving": {"from": 10, "to": WHOLE, "factor": 3}},
    "asha, late": {"sampler": "tpe", "halving": {"from": 10, "to": WHOLE, "factor": 3}},
}
ALL: Final = tuple(way for way in WAYS if way != "tpe, ungraded")


@dataclass(frozen=True)
class Landscape:
    """Parameters, and the excess of a whole trial over the optimum by their values; 0 is the optimum.

    `asks` returns what an allocation without room asks for, as a share of the memory; 0 if all fits.
    """

    name: str
    parameters: Mapping[str, Any]
    excess: Callable[[Mapping[str, Any]], float]
    asks: Callable[[Mapping[str, Any]], float] = lambda _: 0.0
    within: float = WITHIN
    ways: tuple[str, ...] = ALL


def _bowl(p: Mapping[str, Any]) -> float:
    rate, decay = math.log10(p["lr"] / 3e-4), p["weight_decay"] - 0.1
    return float(rate**2 + 4 * decay**2)


def _kinds(p: Mapping[str, Any]) -> float:
    shift = {"sgd": 2.0, "adam": 0.0, "lion": -0.7}[p["kind"]]
    return float((math.log10(p["lr"] / 1e-3) - shift) ** 2 + 0.15 * abs(p["depth"] - 6) + (p["kind"] == "sgd") * 0.3)


def _ravine(p: Mapping[str, Any]) -> float:
    x, y, z = (p[name] for name in ("x", "y", "z"))
    return float(10 * (y - x**2) ** 2 + (x - 0.7) ** 2 + (z - 0.2) ** 2)


def _fits(p: Mapping[str, Any]) -> float:
    size = p["layers"] * p["width"]
    return float(0.3 * math.log10(p["lr"] / 3e-4) ** 2 + 0.3 * math.log(376 / size) + 0.02 * math.log2(p["tokens"]))


def _layer(p: Mapping[str, Any]) -> float:
    layer = p["width"] * (1 + p["tokens"] / 16) / 400
    return float(layer) if p["layers"] * layer > 1 else 0.0


LANDSCAPES: Final = (
    Landscape("bowl, 2 parameters", {"lr": {"log_uniform": [1e-5, 1e-1]}, "weight_decay": {"uniform": [0, 1]}}, _bowl),
    Landscape(
        "kinds, 3 parameters",
        {"lr": {"log_uniform": [1e-5, 1]}, "depth": {"int": [1, 12]}, "kind": {"choice": ["sgd", "adam", "lion"]}},
        _kinds,
    ),
    Landscape("ravine, 3 parameters", {name: {"uniform": [-1, 1]} for name in ("x", "y", "z")}, _ravine),
    Landscape(
        "memory, 4 parameters",
        {
            "lr": {"log_uniform": [1e-5, 0.1]},
            "layers": {"int": [1, 96]},
            "width": {"int": [1, 64]},
            "tokens": {"int": [1, 64]},
        },
        _fits,
        _layer,
        within=0.25,
        ways=("random", "tpe", "tpe, ungraded"),
    ),
)


def trials_until_near(landscape: Landscape, way: str, seed: int, near: float) -> float:
    """Return the whole trials until a search arrives; infinity for never."""
    section = {"parameters": landscape.parameters, "trials": 10 * MOST, "parallel": 1, "seed": seed, **WAYS[way]}
    search = SearchConfig.model_validate(section)
    command = ["train.py", *(f"{{{name}}}" for name in landscape.parameters)]
    template = TrialTemplate({"executor": "local", "command": command, "train": {"steps": WHOLE}}, search, 0)
    state, used = SearchState(search, ()), 0.0
    while used < MOST:
        step = SearchStep()
        decide_search(state, template, step, used_up=False, exhausted=False)
        pruned = {row.id: RunState.PRUNED for row, _ in step.pruned}
        runs = {run.row.id: replace(run, row=replace(run.row, state=pruned.get(run.row.id, run.row.state)))
                for run in state.runs}  # fmt: skip
        for row, run in step.promoted:
            used += (_steps(run) - (row.target_step or 0)) / WHOLE
            runs[row.id] = _ended(landscape, way, replace(row, target_step=_steps(run)), runs[row.id].records)
        for new in step.new:
            used += _steps(new) / WHOLE
            runs[new.ordinal or 0] = _ended(landscape, way, _row(new.ordinal or 0, new.params, _steps(new)), {})
        state = replace(state, runs=tuple(runs.values()))
        whole = [run for run in state.runs if run.row.target_step == WHOLE]
        if any(not landscape.asks(run.row.params) and landscape.excess(run.row.params) <= near for run in whole):
            return used
    return math.inf


def _steps(run: Any) -> int:
    return int(run.target_step)


def _ended(landscape: Landscape, way: str, row: RunRow, records: Mapping[int, Any]) -> TrialRun:
    """Return the trial at the end of its rung; a trial has one noise, which falls with the steps as its loss does."""
    step = row.target_step or 0
    if asked := landscape.asks(row.params):
        known = 0.0 if way == "tpe, ungraded" else asked
        return TrialRun(replace(row, state=RunState.FAILED), FailureClass.OOM, records, known)
    shown = 1 - math.exp(-step / 90) if way.endswith("late") else 1.0
    loss = 1 + shown * landscape.excess(row.params) + (4 + random.Random(row.id).random()) / math.sqrt(step)
    return TrialRun(replace(row, state=RunState.COMPLETED), None, {**records, step: ((loss,), 0.0)})


def _row(number: int, params: Mapping[str, Any], steps: int) -> RunRow:
    return RunRow(
        id=number, campaign_id=1, name=f"trial-{number:04}", params=dict(params), config={}, config_hash="", repeat=0,
        state=RunState.COMPLETED, reason="", desired="run", generation=1, retry_epoch=0, target_step=steps,
        ordinal=number, not_before_s=None, updated_s=0.0, stage=Stage.TRIAL,
    )  # fmt: skip


def main() -> None:
    """Print the table."""
    print(
        f"Whole trials until the best is within {WITHIN:.0%}, of the last 25%; {SEEDS} seeds, at most {MOST} trials\n"
    )
    print(f"{'landscape':24}{'search':14}{'median':>8}{'quartiles':>14}{'arrived':>9}")
    for landscape in LANDSCAPES:
        dice = SearchConfig.model_validate({"parameters": landscape.parameters, "sampler": "random", "seed": 12345})
        template = TrialTemplate(
            {"executor": "local", "command": ["t", *(f"{{{n}}}" for n in landscape.parameters)]}, dice, 0
        )
        drawn = [template.next_trial([], number) for number in range(200)]
        fit = [run.params for run in drawn if run and not landscape.asks(run.params)]
        near = landscape.within * statistics.median(map(landscape.excess, fit))
        for name in landscape.ways:
            counts = sorted(trials_until_near(landscape, name, seed, near) for seed in range(SEEDS))
            low, middle, high = (counts[round(part * (SEEDS - 1))] for part in (0.25, 0.5, 0.75))
            arrived = sum(count < math.inf for count in counts)
            quartiles = f"{low:.1f} to {high:.1f}"
            print(f"{landscape.name:24}{name:14}{middle:8.1f}{quartiles:>14}{arrived:6}/{SEEDS}", flush=True)


if __name__ == "__main__":
    main()
