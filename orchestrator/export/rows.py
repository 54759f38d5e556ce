"""A campaign's results as rows, streamed to CSV or JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import IO, Any, Final

from sqlalchemy import Connection

from dscampaign.db import gpu_queries, metrics, queries, schema
from dscampaign.db.gpu_records import GpuSample
from dscampaign.db.records import AttemptRow, CampaignRow, EventRow, MetricRow
from dscampaign.db.series import final_losses
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.documents import SCHEMA_VERSION, finite, status_document
from dscampaign.orchestrator.formatting import spreadsheet_cells

Row = Sequence[Any]

_STEP_COLUMNS: Final = tuple(name for name in MetricRow.__dataclass_fields__ if name not in ("attempt_id", "extra"))
_PARAM: Final = "param."
_METRIC: Final = "metric."
"""Goes before a script's own name of a metric that would be another column's."""
_TAKEN: Final = frozenset({"run", "node", "changes", *_STEP_COLUMNS, *schema.run_metric.columns.keys()})
_ATTEMPT_COLUMNS: Final = tuple(
    n for n in AttemptRow.__dataclass_fields__ if n not in ("id", "run_id", "token", "phase", "phase_since_s")
)
_NO_COLUMNS: Final = ("params", "forwarded", "attempts", "phase", "phase_since_s", "ts_s", "left_s", "metrics_source")
"""Fields of a run's status that have columns of their own, or describe only this moment."""
_GPU_COLUMNS: Final = tuple(n for n in GpuSample.__dataclass_fields__ if n != "attempt_id")
_EVENT_COLUMNS: Final = tuple(n for n in EventRow.__dataclass_fields__ if n not in ("campaign_id", "run_id"))


@contextmanager
def columns_and_rows(store: Store, campaign: CampaignRow, kind: str) -> Iterator[tuple[Sequence[str], Iterable[Row]]]:
    """Yield the names of the columns, and the rows of `steps`, `runs`, `attempts`, `gpus` or `events`.

    They are valid inside the block and of a single moment.
    """
    if kind == "runs":
        with store.read() as conn:
            names, losses = _names(conn, campaign.id), final_losses(conn, campaign.id)
        yield _runs(status_document(store, campaign)["runs"], {names[run_id]: loss for run_id, loss in losses.items()})
        return
    with store.read() as conn:
        yield _TABLES[kind](conn, campaign.id)


def write_csv(stream: IO[str], _campaign: str, _what: str, columns: Sequence[str], rows: Iterable[Row]) -> int:
    """Write a header and a line a row; return the number of rows. Structures are JSON, NaN is `nan`."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(spreadsheet_cells(columns))
    number = 0
    for row in rows:
        writer.writerow(spreadsheet_cells(row))
        number += 1
    return number


def write_json(stream: IO[str], campaign: str, kind: str, columns: Sequence[str], rows: Iterable[Row]) -> int:
    """Write a document, a line for each row; return the number of rows. NaN is the text `NaN`."""
    head = {"schema_version": SCHEMA_VERSION, "campaign": campaign, "what": kind}
    stream.write(f'{json.dumps(head)[:-1]}, "rows": [')
    number = 0
    for number, row in enumerate(rows, 1):
        line = json.dumps(dict(zip(columns, map(finite, row), strict=True)), allow_nan=False)
        stream.write(f"{',' if number > 1 else ''}\n{line}")
    stream.write("\n]}\n")
    return number


def _steps(conn: Connection, campaign_id: int) -> tuple[Sequence[str], Iterable[Row]]:
    names, extras = _names(conn, campaign_id), metrics.extra_names(conn, campaign_id)
    changes = {attempt.id: attempt.changes for attempt in queries.attempts(conn, campaign_id)}
    rows = (
        (
            names[run_id],
            *(getattr(row, column) for column in _STEP_COLUMNS),
            changes.get(row.attempt_id, ""),
            *(row.extra.get(name) for name in extras),
        )
        for run_id, row in metrics.iter_metrics(conn, campaign_id)
    )
    own = [_METRIC + name if name in _TAKEN or name.startswith((_PARAM, _METRIC)) else name for name in extras]
    return ("run", *_STEP_COLUMNS, "changes", *own), rows


def _runs(documents: Sequence[dict[str, Any]], final: Mapping[str, float]) -> tuple[Sequence[str], Iterable[Row]]:
    """Yield a row for each run: parameters and ids in other tools as columns, attempts as a number."""
    params = list(dict.fromkeys(name for document in documents for name in document["params"]))
    tools = sorted({tool for document in documents for tool in document["forwarded"]})
    plain = [name for name in (documents[0] if documents else ()) if name not in _NO_COLUMNS]
    rows = (
        (
            *(document[name] for name in plain),
            *(document["params"].get(name) for name in params),
            *(document["forwarded"].get(tool, {}).get("run_id") for tool in tools),
            len(document["attempts"]),
            final.get(document["name"]),
        )
        for document in documents
    )
    names = [*(_PARAM + name for name in params), *(f"forward.{tool}" for tool in tools)]
    return (*plain, *names, "attempts", "final_loss"), rows


def _with_run(
    query: Callable[[Connection, int], Iterable[AttemptRow | EventRow]],
    columns: Sequence[str],
    conn: Connection,
    campaign_id: int,
) -> tuple[Sequence[str], Iterable[Row]]:
    names = _names(conn, campaign_id)
    named_rows = ((names.get(row.run_id or 0, ""), asdict(row)) for row in query(conn, campaign_id))
    return ("run", *columns), ((name, *(values[c] for c in columns)) for name, values in named_rows)


def _gpus(conn: Connection, campaign_id: int) -> tuple[Sequence[str], Iterable[Row]]:
    names = _names(conn, campaign_id)
    rows = (
        (names[run_id], generation, device.node if device else "", *(getattr(sample, c) for c in _GPU_COLUMNS))
        for run_id, generation, device, sample in gpu_queries.iter_gpu_samples(conn, campaign_id)
    )
    return ("run", "generation", "node", *_GPU_COLUMNS), rows


_TABLES: Final[dict[str, Callable[[Connection, int], tuple[Sequence[str], Iterable[Row]]]]] = {
    "steps": _steps,
    "attempts": partial(_with_run, queries.attempts, _ATTEMPT_COLUMNS),
    "gpus": _gpus,
    "events": partial(_with_run, queries.events, _EVENT_COLUMNS),
}


def _names(conn: Connection, campaign_id: int) -> dict[int, str]:
    return {row.run_id: row.name for row in queries.status(conn, campaign_id)}
