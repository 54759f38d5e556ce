"""What the page of a large campaign costs: until its rows are seen in a browser, and a look at what changed. SQLite.

python benchmarks/live_page.py [--runs 5000] [--steps 100]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import insert, update

from dscampaign.db import bulk, queries, schema
from dscampaign.db.records import NewAttempt, NewRun
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.live.model import LiveStore
from dscampaign.tests.support.browser import browser, until

TRIES = 3


def main() -> None:
    """Prints one line a figure: the median of three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/campaign.db"
        store = Store.open(url, create=True)
        _fill(store, given.runs, given.steps)
        live = LiveStore(store)
        print(f"{given.runs:,} runs, read at first: {_timed(lambda: LiveStore(store).runs(None)):.3f} s")
        since = live.runs(None).version
        print(f"looked at again, unchanged: {_timed(lambda: live.runs(None, since)):.3f} s")
        print(f"looked at again, one run changed: {_timed(lambda: _changed(store, live, since)):.3f} s")
        words = [sys.executable, "-m", "dscampaign.orchestrator.cli", "serve", "--store", url]
        with (
            subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server,
            browser(Path(folder) / "b") as opened,
        ):
            assert server.stdout
            link = server.stdout.readline().strip()
            opened.open(link)
            until(opened, "document.getElementById('rows')?.children.length")

            def seen() -> None:
                opened.open(link.partition("?")[0])
                until(opened, "document.getElementById('rows').children.length >= 100")

            print(f"rows in a browser: {_timed(seen):.2f} s")
            server.terminate()


def _timed(act: Callable[[], object]) -> float:
    times = []
    for _ in range(TRIES):
        began_s = time.perf_counter()
        act()
        times.append(time.perf_counter() - began_s)
    return sorted(times)[TRIES // 2]


def _changed(store: Store, live: LiveStore, since: int) -> None:
    latest = schema.run_latest
    with store.write() as conn:
        conn.execute(update(latest).where(latest.c.run_id == 1).values(step=latest.c.step + 1))
    assert len(live.runs(None, since).runs) == 1


def _fill(store: Store, runs: int, steps: int) -> None:
    config = {"ranks_per_node": 8, "slurm": {"gpus_per_node": 8}, "train": {"steps": steps}}
    new = [
        NewRun(
            name=f"lr-{number // 50}-width-{number % 50}",
            params={"lr": number // 50, "width": number % 50},
            config=config,
            config_hash="h",
            ordinal=number,
            target_step=steps,
            state=RunState.FAILED if number % 10 == 9 else RunState.COMPLETED,
        )
        for number in range(runs)
    ]
    attempt: dict[str, Any] = {
        "generation": 1,
        "config_hash": "h",
        "micro_batch": 4,
        "accumulation": 1,
        "world_size": 8,
        "nodes": 1,
    }
    losses = [{"step": step, "loss": 3 + 5 / step, "tokens_per_s": 4e5, "nonfinite": 0} for step in range(1, steps + 1)]
    with store.write() as conn:
        campaign = queries.insert_campaign(conn, name="large", spec="", spec_hash="s", dir="/none", executor="slurm")
        bulk.insert_runs(conn, campaign, new)
        ids = [run.id for run in queries.runs(conn, campaign)]
        tries = [NewAttempt(run_id=one, token=f"t{one}", executor="slurm", spool_path="", **attempt) for one in ids]
        attempts = [attempt.id for attempt in bulk.insert_attempts(conn, tries)]
        conn.execute(update(schema.run).values(generation=1))
        newest = {"generation": 1, "ts_s": 0.0, **losses[-1]}
        rows = [{"run_id": one, "attempt_id": own, **newest} for one, own in zip(ids, attempts, strict=True)]
        conn.execute(insert(schema.run_latest), rows)
        for own in attempts:
            conn.execute(insert(schema.step_metric), [{"attempt_id": own, **line} for line in losses])


if __name__ == "__main__":
    main()
