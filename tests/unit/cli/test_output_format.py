"""`-o FORMAT`: the rows of a command's table for spreadsheets and programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.cli.options import delimited
from dscampaign.tests.support.cli_world import make_world

Output = pytest.CaptureFixture[str]

SPEC = """\
name: sweep
executor: local
command: train.py
train: {global_batch: 8, micro_batch: 2, steps: 3}
matrix: {lr: [0.1, 0.2]}
"""


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    make_world(tmp_path)
    (tmp_path / "train.py").write_text("# reads CAMPAIGN_DS_CONFIG")
    (tmp_path / "plan.yaml").write_text(SPEC.replace("sweep", "other"))


def printed(capsys: Output, *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "key", "names"),
    [
        (["status"], "runs", ["done", "small", "bad", "new"]),
        (["status", "--failed"], "runs", ["bad"]),
        (["list"], "campaigns", ["sweep"]),
        (["plan", "plan.yaml"], "runs", ["lr-0.1", "lr-0.2"]),
    ],
)
@pytest.mark.parametrize(("form", "separator"), [("csv", ","), ("tsv", "\t")])
def test_each_record_of_the_document_is_a_line(
    capsys: Output, words: list[str], key: str, names: list[str], form: str, separator: str
) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *words, "-o", form)), delimiter=separator))
    name = "campaign" if key == "campaigns" else "name"
    assert [row[name] for row in rows] == names
    document = json.loads(printed(capsys, *words, "-o", "json"))
    assert [record[name] for record in document[key]] == names
    plain = {field for record in document[key] for field, value in record.items() if isinstance(value, str | float)}
    assert plain <= set(rows[0])
    assert "ds_config" not in rows[0]
    assert [row.get("attempts") for row in rows] == [
        str(len(record["attempts"])) if "attempts" in record else None for record in document[key]
    ]


def test_status_and_export_say_the_same_in_the_same_words(capsys: Output) -> None:
    shown, exported = (
        list(csv.DictReader(io.StringIO(printed(capsys, *words))))
        for words in (("status", "-o", "csv"), ("export", "--what", "runs"))
    )
    assert set(exported[0]) - set(shown[0]) == {"final_loss"}
    assert [
        {name: row.get(name, other[name]) for name in other} for row, other in zip(shown, exported, strict=True)
    ] == exported
    assert (exported[0]["cancelling"], exported[0]["param.lr"], exported[0]["attempts"]) == ("false", "0.1", "1")


def test_no_cell_is_a_formula_or_more_than_a_line() -> None:
    records: list[dict[str, Any]] = [
        {"name": "=cmd()", "loss": -0.5, "state": {"gpu": None}, "done": True, "code": ["a", "b"]},
        {"name": "-x\r\n\x1b[31mred", "loss": "-Infinity", "state": None, "done": False},
    ]
    text = delimited(records, ",")
    header, first, second = csv.reader(io.StringIO(text))
    assert header == ["name", "loss", "state.gpu", "done", "code"]
    assert first == ["'=cmd()", "-0.5", "", "true", '["a", "b"]']
    assert second == ["'-x red", "-Infinity", "", "false", ""]
    assert delimited([], ",") == "\n"
