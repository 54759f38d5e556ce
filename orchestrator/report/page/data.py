"""The report as data: one JSON document, and rows for CSV files. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from dscampaign.orchestrator.campaign.documents import SCHEMA_VERSION, columns_of, finite
from dscampaign.orchestrator.campaign.selection import RunCounts
from dscampaign.orchestrator.report.compare.answer import Row
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison, pairing
from dscampaign.orchestrator.report.compare.difference import ComparedOperands, Comparison, figures, verdict
from dscampaign.orchestrator.report.compare.limits import Limit, checks
from dscampaign.orchestrator.report.compare.reasons import Reason
from dscampaign.orchestrator.report.compare.results import Results, WorkloadResults
from dscampaign.orchestrator.report.compare.sensitivity import effect_document, sensitivities
from dscampaign.orchestrator.report.compare.statistics import Estimate
from dscampaign.orchestrator.report.measure.flags import flags_of
from dscampaign.orchestrator.report.measure.metrics import METRICS, OverRepeats
from dscampaign.orchestrator.report.measure.run import MeasuredRun

CsvRow = Sequence[Any]

RUN_FIELDS: Final = (
    "name", "repeat", "state", "early", "reason", "step", "target_step", "tries", "changes", "micro_batch",
    "first_micro_batch", "accumulation", "world_size", "tokens_per_step", "code",
)  # fmt: skip
_ESTIMATES: Final = frozenset(
    ["speed", "times_baseline"]
    + [metric.name for metric in METRICS.values() if metric.over in (OverRepeats.LOSS, OverRepeats.MEDIAN)]
)
_COLUMN: Final = {"params": "param"}
"""What a field is called in a CSV file: as in `campaign export`."""
_ORIGIN: Final = ("nodes", "machines", "mfu_inputs")
"""Of a run's document, where it ran; too long for a row."""
PARTS: Final = ("timing", "loss", "memory", "gpus", "quality", "cost")


def document_of(results: Results) -> dict[str, Any]:
    """Everything but the curves, ready for JSON."""
    times = [{"condition": one.name, "loss": loss, "seconds": seconds} for one, loss, seconds in results.times]
    document = {
        "schema_version": SCHEMA_VERSION,
        "campaign": results.campaign.name,
        **RunCounts.of(results.runs).document(),
        "workloads": [_workload(one) for one in results.workloads],
        "time_to_loss": times,
        "cost": asdict(results.cost),
        "runs": [_run(run) for run in results.runs],
        "failures": [asdict(failure) for run in results.runs for failure in run.failures],
    }
    return {name: strict(value) for name, value in document.items()}


def recommendation_document(results: Results) -> dict[str, Any]:
    """What to use, for `campaign recommend --json`."""
    keys = ("name", "baseline", "baseline_because", "paired_by", "paired_width", "recommendation")
    workloads = [{key: whole[key] for key in keys} for one in results.workloads for whole in [_workload(one)]]
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "campaign": results.campaign.name}
    document["objective"] = results.objective
    return {**document, "workloads": strict(workloads)}


def comparison_document(compared: ComparedOperands, limits: Sequence[Limit] = ()) -> dict[str, Any]:
    """Conditions beside each other, and those that have none, for `campaign compare --json`."""
    alone = [{"campaign": name, "conditions": list(names)} for name, names in compared.alone]
    return {"comparisons": [_comparison(one, limits) for one in compared.comparisons], "only_in": alone}


def _comparison(one: Comparison, limits: Sequence[Limit]) -> dict[str, Any]:
    loss = one.result.loss
    return {
        "shared": one.shared,
        "left": one.left.name,
        "right": one.right.name,
        "configuration": [{"field": name, "left": a, "right": b} for name, a, b in one.differences],
        "step_time": _estimate(one.step_time),
        "times_left": one.result.times_baseline.value if one.result.times_baseline else None,
        "order": one.result.order,
        "among": one.result.among,
        **_pairing([one.result]),
        "loss": {**asdict(loss), "difference": loss.difference and loss.difference.value},
        "figures": {name: [a, b] for name, a, b in figures(one)},
        "verdict": verdict(one),
        "checks": [asdict(check) for check in checks(one, limits)],
    }


def condition_rows(document: Mapping[str, Any]) -> tuple[list[str], Iterator[CsvRow]]:
    """Names of columns, and a row for each condition of what `document_of` returned."""
    return _rows([_with_all_columns(each) for workload in document["workloads"] for each in workload["conditions"]])


def run_rows(document: Mapping[str, Any]) -> tuple[list[str], Iterator[CsvRow]]:
    """Names of columns, and a row for each run of what `document_of` returned, without what lists of a run hold."""
    return _rows([{name: value for name, value in run.items() if name not in _ORIGIN} for run in document["runs"]])


def strict(value: Any) -> Any:
    """The value with what strict JSON cannot hold replaced by its name."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, dict):
        return {str(key): strict(each) for key, each in value.items()}
    return [strict(each) for each in value] if isinstance(value, list | tuple) else value


def _rows(documents: Sequence[dict[str, Any]]) -> tuple[list[str], Iterator[CsvRow]]:
    columns, rows = columns_of(
        [{_COLUMN.get(name, name): value for name, value in document.items()} for document in documents]
    )
    return columns, ([_cell(value) for value in row] for row in rows)


def _with_all_columns(document: dict[str, Any]) -> dict[str, Any]:
    """The same columns for every campaign: an estimate that nobody has still has its fields."""
    missing: dict[str, Any] = dict.fromkeys(field.name for field in fields(Estimate))
    whole = {name: missing if value is None and name in _ESTIMATES else value for name, value in document.items()}
    loss = whole["loss"]
    return {**whole, "loss": {**loss, "difference": loss["difference"] or missing}}


def _workload(one: WorkloadResults) -> dict[str, Any]:
    result = one.answer
    return {
        "name": one.workload.name,
        "baseline": one.workload.baseline.name,
        "baseline_because": one.workload.because,
        **_pairing(one.comparisons),
        "conditions": [_condition(each) for each in one.comparisons],
        "effects": [effect_document(change) for change in sensitivities(one.comparisons)],
        "recommendation": {
            "condition": result.chosen.name if result.chosen else None,
            "fastest": result.fastest.name if result.fastest else None,
            "lowest_loss": result.learner.name if result.learner else None,
            "proven": result.proven,
            "tied": result.tied,
            "excluded": {name: reason.text for name, reason in result.excluded.items()},
            "sentence": result.sentence,
            "leads": result.lead,
            "rows": [_row(row) for row in result.rows],
            "doubts": [_reason(reason) for reason in result.doubts],
            "remarks": [_reason(reason) for reason in result.remarks],
        },
    }


def _pairing(compared: Sequence[BaselineComparison]) -> dict[str, Any]:
    by, width = pairing(compared)
    return {"paired_by": by or None, "paired_width": width}


def _row(row: Row) -> dict[str, Any]:
    return {
        "condition": row.condition.name,
        "title": row.condition.title,
        "verdict": row.verdict,
        "figure": row.figure,
        "beside_best": _estimate(row.beside_best),
        "loss_beside_best": asdict(row.loss_beside_best) if row.loss_beside_best else None,
        "why": _reason(row.why) if row.why else None,
    }


def _reason(reason: Reason) -> dict[str, Any]:
    return {**asdict(reason), "text": reason.text}


def _condition(one: BaselineComparison) -> dict[str, Any]:
    condition = one.condition
    return {
        "name": condition.name,
        "title": condition.title,
        "params": condition.params,
        "baseline": one.is_baseline,
        "runs": [run.name for run in condition.runs],
        "counted": len(condition.counted),
        "speed_unit": one.speed_unit,
        "speed": _estimate(one.speed),
        "times_baseline": _estimate(one.times_baseline),
        "times_baseline_unpaired": _estimate(one.times_unpaired),
        **_pairing([one]),
        "order": one.order,
        "among": one.among,
        "loss_is": one.loss_is,
        "loss": asdict(one.loss),
        **{name: _estimate(condition.summary(name)) for name in METRICS},
        "mem_beside_baseline": one.more_memory,
        "ranks": condition.ranks,
    }


def _estimate(estimate: Estimate | float | None) -> dict[str, Any] | float | None:
    return dict(vars(estimate)) if isinstance(estimate, Estimate) else estimate


def _run(run: MeasuredRun) -> dict[str, Any]:
    return {
        **{name: getattr(run, name) for name in RUN_FIELDS},
        "params": run.params,
        **{name: dict(vars(value)) if (value := getattr(run, name)) else None for name in PARTS},
        "software": run.software,
        "forwarded": run.forwarded,
        "remarks": flags_of(run),
        "nodes": run.hosts,
        "machines": run.machines,
        "mfu_inputs": {
            **{name: run.start.get(name) for name in ("parameters", "layers", "width")},
            **{name: run.start[name] for name in ("matrix_parameters", "attention_width") if name in run.start},
            **{name: run.speed.get(name) for name in ("flops_per_token", "peak_flops")},
        },
    }


def _cell(value: Any) -> Any:
    """A value in a CSV file: lists as text."""
    return "; ".join(map(str, value)) if isinstance(value, list) else value
