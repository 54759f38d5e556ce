"""The report as data: one JSON document, and rows for CSV files. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final

from dscampaign.orchestrator.campaign.documents import SCHEMA_VERSION, columns_of, finite
from dscampaign.orchestrator.campaign.selection import RunCounts
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison, pairing
from dscampaign.orchestrator.report.compare.difference import ComparedOperands, Comparison, Limit, figures, verdict
from dscampaign.orchestrator.report.compare.reasons import Reason
from dscampaign.orchestrator.report.compare.results import Results, WorkloadResults
from dscampaign.orchestrator.report.compare.sensitivity import sensitivities
from dscampaign.orchestrator.report.measure.flags import remarks_of
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.run import MeasuredRun

CsvRow = Sequence[Any]

RUN_FIELDS: Final = (
    "name", "repeat", "state", "early", "reason", "step", "target_step", "tries", "changes", "micro_batch",
    "first_micro_batch", "accumulation", "world_size", "tokens_per_step", "code", "params",
    "timing", "loss", "memory", "gpus", "quality", "cost",
)  # fmt: skip


def document_of(results: Results) -> dict[str, Any]:
    """Everything but the curves, ready for JSON."""
    document: dict[str, Any] = strict(
        {
            "schema_version": SCHEMA_VERSION,
            "campaign": results.campaign.name,
            **RunCounts.of(results.runs).document(),
            "workloads": [
                {
                    **_recommendation(one),
                    "conditions": [_condition(each) for each in one.comparisons],
                    "effects": [change.document() for change in sensitivities(one.comparisons)],
                }
                for one in results.workloads
            ],
            "cost": results.cost,
            "runs": [_run(run) for run in results.runs],
            "failures": [failure for run in results.runs for failure in run.failures],
        }
    )
    return document


def recommendation_document(results: Results) -> dict[str, Any]:
    """What to use, for `campaign recommend --json`."""
    workloads = [_recommendation(one) for one in results.workloads]
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "campaign": results.campaign.name}
    return {**document, "objective": results.objective, "workloads": strict(workloads)}


def comparison_document(compared: ComparedOperands, limits: Sequence[Limit] = ()) -> dict[str, Any]:
    """Conditions beside each other, and conditions without a counterpart, for `campaign compare --json`."""
    alone = [{"campaign": name, "conditions": names} for name, names in compared.alone]
    return dict(strict({"comparisons": [_comparison(one, limits) for one in compared.comparisons], "only_in": alone}))


def _comparison(one: Comparison, limits: Sequence[Limit]) -> dict[str, Any]:
    return {
        "shared": one.shared,
        "left": one.left.name,
        "right": one.right.name,
        "configuration": [{"field": name, "left": a, "right": b} for name, a, b in one.differences],
        "step_time": one.step_time,
        "times_left": one.result.times_baseline.value if one.result.times_baseline else None,
        "order": one.result.order,
        "among": one.result.among,
        **_pairing([one.result]),
        "loss": one.result.loss,
        "figures": {name: [a, b] for name, a, b in figures(one)},
        "verdict": verdict(one),
        "checks": one.checks(limits),
    }


def condition_rows(document: Mapping[str, Any]) -> tuple[list[str], Iterator[CsvRow]]:
    """Names of columns, and a row for each condition of what `document_of` returned."""
    conditions = [each for workload in document["workloads"] for each in workload["conditions"]]
    columns, rows = columns_of([{"param" if key == "params" else key: one[key] for key in one} for one in conditions])
    return columns, ([", ".join(cell) if isinstance(cell, list) else cell for cell in row] for row in rows)


def strict(value: Any) -> Any:
    """Return records as mappings, and in place of what strict JSON cannot hold its name."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Reason):
        value = {**vars(value), "text": value.text}
    elif is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {str(key): strict(each) for key, each in value.items()}
    return [strict(each) for each in value] if isinstance(value, list | tuple) else value


def _recommendation(one: WorkloadResults) -> dict[str, Any]:
    answer = one.answer
    rows = [
        {
            "condition": row.condition.name,
            "title": row.condition.title,
            **{key: value for key, value in vars(row).items() if key != "comparison"},
        }
        for row in answer.rows
    ]
    return {
        "name": one.workload.name,
        "baseline": one.workload.baseline.name,
        "baseline_because": one.workload.because,
        **_pairing(one.comparisons),
        "recommendation": {
            "condition": answer.chosen and answer.chosen.name,
            "fastest": answer.fastest and answer.fastest.name,
            "lowest_loss": answer.learner and answer.learner.name,
            "proven": answer.proven,
            "tied": answer.tied,
            "excluded": {name: reason.text for name, reason in answer.excluded.items()},
            "sentence": answer.sentence,
            "leads": answer.lead,
            "rows": rows,
            "doubts": answer.doubts,
            "remarks": answer.remarks,
        },
    }


def _pairing(compared: Sequence[BaselineComparison]) -> dict[str, Any]:
    by, width = pairing(compared)
    return {"paired_by": by or None, "paired_width": width}


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
        "speed": one.speed,
        "times_baseline": one.times_baseline,
        "times_baseline_unpaired": one.times_unpaired,
        **_pairing([one]),
        "order": one.order,
        "among": one.among,
        "loss_is": one.loss_is,
        "loss": one.loss,
        **{name: condition.summary(name) for name in METRICS},
        "mem_beside_baseline": one.more_memory,
        "ranks": condition.ranks,
    }


def _run(run: MeasuredRun) -> dict[str, Any]:
    return {
        **{name: getattr(run, name) for name in RUN_FIELDS},
        "software": run.software,
        "forwarded": run.forwarded,
        "remarks": list(remarks_of(run).values()),
        "nodes": run.hosts,
        "machines": run.machines,
        "mfu_inputs": {
            **{name: run.start.get(name) for name in ("parameters", "layers", "width")},
            **{name: run.start[name] for name in ("matrix_parameters", "attention_width") if name in run.start},
            **{name: run.speed.get(name) for name in ("flops_per_token", "peak_flops")},
        },
    }
