"""Campaigns of the experiment, each with a folder and a store, and so a ledger, of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dscampaign.benchmarks.shared.results import REPOSITORY
from dscampaign.db import metrics, queries
from dscampaign.db.records import AttemptRow, MemoryObservation, RunRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.memory.observations import ledgers_of
from dscampaign.orchestrator.memory.prediction import Ledger

from .plan import Plan


@dataclass(frozen=True)
class Campaign:
    """A campaign that was run, with the store of its own that it left."""

    name: str
    folder: Path

    def rows(self) -> Iterator[tuple[RunRow, list[AttemptRow], list[MemoryObservation], list[float]]]:
        """Each run with its attempts, what they said of their memory, and its losses."""
        store = self.store()
        with store.read() as conn:
            campaign = queries.campaign_by_name(conn, self.name)
            for run in queries.runs(conn, campaign.id) if campaign else ():
                losses = [row.loss for row in metrics.metrics(conn, run.id) if row.loss is not None]
                attempts = queries.attempts(conn, run.campaign_id, run.id)
                yield run, attempts, queries.memory_of_run(conn, run.id), losses
        store.close()

    def ledger(self) -> Ledger:
        """What its runs have measured, under the memory key of which the most is known."""
        store = self.store()
        with store.read() as conn:
            campaign = queries.campaign_by_name(conn, self.name)
            keys = {row.memory_key for row in queries.attempts(conn, campaign.id)} if campaign else set()
            found = ledgers_of(conn, (key for key in keys if key))
        store.close()
        return max(found.values(), key=lambda ledger: len(ledger.observations), default=Ledger())

    def store(self) -> Store:
        """Its store, to be closed."""
        return Store.open(f"sqlite:///{self.folder}/campaign.db")


def run_campaign(plan: Plan, work: Path, name: str, seeds: Sequence[int], limit_s: float, **train: Any) -> Campaign:
    """Runs one campaign to its end, or cancels it when its time is up. Its folder, and so its ledger, are its own."""
    folder = work / name
    folder.mkdir(parents=True)
    spec = {
        "name": name,
        "executor": "local",
        "local": dict(plan.local),
        "ranks_per_node": 1,
        "env": dict(plan.env),
        "retry": {"backoff_s": 0, "crash": 0, "infra": 0, **({"oom": 0} if name.startswith("size") else {})},
        "train": {
            "tokenizer": str(REPOSITORY / "examples/data/tokenizer"),
            "dataset": str(REPOSITORY / "examples/data/wikitext.txt"),
            **plan.train,
            **train,
        },
        "matrix": {"seed": list(seeds)},
    }
    path = folder / "spec.yaml"  # JSON is YAML
    path.write_text(json.dumps(spec, indent=1))
    campaign = [sys.executable, "-m", "dscampaign.orchestrator.cli"]
    words = ["submit", str(path), "--yes", "--watch", "--dir", str(folder)]
    process = subprocess.Popen([*campaign, *words])
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        print(f"{name}: cancelled after {limit_s:.0f} s", flush=True)
        process.terminate()
        process.wait()
        subprocess.run([*campaign, "cancel", name, "--all", "--dir", str(folder)], check=False)
        with suppress(subprocess.TimeoutExpired):
            watch = ["reconcile", name, "--watch", "--dir", str(folder)]
            subprocess.run([*campaign, *watch], check=False, timeout=60)
    return Campaign(name, folder)
