"""The details of campaigns and runs, and their JSON documents. Keys are only ever added: scripts rely on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dscampaign.db import gpu_queries, metrics, queries
from dscampaign.db.gpu_records import AttemptGpus, j_per_token, total
from dscampaign.db.records import (
    OPENED_ELSEWHERE,
    AttemptRow,
    CampaignRow,
    CheckpointRow,
    EventRow,
    MemoryObservation,
    RunLatest,
    RunRow,
    RunStatus,
)
from dscampaign.db.series import SPEED
from dscampaign.db.states import CANCELLING
from dscampaign.db.store import Store
from dscampaign.jobs.shared.layout import CampaignPaths, RunPaths
from dscampaign.jobs.shared.state_layout import ranks_per_sample
from dscampaign.orchestrator.formatting import flat_fields
from dscampaign.orchestrator.reconcile.lease import LeaseHolder

from .selection import Selection
from .status import CampaignStatus, read_status, with_final_figures, with_queue
from .titles import codes_text


@dataclass(frozen=True)
class CampaignDetails:
    """A campaign with its newest events."""

    status: CampaignStatus
    store: str
    events: tuple[EventRow, ...]

    def __repr__(self) -> str:
        return f"<details of {self.status.sentence}>"


@dataclass(frozen=True)
class RunDetails:
    """A run with attempts and events, oldest first, and checkpoints, newest first; memory and GPUs by attempt id."""

    campaign: CampaignRow
    status: CampaignStatus
    run: RunRow
    now: RunStatus
    latest: RunLatest | None
    attempts: tuple[AttemptRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    events: tuple[EventRow, ...]
    paths: RunPaths
    memory: dict[int, MemoryObservation]
    gpus: dict[int, AttemptGpus]

    def __repr__(self) -> str:
        state = ": ".join(filter(None, (self.now.shown, self.now.reason)))
        return f"<details of {self.run.name} of {self.campaign.name}, {state}>"


def campaign_details(store: Store, campaign: CampaignRow) -> CampaignDetails:
    """Read the details of a campaign."""
    status = read_status(store, campaign)
    with store.read() as conn:
        events = queries.events(conn, campaign.id, limit=20)
    return CampaignDetails(status, store.url_without_password, tuple(events))


def run_details(store: Store, campaign: CampaignRow, run: RunRow, status: CampaignStatus | None = None) -> RunDetails:
    """Read the details of a run, and the status of its campaign unless the caller has it."""
    status = status or with_final_figures(store, read_status(store, campaign))
    with store.read() as conn:
        attempts = tuple(queries.attempts(conn, campaign.id, run.id))
        used = (gpu_queries.attempt_gpus(conn, attempt.id) for attempt in attempts)
        return RunDetails(
            campaign=campaign,
            status=status,
            run=run,
            now=next(row for row in status.runs if row.run_id == run.id),
            latest=metrics.latest(conn, campaign.id, run.id).get(run.id),
            attempts=attempts,
            checkpoints=tuple(queries.checkpoints(conn, run.id)),
            events=tuple(queries.events(conn, campaign.id, run.id)),
            memory={item.attempt_id: item for item in queries.memory_of_run(conn, run.id) if not item.oom},
            gpus={gpus.attempt_id: gpus for gpus in used if gpus},
            paths=CampaignPaths(Path(campaign.dir), campaign.name).run(run.name),
        )


SCHEMA_VERSION: Final = 1  # of every JSON document that the command prints
FIGURES: Final = ("step", "target_step", "loss", "eval_loss", "tokens_per_s", "mem_reserved_gb", "mfu")
SIZES: Final = ("micro_batch", "accumulation", "world_size")
ATTEMPT: Final = (
    *("generation", "state", "failure_class", "job_id", "micro_batch", "accumulation", "changes", "predicted_gb"),
    *("start_step", "last_step", "code"),
)
"""The fields of an attempt in the status of a campaign; there may be ten thousand."""

MEMORY: Final = ("after_init_gb", "per_sample_gb", "usable_gb", "peak_allocated_gb", "peak_reserved_gb")


def finite(value: Any) -> Any:
    """Return a value as strict JSON can hold it: NaN and the infinities become their names."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def columns_of(documents: Sequence[Mapping[str, Any]]) -> tuple[list[str], Iterator[list[Any]]]:
    """Return documents as the rows of a table, with the names of its columns: all fields of any document."""
    flat = [dict(flat_fields(document)) for document in documents]
    names = dict.fromkeys(name for row in flat for name in row)
    nested = {name.rpartition(".")[0] for name in names}  # of a figure that some rows lack as a whole
    columns = [name for name in names if name not in nested or any(row.get(name) is not None for row in flat)]
    return columns, ([row.get(name) for name in columns] for row in flat)


class Documents(Sequence[dict[str, Any]]):
    """Documents of many rows, each made on access: all together take far more memory than the rows."""

    def __init__(self, rows: Sequence[Any], make: Callable[[Any], dict[str, Any]]) -> None:
        self._rows, self._make = rows, make

    def __getitem__(self, place: Any) -> Any:
        return [*map(self._make, self._rows[place])] if isinstance(place, slice) else self._make(self._rows[place])

    def __len__(self) -> int:
        return len(self._rows)


def status_document(store: Store, campaign: CampaignRow, chosen: Selection | None = None) -> dict[str, Any]:
    """Return the status of a campaign, with all its runs or the chosen runs."""
    status = with_queue(store, with_final_figures(store, read_status(store, campaign)))
    with store.read() as conn:
        runs = {run.id: run for run in queries.runs(conn, campaign.id)}
        attempts = queries.attempts_by_run(conn, campaign.id)
        forwards = queries.forwards(conn, campaign.id)

    holder, waiting, lease = status.acting, status.queue or {}, status.reconciler
    job_id = holder.job if holder else next(iter(waiting), "")
    reconciler = None
    if lease:
        names = ("expires_s", "asked_s", "heard_s", "trouble")
        owner = LeaseHolder.parse(lease.holder)
        reconciler = {"host": owner.host, "pid": owner.pid, **{name: getattr(lease, name) for name in names}}

    def of_run(row: RunStatus) -> dict[str, Any]:
        return {
            **_run_of_status(row, runs[row.run_id], attempts[row.run_id], forwards.get(row.run_id, {})),
            **_activity_document(row, status),
            "metrics_source": source._asdict() if (source := status.sources.get(row.run_id)) else None,
        }

    return {
        "campaign": campaign.name,
        "settled": status.settled,
        "reconciled_now": status.acting is not None,
        "now_s": status.now_s,
        "left_s": status.left.seconds,
        "ends_s": status.ends_s,
        "reconciler": reconciler,
        "retries": {"on": holder is not None, "job_id": job_id or None, "job_state": waiting.get(job_id)},
        **status.counts.document(),
        "runs": Documents((status.of(chosen) if chosen else status).runs, of_run),
    }


def _activity_document(row: RunStatus, status: CampaignStatus) -> dict[str, Any]:
    return {
        "job_id": row.job_id,
        "node_list": row.node_list or "",
        "phase": row.phase or "",
        "phase_since_s": row.phase_since_s,
        "ts_s": finite(row.ts_s),
        "left_s": status.left.runs.get(row.run_id),
    }


def campaign_document(facts: CampaignDetails) -> dict[str, Any]:
    """Return a campaign with its newest events."""
    campaign = facts.status.campaign
    return {
        "campaign": campaign.name,
        "executor": campaign.executor,
        "dir": campaign.dir,
        "store": facts.store,
        "created_s": campaign.created_s,
        "provenance": campaign.provenance,
        "spec": campaign.spec,
        "settled": facts.status.settled,
        **facts.status.counts.document(),
        "events": [_event(event) for event in facts.events],
    }


def run_document(facts: RunDetails) -> dict[str, Any]:
    """Return a run with its attempts, checkpoints and events."""
    present = (row for row in facts.attempts if row.config_hash == facts.run.config_hash)
    used = [row for row in present if row.id in facts.gpus or (row.last_step or 0) > (row.start_step or 0)]
    return {
        "campaign": facts.campaign.name,
        "run_dir": str(facts.paths.dir),
        **{key: value for key, value in asdict(facts.run).items() if key not in ("id", "campaign_id")},
        "completed_early": facts.now.early,
        "batch": batch_of(facts.run),
        **_activity_document(facts.now, facts.status),
        "latest": {key: finite(value) for key, value in asdict(facts.latest).items()} if facts.latest else None,
        "forwarded": forwards_document(facts.events),
        "gpus": energy_document(facts.gpus.get(row.id) for row in used),
        "attempts": [_attempt(row, facts) for row in facts.attempts],
        "checkpoints": [asdict(checkpoint) for checkpoint in facts.checkpoints],
        "events": [_event(event) for event in facts.events],
    }


def batch_of(run: RunRow) -> dict[str, int | None]:
    """Return a run's batch arithmetic by its spec, before any attempt made the micro-batch smaller."""
    config = deepcopy(run.config)  # a copy, so that the row does not keep what was read
    train = config.get("train", {})
    nodes = 1 if config.get("executor") == "local" else config.get("slurm", {}).get("nodes", 1)
    world_size = nodes * config.get("ranks_per_node", 1)
    batch, micro = train.get("global_batch"), train.get("micro_batch")
    micro = micro if isinstance(micro, int) else None  # `auto`
    accumulation = batch * ranks_per_sample(train) // (micro * world_size) if batch and micro else None
    return {"global_batch": batch, "micro_batch": micro, "accumulation": accumulation, "world_size": world_size}


def forwards_document(events: Sequence[EventRow]) -> dict[str, dict[str, str]]:
    """Return, by tool, the id and the address or folder of the run's newest attempt there."""
    return _forwarded({str(e.data.get("tool")): e.data for e in events if e.kind == OPENED_ELSEWHERE})


def speed_document(events: Sequence[EventRow], attempt_id: int) -> dict[str, float] | None:
    """Return the attempt's reported figures of speed, None without any. A script may report anything."""
    reports = [event.data for event in events if event.kind == SPEED and event.attempt_id == attempt_id]
    numbers = (item for item in (reports[-1].items() if reports else ()) if type(item[1]) in (int, float))
    figures = {name: float(value) for name, value in numbers if math.isfinite(value)}
    return figures if "tokens_per_s" in figures else None


def gpus_document(used: AttemptGpus | None) -> dict[str, Any] | None:
    """Return the GPUs of an attempt."""
    if used is None:
        return None
    return {
        **{name: getattr(used, name) for name in ("util_pct", "power_w", "energy_j")},
        "j_per_token": used.per_token.j_per_token if used.per_token else None,
        "steps": asdict(used.per_token) if used.per_token else None,
        "gpus": [asdict(gpu) for gpu in used.gpus],
    }


def energy_document(used: Iterable[AttemptGpus | None]) -> dict[str, float | None]:
    """Return the energy of all attempts of a run, and that of a token; None was not sampled."""
    attempts = list(used)
    whole = total(attempt.energy_j if attempt else None for attempt in attempts)
    return {"energy_j": whole, "j_per_token": j_per_token(attempt for attempt in attempts if attempt)}


def _run_of_status(
    row: RunStatus, run: RunRow, attempts: Sequence[AttemptRow], forwards: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    now = {name: getattr(row, name) for name in SIZES}
    return {
        "name": row.name,
        "params": run.params,
        "stage": run.stage,
        "state": row.state,
        "completed_early": row.early,
        "cancelling": row.shown == CANCELLING,
        "reason": row.reason,
        **{name: finite(getattr(row, name)) for name in FIGURES},
        **batch_of(run),
        **{name: value for name, value in now.items() if value is not None},
        "changes": row.changes or "",
        "code": codes_text(attempt.code for attempt in attempts if attempt.config_hash == run.config_hash),
        "predicted_gb": attempts[-1].predicted_gb if attempts else None,
        "forwarded": _forwarded(forwards),
        "attempts": [{name: getattr(attempt, name) for name in ATTEMPT} for attempt in attempts],
    }


def _attempt(row: AttemptRow, facts: RunDetails) -> dict[str, Any]:
    memory = facts.memory.get(row.id)
    return {
        **asdict(row),
        "memory": {name: getattr(memory, name) for name in MEMORY} if memory else None,
        "speed": speed_document(facts.events, row.id),
        "gpus": gpus_document(facts.gpus.get(row.id)),
    }


def _forwarded(by_tool: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    return {tool: {name: str(data.get(name, "")) for name in ("run_id", "where")} for tool, data in by_tool.items()}


def _event(event: EventRow) -> dict[str, Any]:
    return {"ts_s": event.ts_s, "kind": event.kind, "message": event.message, "data": dict(event.data)}
