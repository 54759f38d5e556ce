"""`campaign export --format parquet`: the same columns as CSV, with types, and whole or not at all."""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dscampaign
from dscampaign.db.ingest.attempt import GpuSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.export import arrow
from dscampaign.tests.support.cli_world import World, make_world

TABLES = ("steps", "runs", "attempts", "gpus", "events")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = make_world(tmp_path, lr=0.1)
    spool = made.attempt_paths("done").gpu_spool(0)
    spool.write_text('{"ts":100.5,"span_s":1,"gpu":[0],"power_w":[500],"throttle":[4]}\n')
    ingest(made.store, GpuSpool(1, spool, 0))
    return made


def exported(what: str) -> pa.Table:
    assert main(["export", "--what", what, "--format", "parquet", "--output", f"{what}.parquet"]) == 0
    return pq.read_table(f"{what}.parquet")


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("what", TABLES)
def test_columns_and_rows_are_those_of_csv(what: str) -> None:
    table = exported(what)
    assert main(["export", "--what", what, "--output", "rows.csv"]) == 0
    with Path("rows.csv").open() as file:
        header, *rows = csv.reader(file)
    assert (table.column_names, table.num_rows) == (header, len(rows))
    assert table.num_rows > 0
    for name, column in zip(header, zip(*rows, strict=True), strict=True):
        assert [_as_csv(value) for value in table[name].to_pylist()] == [_same(text) for text in column], name


def test_a_metric_with_the_name_of_a_column_has_a_column_of_its_own(world: World) -> None:
    """In CSV, Parquet and a frame; values and types of the others stay."""
    names = (
        "run",
        "generation",
        "ts_s",
        "step_time_s",
        "changes",
        "node",
        "attempt_id",
        "param.lr",
        "metric.run",
        "name",
        "Loss",
    )
    world.attempt("new", 1, lines=[{"step": 1, "ts": 5.0, "loss": 3.0, **dict.fromkeys(names, 7.5)}])
    table = exported("steps")
    assert main(["export", "--output", "rows.csv"]) == 0
    with Path("rows.csv").open() as file:
        assert next(csv.reader(file)) == table.column_names
    frame = dscampaign.load().steps
    for columns_of in (table.column_names, list(frame)):
        assert len(set(columns_of)) == len(columns_of)
    [row] = [row for row in table.to_pylist() if row["run"] == "new"]
    assert (row["generation"], row["loss"], row["step_time_s"]) == (1, 3.0, None)
    assert frame[frame["run"] == "new"]["param.lr"].item() == 0.1
    mine = [name if name in ("name", "Loss") else f"metric.{name}" for name in names]
    assert [row[name] for name in mine] == [7.5] * len(names)
    assert list(frame[frame["run"] == "new"].iloc[0][mine]) == [7.5] * len(names)


def _as_csv(value: Any) -> object:
    if isinstance(value, dt.datetime):
        return pytest.approx(value.timestamp(), abs=1e-5)
    return "" if value is None else _same(json.dumps(value) if isinstance(value, bool) else str(value))


def _same(text: str) -> object:
    try:
        return "nan" if math.isnan(float(text)) else float(text)
    except ValueError:
        return text


@pytest.mark.usefixtures("world")
def test_columns_have_types() -> None:
    text, whole, real, time = pa.string(), pa.int64(), pa.float64(), pa.timestamp("us", tz="UTC")
    for what, expected in {
        "steps": {
            "run": text,
            "generation": whole,
            "step": whole,
            "ts_s": time,
            "step_time_s": real,
            "my_figure": real,
        },
        "runs": {"name": text, "step": whole, "loss": real, "param.lr": real, "attempts": whole},
        "attempts": {"job_id": text, "array_index": whole, "started_s": time, "gpu_seconds": real, "evidence": text},
        "gpus": {"node": text, "gpu": whole, "ts_s": time, "span_s": real, "power_w": real, "throttle": whole},
        "events": {"id": whole, "ts_s": time, "kind": text, "data": text},
    }.items():
        schema = exported(what).schema
        assert {name: schema.field(name).type for name in expected} == expected
    assert schema.metadata == {b"schema_version": b"1", b"campaign": b"sweep", b"what": b"events"}


@pytest.mark.usefixtures("world")
def test_what_was_not_reported_is_null_and_nan_is_nan() -> None:
    steps = exported("steps").to_pylist()
    [bad] = [row for row in steps if row["run"] == "bad"]
    assert math.isnan(bad["loss"])
    assert bad["eval_loss"] is None
    runs = {row["name"]: row["loss"] for row in exported("runs").to_pylist()}
    assert math.isnan(runs["bad"])
    assert runs["new"] is None
    [evidence] = [json.loads(row["evidence"]) for row in exported("attempts").to_pylist() if row["run"] == "bad"]
    assert evidence["rule"] == "script-error"


@pytest.mark.usefixtures("world")
def test_a_file_is_whole_or_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    exported("steps")
    before, stored = Path("steps.parquet").read_bytes(), arrow._text

    def fail_at_the_fourth_row(value: Any) -> str:
        if value == "small":
            raise ValueError("a broken row")
        return stored(value)

    monkeypatch.setattr(arrow, "ROWS_A_BATCH", 2)
    monkeypatch.setattr(arrow, "_text", fail_at_the_fourth_row)
    assert main(["export", "--format", "parquet", "--output", "steps.parquet"]) == 70
    assert Path("steps.parquet").read_bytes() == before
    assert [path.name for path in Path().glob(".*")] == []
