"""Which sweeps the page shows, and their numbers as tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from dscampaign.db.states import RunState
from dscampaign.orchestrator.formatting import short_number
from dscampaign.orchestrator.report.compare.conditions import Condition
from dscampaign.orchestrator.report.compare.feasible import infeasible
from dscampaign.orchestrator.report.compare.results import Results
from dscampaign.orchestrator.report.compare.statistics import Estimate
from dscampaign.orchestrator.report.compare.sweeps import (
    CHANGES_WORK,
    MODEL_SIZE,
    Grid,
    Line,
    Sweep,
    grids_of,
    sweeps_of,
)
from dscampaign.orchestrator.report.compare.wording import interval
from dscampaign.orchestrator.report.measure.metrics import METRICS

from .elements import Picture, Section, Table

MOST_SWEEPS: Final = 6
MOST_GRIDS: Final = 4
MOST_LINES: Final = 12
"""So many are drawn; the tables have all."""

_TEXT: Final = (
    "Conditions that differ in one number alone, also across workloads: speed and memory can be compared there, losses "
    "only where the work is the same. Bars are intervals over repeats; × marks a point that failed."
)


@dataclass(frozen=True)
class Measure:
    """A figure that is drawn along an axis: its label, and the metrics of which the first that is known counts."""

    label: str
    metrics: tuple[str, ...]

    def of(self, condition: Condition) -> Estimate | None:
        """Its value and interval, in the metric's unit; None if it is not known."""
        for name in self.metrics:
            found = condition.summary(name)
            if found is not None:
                whole = found if isinstance(found, Estimate) else Estimate(found, None, None, None, None, 1)
                scale = METRICS[name].scale
                low, high = (None if end is None else end * scale for end in (whole.low, whole.high))
                return replace(whole, value=whole.value * scale, low=low, high=high)
        return None

    def text(self, condition: Condition) -> str:
        """The same as text without its unit."""
        name = next((name for name in self.metrics if condition.summary(name) is not None), None)
        if name is None:
            return ""
        found = condition.summary(name)
        more = interval(found, METRICS[name].number) if isinstance(found, Estimate) else ""
        return f"{condition.number(name)}{more}"


SPEED: Final = Measure("tokens/s", ("tokens_per_s",))
STEP: Final = Measure("step time (ms)", ("step_s",))
MEMORY: Final = Measure("memory (GB)", ("mem_reserved_gb", "mem_host_gb"))
ENERGY: Final = Measure("J/token", ("j_per_token",))
LOSS: Final = Measure("loss (nats)", ("held_out", "final_loss"))
_ALL: Final = (SPEED, STEP, MEMORY, ENERGY, LOSS)


def measures_of(sweep: Sweep) -> list[Measure]:
    """What is known of two points of a line; losses only where the axis does not change the work."""
    told = [one for one in _ALL if one is not LOSS or sweep.axis not in CHANGES_WORK]
    return [one for one in told if any(_known(one, line) > 1 for line in sweep.lines)]


def _known(measure: Measure, line: Line) -> int:
    return sum(measure.of(point.condition) is not None for point in line.points)


def failed(condition: Condition) -> str:
    """Why a condition failed; "" for one that did not, or that nobody has tried."""
    ended = next((run for run in condition.runs if run.state in (RunState.FAILED, RunState.HELD)), None)
    return f"{ended.state}{f': {ended.reason}' if ended.reason else ''}" if ended else ""


def drawn_sweeps(results: Results) -> list[tuple[str, Sweep]]:
    """By the name of its figure, each sweep that is drawn."""
    return [(f"sweep_{number}", sweep) for number, sweep in enumerate(_told(results)[:MOST_SWEEPS], 1)]


def _told(results: Results) -> list[Sweep]:
    return [sweep for sweep in sweeps_of(results.conditions) if measures_of(sweep)]


def drawn_grids(results: Results) -> list[tuple[str, Grid]]:
    """By the name of its figure, each heat map that is drawn."""
    told = [grid for grid in grids_of(results.conditions) if any(STEP.of(one) for one in grid.cells.values())]
    return [(f"grid_{number}", grid) for number, grid in enumerate(told[:MOST_GRIDS], 1)]


def sweeps(results: Results) -> Iterator[Section]:
    """A section with a figure and a table for each axis, and the heat maps; none without a sweep."""
    shown, grids = drawn_sweeps(results), drawn_grids(results)
    if not shown:
        return
    pictures = [Picture(name, _caption(sweep)) for name, sweep in shown]
    pictures += [Picture(name, _grid_caption(grid)) for name, grid in grids]
    yield Section("Sweeps", (_TEXT,), tuple(map(_table, _told(results))), tuple(pictures))


def _caption(sweep: Sweep) -> str:
    more = len(sweep.lines) - MOST_LINES
    return f"Along {axis_label(sweep.axis)}.{f' Lines without room: {more}, see the table.' if more > 0 else ''}"


def axis_label(axis: str) -> str:
    """What stands at an axis."""
    return {MODEL_SIZE: "parameters of the model", "seq_len": "tokens a sample"}.get(axis, axis)


def value_text(value: float) -> str:
    """A value of an axis: `1,024`, `0.0003`, `124M`."""
    if abs(value) >= 1e6:
        return short_number(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _grid_caption(grid: Grid) -> str:
    where = f" ({grid.name})" if grid.name else ""
    return f"Step time in ms by {axis_label(grid.across)} and {axis_label(grid.down)}{where}; darker takes longer."


def _table(sweep: Sweep) -> Table:
    measures = measures_of(sweep)
    several = any(line.name for line in sweep.lines)
    header = (*(("of",) if several else ()), sweep.axis, *(one.label for one in measures), "note")
    rows = tuple(
        (
            *((line.name,) if several else ()),
            value_text(point.x),
            *(one.text(point.condition) for one in measures),
            why.text if (why := infeasible(point.condition)) else "",
        )
        for line in sweep.lines
        for point in line.points
    )
    return Table(header, rows, "-" * several + "r" * (1 + len(measures)) + "-")
