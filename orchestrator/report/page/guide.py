"""When to use each strategy, as a table. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from dscampaign.orchestrator.formatting import short_number
from dscampaign.orchestrator.report.compare.guide import GPU_COUNTS, guidance
from dscampaign.orchestrator.report.compare.results import WorkloadResults
from dscampaign.orchestrator.report.compare.wording import times
from dscampaign.orchestrator.report.measure.metrics import METRICS

from .elements import Section, Table

_HEADER = (
    "condition", "strategy", "× baseline", "states", "held", "needs", "use when", "avoid when",
    *(f"{gpus} GPU{'s' if gpus > 1 else ''}" for gpus in GPU_COUNTS),
)  # fmt: skip
_TEXT = (
    "Conditions that differ in their strategy alone. States are weights, gradients and the optimizer's, of one GPU by "
    "arithmetic; held is what PyTorch held at most. The last columns are parameters of the largest model whose states "
    "fit the GPUs of one node, and its memory where that is limited, with what these runs held besides. Activations of "
    "a larger model take more, so these are upper bounds: `campaign plan` says what fits."
)


def guide(one: WorkloadResults, title: str) -> Iterator[Section]:
    """What each strategy of a workload is good for; nothing where no two can be compared."""
    rows = tuple(
        (
            each.condition.name,
            each.strategy,
            _times(one, each.condition.name),
            METRICS["mem_reserved_gb"].text(each.states_gb),
            METRICS["mem_reserved_gb"].text(each.held_gb),
            each.needs,
            each.use_when,
            each.avoid_when,
            *_largest(each.largest),
        )
        for each in guidance(one.comparisons)
    )
    if rows:
        yield Section(title, (_TEXT,), (Table(_HEADER, rows, "--rrr---rrrr"),))


def _times(one: WorkloadResults, name: str) -> str:
    found = next((each.times_baseline for each in one.comparisons if each.condition.name == name), None)
    return times(found) if found else ""


def _largest(largest: Mapping[int, float]) -> Iterator[str]:
    for parameters in largest.values():
        yield "as the host holds" if math.isinf(parameters) else short_number(parameters)
