"""The JSON documents of the command line, and their schemas: records of the store, and the fields around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from types import GenericAlias
from typing import Any, Final, Literal, NamedTuple, get_type_hints

from pydantic import BaseModel, Field, create_model

from dscampaign.db.campaigns import MetricsSource
from dscampaign.db.gpu_records import GpuUse, TokenEnergy
from dscampaign.db.records import AttemptRow, CheckpointRow, EventRow, MemoryObservation, RunLatest, RunRow, RunStatus
from dscampaign.db.states import RunState
from dscampaign.orchestrator.campaign.diagnosis import Proof, SeenFile
from dscampaign.orchestrator.campaign.documents import ATTEMPT, FIGURES, MEMORY, SCHEMA_VERSION, SIZES
from dscampaign.orchestrator.campaign.plan import Sign
from dscampaign.orchestrator.doctor.check import Severity
from dscampaign.orchestrator.errors import Problem
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.memory.zero_memory import Shortage, States
from dscampaign.orchestrator.reconcile.forecast import Basis
from dscampaign.orchestrator.report.compare.difference import LimitCheck
from dscampaign.orchestrator.report.compare.reasons import Reason
from dscampaign.orchestrator.report.compare.statistics import Estimate, LossTest
from dscampaign.orchestrator.report.measure.cost import Cost, FailedAttempt
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.report.page.data import RUN_FIELDS
from dscampaign.orchestrator.settings import Setting

Fields = dict[str, Any]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_NUMBER: Final = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}


class Document(NamedTuple):
    """A document: the commands that print it, and its fields."""

    commands: str
    fields: Fields

    def schema(self) -> dict[str, Any]:
        """Return its JSON schema: further fields may come, and a number that is not finite is text."""
        version = {"schema_version": (int, Field(json_schema_extra={"const": SCHEMA_VERSION}))}
        schema: dict[str, Any] = _with_texts(_part("Document", self.fields, **version).model_json_schema())
        return {"$schema": _DIALECT, **schema}


def _with_texts(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_texts(item) for item in node]
    if not isinstance(node, dict):
        return node
    rest = {key: _with_texts(value) for key, value in node.items() if key != "title" or isinstance(value, dict)}
    return (
        {key: value for key, value in rest.items() if key != "type"} | _NUMBER if node.get("type") == "number" else rest
    )


def _part(name: str, own: Fields, **more: Any) -> type[BaseModel]:
    definitions: Any = {key: kind if isinstance(kind, tuple) else (kind, ...) for key, kind in (own | more).items()}
    return create_model(name, **definitions)


def _of(record: Any, names: Sequence[str] = (), *, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of a record with their types, or those with these names."""
    own = getattr(record, "_fields", None) or [field.name for field in fields(record)]
    hints = get_type_hints(record)
    return {name: hints[name] for name in names or own if name not in without}


def _list(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


_COUNTS: Final = {"counts": dict[RunState, int], "completed_early": int}
_BATCH: Final = {"global_batch": int | None, **_of(RunStatus, SIZES)}
_ACTIVITY: Final = {
    "job_id": str | None,
    "node_list": str,
    "phase": str,
    "phase_since_s": float | None,
    "ts_s": float | None,
    "left_s": float | None,
}
_FORWARDED: Final = dict[str, dict[str, str]]
_PARAMS: Final = dict[str, Any]
_EVENTS: Final = _list(_part("Event", _of(EventRow, ("ts_s", "kind", "message", "data"))))


# fmt: off
def _status() -> Fields:
    run = {
        "name": str, "params": _PARAMS, **_of(RunRow, ("stage", "state", "reason")), "completed_early": bool,
        "cancelling": bool, **_of(RunStatus, FIGURES), **_BATCH, "changes": str, "code": str,
        "predicted_gb": float | None, "forwarded": _FORWARDED, **_ACTIVITY, "metrics_source": MetricsSource | None,
        "attempts": _list(_part("Attempt", _of(AttemptRow, ATTEMPT))),
    }
    reconciler = _part(
        "Reconciler",
        {"host": str, "pid": str, "expires_s": float, "asked_s": float | None, "heard_s": float | None, "trouble": str},
    )
    retries = _part("Retries", {"on": bool, "job_id": str | None, "job_state": str | None})
    return {
        "campaign": str, "settled": bool, "reconciled_now": bool, "now_s": float, "left_s": float | None,
        "ends_s": float | None, "reconciler": reconciler | None, "retries": retries, **_COUNTS,
        "runs": _list(_part("Run", run)),
    }


def _run() -> Fields:
    energy = {"energy_j": float | None, "j_per_token": float | None}
    used = {"util_pct": float | None, "power_w": float | None, **energy, "steps": TokenEnergy | None}
    attempt = {
        **_of(AttemptRow),
        "memory": _part("Memory", _of(MemoryObservation, MEMORY)) | None, "speed": dict[str, float] | None,
        "gpus": _part("Gpus", {**used, "gpus": list[GpuUse]}) | None,
    }
    return {
        "campaign": str, "run_dir": str, **_of(RunRow, without=("id", "campaign_id")), "completed_early": bool,
        "batch": _part("Batch", _BATCH), **_ACTIVITY, "latest": RunLatest | None, "forwarded": _FORWARDED,
        "gpus": _part("Energy", energy), "attempts": _list(_part("Attempt", attempt)),
        "checkpoints": list[CheckpointRow], "events": _EVENTS,
    }


def _plan() -> Fields:
    of_spec = {
        "params": _PARAMS, "command": list[str] | None, "config_hash": str, "target_step": int | None,
        "nodes": int, "ranks_per_node": int, **_BATCH, "world_size": int, "changes": list[str],
        "partition": str | None, "account": str | None, "qos": str | None,
        "likely_s": float | None, "likely_by": Basis | None, "predicted_gb": float | None, "usable_gb": float | None,
        "parameters": int | None, "states": _part("States", {"gpu_gb": float, **_of(States)}) | None,
        "warnings": list[Shortage], "ds_config": dict[str, Any],
    }
    actions = Literal[tuple(sign.name.lower() for sign in Sign)]  # type: ignore[valid-type] # known when it runs
    run = {"name": str, "action": actions, "reason": str, "differing": list[str]}
    run |= {name: (kind, None) for name, kind in of_spec.items()}  # a run that left the spec has none
    return {
        "campaign": str, "executor": str, "to_submit": int, "kept": int, "to_cancel": int, "later": int,
        "jobs": int, "arrays": int, "gpu_hours": float | None, "likely_gpu_hours": float | None,
        "first_start_s": float | None, "notes": list[str],
        "runs": _list(_part("Run", run)),
    }


_PAIRING: Final[Fields] = {"paired_by": str | None, "paired_width": float | None}


def _recommendation() -> Fields:
    reason = _part("Reason", {**_of(Reason), "text": str})
    row = {
        "condition": str, "title": str, "verdict": str, "figure": Any, "why": reason | None,
        "beside_best": Estimate | None, "loss_beside_best": LossTest | None,
    }
    answer = {
        "condition": str | None, "fastest": str | None, "lowest_loss": str | None, "proven": bool,
        "tied": Any, "excluded": dict[str, str], "sentence": str, "leads": str,
        "rows": _list(_part("Row", row)), "doubts": _list(reason), "remarks": _list(reason),
    }
    return {
        "name": str, "baseline": str, "baseline_because": str, **_PAIRING, "recommendation": _part("Answer", answer),
    }


def _report() -> Fields:
    condition = {
        "name": str, "title": str, "params": _PARAMS, "baseline": bool, "runs": list[str], "counted": int,
        "speed_unit": str, "speed": Estimate | None, "times_baseline": Estimate | None, **_PAIRING,
        "times_baseline_unpaired": Estimate | None, "order": str | None, "among": int, "loss_is": str,
        "loss": LossTest, **dict.fromkeys(METRICS, Estimate | float | None),
        "mem_beside_baseline": Any, "ranks": int,
    }
    effect = {
        "field": str, "before": Any, "after": Any, "pairs": list[list[str]], "speed": Estimate | None,
        "proven": dict[str, bool], "mem_reserved_gb": list[float], "loss": list[LossTest],
    }
    run = {
        **_of(MeasuredRun, RUN_FIELDS),
        "software": dict[str, Any], "forwarded": dict[str, Any], "remarks": list[str],
        "nodes": list[str], "machines": dict[str, Any], "mfu_inputs": dict[str, Any],
    }
    parts = {"conditions": _list(_part("Condition", condition)), "effects": _list(_part("Effect", effect))}
    return {
        "campaign": str, **_COUNTS, "workloads": _list(_part("Workload", {**_recommendation(), **parts})),
        "cost": Cost, "runs": _list(_part("Run", run)),
        "failures": list[FailedAttempt],
    }


def _comparison() -> Fields:
    one = {
        "shared": str, "left": str, "right": str, "step_time": Estimate | None, "times_left": float | None,
        "configuration": _list(_part("Difference", {"field": str, "left": str, "right": str})),
        "order": str | None, "among": int, **_PAIRING, "loss": LossTest, "figures": dict[str, list[str]],
        "verdict": list[str], "checks": list[LimitCheck],
    }
    alone = _part("OnlyIn", {"campaign": str, "conditions": list[str]})
    return {"comparisons": _list(_part("Comparison", one)), "only_in": _list(alone)}


@cache
def documents() -> dict[str, Document]:
    """Return all documents by name."""
    events = {"dir": str, "store": str, "created_s": float, "provenance": dict[str, Any], "spec": str}
    overview = {
        "campaign": str, "user": str, "executor": str, "dir": str, "created_s": float, **_COUNTS,
        "last_activity_s": float | None, "gpu_hours": float, "being_removed": bool,
    }
    check = {"id": str, "where": str, "verdict": Severity, "seen": str, "next": str | None}
    job = {"job_id": str, "state": str, "exit_code": str, "reason": str, "nodes": str}
    diagnosis = {
        "class": FailureClass | None, "sure": str, "reason": str, "rule": str, "proof": Proof | None,
        "rank": int | None, "node": str | None, "next": str, "job": _part("Job", job) | None,
        "files": list[SeenFile],
    }
    validation = {
        "valid": bool,
        **{name: (kind, None) for name, kind in {"campaign": str, "runs": list[str], "notes": list[str]}.items()},
        "errors": (list[Problem], None),
    }
    recommended = {"campaign": str, "objective": str | None, "workloads": _list(_part("Workload", _recommendation()))}
    statuses = {"campaigns": _list(_part("Campaign", _status()))}
    commands: dict[str, tuple[str, Fields]] = {
        "validate": ("validate", validation),
        "plan": ("plan", _plan()),
        "status": ("status, submit, reconcile, cancel, retry", _status()),
        "statuses": ("reconcile --all-campaigns", statuses),
        "list": ("list", {"campaigns": _list(_part("Campaign", overview))}),
        "run": ("explain NAME RUN", _run()),
        "campaign": (
            "explain NAME",
            {"campaign": str, "executor": str, **events, "settled": bool, **_COUNTS, "events": _EVENTS},
        ),
        "settings": ("explain --config", {"settings": list[Setting]}),
        "recommend": ("recommend", recommended),
        "compare": ("compare", _comparison()),
        "report": ("report", _report()),
        "export": ("export", {"campaign": str, "what": str, "rows": list[dict[str, Any]]}),
        "doctor": ("doctor", {"counts": dict[Severity, int], "checks": _list(_part("Check", check))}),
        "diagnose": ("diagnose", diagnosis),
    }
    return {name: Document(*each) for name, each in commands.items()}
