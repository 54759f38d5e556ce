"""`-o FORMAT`: the rows of a command's table for spreadsheets and programs."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.cli.options import ALIASES, delimited
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


@pytest.mark.parametrize("words", [["status"], ["plan", "plan.yaml"]])
def test_a_run_has_the_columns_of_an_export(capsys: Output, words: list[str]) -> None:
    [first, *_] = csv.DictReader(io.StringIO(printed(capsys, *words, "-o", "csv")))
    assert first["param.lr"] == "0.1"
    assert not [name for name in first if name.startswith("params")]


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


def test_the_figures_of_a_comparison_are_lines(capsys: Output) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "compare", "sweep", "done-r0", "bad", "-o", "csv"))))
    assert {(row["left"], row["right"]) for row in rows} == {("done-r0", "bad")}
    assert "final loss" in [row["figure"] for row in rows]


def test_json_is_a_synonym_and_a_table_the_default(capsys: Output) -> None:
    assert printed(capsys, "plan", "plan.yaml", "--json") == printed(capsys, "plan", "plan.yaml", "-o", "json")
    ages = [re.sub(r"\d+ s ago", "", printed(capsys, *words)) for words in (["list", "-o", "table"], ["list"])]
    assert ages[0] == ages[1]
    assert printed(capsys, "explain", "-o", "json") == printed(capsys, "explain", "--json")


@pytest.mark.parametrize("name", ALIASES)
def test_a_command_has_the_names_that_other_tools_give_it(name: str, capsys: Output) -> None:
    assert main([name, "--help"]) == 0
    assert f"Usage: campaign {ALIASES[name].split()[0]} " in capsys.readouterr().out


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
