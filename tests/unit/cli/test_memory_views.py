"""What is shown of memory: the predicted peak in a plan, measured beside predicted, and the mark of a changed run."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import bulk, queries
from dscampaign.db.records import MemoryObservation, NewAttempt, NewRun
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.memory.prediction import memory_key
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.tests.support.cli_world import World, make_world
from dscampaign.tests.support.spec_files import load_spec

Output = pytest.CaptureFixture[str]

SPEC: dict[str, Any] = {
    "name": "sweep",
    "command": "train.py",
    "slurm": {"partition": "gpu", "gpus_per_node": 1, "time": "1:00:00"},
    "train": {"global_batch": 240, "micro_batch": 240, "steps": 10},
    "matrix": {"zero_stage": [1, 2]},
}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("# reads CAMPAIGN_DS_CONFIG")
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps(SPEC))
    return path


def other_campaign(folder: Path, spec: Path) -> None:
    """A store in which another campaign has tried what the spec's first run is like."""
    first = expand(load_spec(spec))[0]
    key = memory_key(RunConfig.model_validate(first.stored_config))
    assert key is not None
    store = Store.open(f"sqlite:///{folder}/campaign/campaign.db", create=True)
    with store.write() as conn:
        campaign = queries.insert_campaign(
            conn, name="before", spec="", spec_hash="", dir=str(folder / "campaign"), executor="slurm"
        )
        bulk.insert_runs(conn, campaign, [NewRun("r", {}, {}, "h", 0)])
        [run] = queries.runs(conn, campaign)
        attempt = bulk.insert_attempts(conn, [new_attempt(run.id, key)])[0].id
        seen = MemoryObservation(f"{key}|H100|2", attempt, 240, oom=False, after_init_gb=3.0, per_sample_gb=1.1)
        queries.observe_memory(conn, seen)
        queries.observe_memory(conn, MemoryObservation(f"{key}|H100|2", attempt, 240, oom=True, usable_gb=84.0))
    store.close()


def new_attempt(run_id: int, key: str) -> NewAttempt:
    sizes = {"micro_batch": 240, "accumulation": 1, "world_size": 1, "nodes": 1}
    return NewAttempt(run_id, 1, "t", "h", executor="slurm", spool_path="metrics.jsonl", memory_key=key, **sizes)  # type: ignore[arg-type]


def test_a_plan_shows_the_predicted_peak_and_starts_where_it_fits(spec: Path, tmp_path: Path, capsys: Output) -> None:
    other_campaign(tmp_path, spec)
    assert main(["plan", str(spec)]) == 0
    first, second = capsys.readouterr().out.splitlines()[3:5]
    assert "240 = 60 × 4 × 1 rank" in first
    assert first.endswith("micro-batch 240 ran out of memory, 60 is predicted to take 69.0 of 84.0 GB")
    assert "240 = 240 × 1 × 1 rank" in second  # another ZeRO stage: nothing is known of it
    assert "GB" not in second


# -- what was measured -----------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Of run `small`, the first attempt ran out of memory, and the second was changed so that it fits."""
    world = make_world(tmp_path)
    with world.store.write() as conn:
        campaign_id = world.campaign_id
        first, second = queries.attempts(conn, campaign_id, world.run_id("small"))
        queries.update_attempt(conn, first.id, memory_key="k")
        changed: dict[str, Any] = {
            "changes": "activation_checkpointing zero_stage=2",
            "predicted_gb": 65.2,
            "memory_key": "k2",
        }
        queries.update_attempt(conn, second.id, **changed)
        probe = {"after_init_gb": 3.0, "per_sample_gb": 11.0, "usable_gb": 84.0}
        queries.observe_memory(conn, MemoryObservation("k|H|2", first.id, 8, oom=False, **probe))
        queries.observe_memory(conn, MemoryObservation("k|H|2", first.id, 8, oom=True, usable_gb=84.0))
        peaks = {"peak_allocated_gb": 66.0, "peak_reserved_gb": 74.1, "usable_gb": 84.0}
        queries.observe_memory(conn, MemoryObservation("k2|H|2", second.id, 4, oom=False, **peaks))
    return world


def test_explain_compares_measured_with_predicted(world: World, capsys: Output) -> None:
    assert main(["explain", "small"]) == 0
    out = capsys.readouterr().out
    assert "memory: 91.0 of 84.0 GB predicted\n" in out
    assert "memory: 66.0 of 84.0 GB at the peak, 65.2 predicted (-1.2 %)\n" in out
    assert "micro-batch 4 × 2 · changed: activation_checkpointing, zero_stage=2\n" in out
    assert "activation_checkpointing, zero_stage=2, so that it fits into memory\n" in out.partition("Attempts")[0]


def test_a_changed_run_is_marked_in_documents_and_exports(world: World, capsys: Output) -> None:
    changes = "activation_checkpointing zero_stage=2"
    assert main(["status", "--json"]) == 0
    runs = {run["name"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    assert (runs["small"]["changes"], runs["done"]["changes"], runs["new"]["changes"]) == (changes, "", "")
    assert [attempt["changes"] for attempt in runs["small"]["attempts"]] == ["", changes]
    for what in ("steps", "runs"):
        assert main(["export", "sweep", "--what", what]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        named = {row.get("run") or row["name"]: row["changes"] for row in rows}
        assert (named["small"], named["done"]) == (changes, "")
