"""How far forecasts of durations are from the truth: kept campaigns, replayed as they were at a quarter of each run.

    python benchmarks/forecast.py [results/NAME/campaign.db.gz ...]

For each completed run the store is set back to the moment at which the run had made 25 % of its steps: of other runs it
has what they had reported by then. Errors are shares of the true value, medians over the runs of a store:

start: of the run's duration, when it started, and how many of its runs had a forecast then;
run: of its duration, at 25 % of its steps;
left: of what was left of it then;
campaign: of what was left of the whole campaign then, if all of it completed.

`results/forecast.txt` is what it prints.
"""

from __future__ import annotations

import gzip
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy import Connection, Row, text

from dscampaign.benchmarks.shared.results import commit_id
from dscampaign.db import campaigns, queries
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.orchestrator.reconcile.forecast import read_history, time_left

RESULTS: Final = Path(__file__).resolve().parent / "results"

_RUNS: Final = """
SELECT r.campaign_id, r.id AS run_id, a.id AS attempt_id, a.started_s, a.ended_s, r.target_step,
    (SELECT min(ts_s) FROM step_metric m WHERE m.attempt_id = a.id
     AND m.step >= coalesce(a.start_step, 0) + 0.25 * (r.target_step - coalesce(a.start_step, 0))) AS quarter_s,
    (SELECT CASE WHEN count(*) = sum(o.state IN ('completed', 'screened')) THEN max(b.ended_s) END
     FROM run o JOIN attempt b ON b.run_id = o.id WHERE o.campaign_id = r.campaign_id) AS all_ended_s
FROM run r JOIN attempt a ON a.run_id = r.id AND a.generation = r.generation
WHERE r.state = 'completed' AND a.failure_class = 'completed' ORDER BY a.started_s
"""
_SET_BACK: Final = """
DELETE FROM step_metric WHERE ts_s > :then_s;
UPDATE attempt SET ended_s = NULL, failure_class = NULL, state = 'running' WHERE ended_s > :then_s;
UPDATE run SET generation = (SELECT coalesce(max(generation), 0) FROM attempt a WHERE a.run_id = run.id
    AND a.started_s <= :then_s);
UPDATE run SET state = 'pending' WHERE state != 'screened' AND (state != 'completed' OR generation = 0);
UPDATE run SET state = 'running' WHERE EXISTS (SELECT 1 FROM attempt a WHERE a.run_id = run.id
    AND a.generation = run.generation AND a.ended_s IS NULL);
DELETE FROM run_latest WHERE attempt_id NOT IN (SELECT attempt_id FROM step_metric);
UPDATE run_latest SET step = (SELECT max(step) FROM step_metric m WHERE m.attempt_id = run_latest.attempt_id);
UPDATE run_latest SET ts_s = (SELECT ts_s FROM step_metric m WHERE (m.attempt_id, m.step) = (run_latest.attempt_id,
    run_latest.step))
"""


class Errors(NamedTuple):
    """Of a run's forecasts, as shares of the truth; None if there was none."""

    start: float | None
    run: float | None
    left: float | None
    campaign: float | None


def replay(path: Path, folder: Path) -> list[Errors]:
    """Return the errors of all completed runs of a store."""
    (folder / "campaign.db").write_bytes(gzip.decompress(path.read_bytes()))
    store = Store.open(f"sqlite:///{folder}/campaign.db", check_schema=False)
    upgrade(store)
    with store.read() as conn:
        runs = conn.execute(text(_RUNS)).all()
    errors = [_errors(store, run) for run in runs if run.quarter_s and run.ended_s]
    store.close()
    return errors


def _errors(store: Store, run: Row[tuple[object, ...]]) -> Errors:
    lasted_s = run.ended_s - run.started_s
    with _as_of(store, run.started_s) as conn:
        params, config = (campaigns.unsettled(conn, run.campaign_id, name)[run.run_id] for name in ("params", "config"))
        before = read_history(conn, run.campaign_id).forecast(params, lambda: config, run.target_step)
    with _as_of(store, run.quarter_s) as conn:
        left = time_left(conn, run.campaign_id, queries.status(conn, run.campaign_id), run.quarter_s)
    left_s, gone_s = left.runs.get(run.run_id), run.quarter_s - run.started_s
    return Errors(
        _error(before and before.seconds, lasted_s),
        _error(None if left_s is None else gone_s + left_s, lasted_s),
        _error(left_s, lasted_s - gone_s),
        _error(left.seconds, run.all_ended_s - run.quarter_s) if run.all_ended_s else None,
    )


@contextmanager
def _as_of(store: Store, then_s: float) -> Iterator[Connection]:
    """Show the store as it was; nothing of that stays."""
    with store.write() as conn, conn.begin_nested() as changes:
        for statement in _SET_BACK.split(";"):
            conn.execute(text(statement), {"then_s": then_s} if ":then_s" in statement else {})
        yield conn
        changes.rollback()


def _error(forecast: float | None, truth: float) -> float | None:
    return None if forecast is None else abs(forecast - truth) / truth


def _print(name: str, errors: Sequence[Errors]) -> None:
    line = f"{name:54}{len(errors):5}"
    for values in zip(*errors, strict=True):
        known = [value for value in values if value is not None]
        share = f"{statistics.median(known):.0%}" if known else ""
        line += f"{share if len(known) in (0, len(errors)) else f'{share} of {len(known)}':>13}"
    print(line.rstrip())


def main() -> int:
    """Print the errors of each store, and of all runs."""
    paths = [*map(Path, sys.argv[1:])] or sorted(RESULTS.glob("*/*.db.gz"))
    print(f"median errors; commit {commit_id()}")
    print(f"{'store':54}{'runs':>5}{'start':>13}{'run':>13}{'left':>13}{'campaign':>13}")
    every: list[Errors] = []
    for path in paths:
        with tempfile.TemporaryDirectory(prefix="forecast-") as folder:
            errors = replay(path, Path(folder))
        if errors:
            _print("/".join(path.parts[-2:]), errors)
        every += errors
    _print("all", every)
    return 0


if __name__ == "__main__":
    sys.exit(main())
