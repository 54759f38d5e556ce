"""The report as data: one JSON document, and rows for CSV files. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from ...status import SCHEMA_VERSION, finite
from ..compare.baseline import BaselineComparison
from ..compare.conditions import Condition
from ..compare.guide import guide
from ..compare.results import Results, WorkloadResults
from ..compare.statistics import Estimate
from ..measure.failures import Background, Behind
from ..measure.flags import flags_of
from ..measure.metrics import ESTIMATES, figures_of
from ..measure.run import MeasuredRun

Row = Sequence[Any]

_RUN_FIELDS: Final = (
    "name", "repeat", "state", "reason", "step", "target_step", "tries", "changes", "micro_batch", "first_micro_batch",
    "accumulation", "world_size", "tokens_per_step",
)  # fmt: skip
_ESTIMATES: Final = frozenset(["speed", "times_baseline", *ESTIMATES])
_PARTS: Final = ("timing", "loss", "memory", "gpus", "quality", "cost")


def document_of(results: Results, background: Background) -> dict[str, Any]:
    """Everything but the curves, ready for JSON."""
    document: dict[str, Any] = strict(
        {
            "schema_version": SCHEMA_VERSION,
            "campaign": results.campaign.name,
            "workloads": [_workload(one) for one in results.compared],
            "time_to_loss": [
                {"condition": t.condition.name, "loss": t.loss, "seconds": t.seconds, "tokens": t.tokens}
                for t in results.times
            ],
            "cost": asdict(results.cost),
            "runs": [{**_run(run), **_behind(background.runs.get(run.name))} for run in results.runs],
            "failures": [asdict(failure) for failure in background.failures],
        }
    )
    return document


def recommendation_document(results: Results) -> dict[str, Any]:
    """What to use, for `campaign recommend --json`."""
    keys = ("name", "baseline", "recommendation")
    workloads = [{key: whole[key] for key in keys} for one in results.compared for whole in [_workload(one)]]
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "campaign": results.campaign.name}
    return {**document, "workloads": strict(workloads)}


def condition_rows(results: Results) -> tuple[list[str], Iterator[Row]]:
    """Names of columns, and a row a condition."""
    return _rows([_with_all_columns(each) for one in results.compared for each in _conditions(one)])


def run_rows(results: Results) -> tuple[list[str], Iterator[Row]]:
    """Names of columns, and a row a run."""
    return _rows([_run(run) for run in results.runs])


def strict(value: Any) -> Any:
    """The value with what strict JSON cannot hold replaced by its name."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, dict):
        return {str(key): strict(each) for key, each in value.items()}
    return [strict(each) for each in value] if isinstance(value, list | tuple) else value


def _rows(documents: Sequence[dict[str, Any]]) -> tuple[list[str], Iterator[Row]]:
    flat = [_flat(document) for document in documents]
    names = dict.fromkeys(name for row in flat for name in row)
    nested = {name.rpartition(".")[0] for name in names}  # of a figure that some rows lack as a whole
    columns = [name for name in names if name not in nested or any(row.get(name) is not None for row in flat)]
    return columns, ([strict(row.get(name)) for name in columns] for row in flat)


def _with_all_columns(document: dict[str, Any]) -> dict[str, Any]:
    """The same columns for every campaign: an estimate that nobody has still has its fields."""
    missing: dict[str, Any] = dict.fromkeys(field.name for field in fields(Estimate))
    whole = {name: missing if value is None and name in _ESTIMATES else value for name, value in document.items()}
    loss = whole["loss"]
    return {**whole, "loss": {**loss, "difference": loss["difference"] or missing}}


def _workload(one: WorkloadResults) -> dict[str, Any]:
    said = one.recommendation
    return {
        "name": one.workload.name,
        "baseline": one.workload.baseline.name,
        "conditions": _conditions(one),
        "recommendation": {
            "condition": said.chosen.name if said.chosen else None,
            "established": said.established,
            "tied": said.tied,
            "excluded": said.excluded,
            "pareto_front": said.front,
            "sentence": said.sentence,
            "guide": guide(one.judged, said),
        },
    }


def _conditions(one: WorkloadResults) -> list[dict[str, Any]]:
    return [_condition(judged, one.workload.baseline) for judged in one.judged]


def _condition(one: BaselineComparison, baseline: Condition) -> dict[str, Any]:
    condition = one.condition
    return {
        "name": condition.name,
        "params": condition.params,
        "baseline": one.is_baseline,
        "runs": [run.name for run in condition.runs],
        "counted": len(condition.counted),
        "speed_unit": "tokens/s" if one.in_tokens else "steps/s",
        "speed": _estimate(one.speed),
        "times_baseline": _estimate(one.times_baseline),
        "order": one.order,
        "loss_is": one.loss_is,
        "loss": {
            "verdict": one.loss.verdict,
            "difference": _estimate(one.loss.difference),
            "margin": one.loss.margin,
            "reason": one.loss.reason,
        },
        **{
            name: _estimate(value) if isinstance(value, Estimate) else value
            for name, value in figures_of(condition, baseline).items()
        },
    }


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    return asdict(found) if found else None


def _run(run: MeasuredRun) -> dict[str, Any]:
    parts = {name: asdict(value) if (value := getattr(run, name)) else None for name in _PARTS}
    plain = {name: getattr(run, name) for name in _RUN_FIELDS}
    return {
        **plain,
        "params": dict(run.params),
        **parts,
        "software": dict(run.software),
        "forwarded": dict(run.forwarded),
        "remarks": flags_of(run),
    }


def _behind(found: Behind | None) -> dict[str, Any]:
    """Where a run was, and what its MFU was calculated from."""
    start, speed = (found.start, found.speed) if found else ({}, {})
    return {
        "nodes": list(found.hosts) if found else [],
        "devices": [asdict(device) for device in found.devices] if found else [],
        "mfu_inputs": {
            **{name: start.get(name) for name in ("parameters", "layers", "width")},
            **{name: speed.get(name) for name in ("flops_per_token", "peak_flops")},
        },
    }


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields as columns with dots in their names; lists as text."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = "; ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return flat
