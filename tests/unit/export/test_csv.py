"""CSV as spreadsheets open it: no text of a script is a formula, and a number is a number."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from dscampaign.orchestrator.export.rows import write_csv
from dscampaign.orchestrator.formatting import spreadsheet_cells


def written(columns: list[str], *rows: list[object]) -> list[list[str]]:
    stream = io.StringIO(newline="")
    assert write_csv(stream, "c", "steps", columns, rows) == len(rows)
    return list(csv.reader(io.StringIO(stream.getvalue(), newline="")))


def test_no_carriage_return_begins_a_row() -> None:
    assert written(["a"], ["x\r=1\r\ny"]) == [["a"], ["x\n=1\ny"]]


def test_numbers_and_missing_values_stay() -> None:
    values: list[object] = [
        -1,
        -2.5,
        float("-inf"),
        float("nan"),
        None,
        True,
        "-3.5e-4",
        "-Infinity",
        "",
        "'=1",
        "[-1]",
    ]
    assert spreadsheet_cells(values)[:3] == [-1, -2.5, float("-inf")]
    said = ["-1", "-2.5", "-inf", "nan", "", "true", "-3.5e-4", "-Infinity", "", "'=1", "[-1]"]
    assert written(["a"] * len(values), values)[1] == said


@given(st.text())
def test_what_begins_like_a_formula_is_a_number_or_has_an_apostrophe(text: str) -> None:
    [cell] = spreadsheet_cells([text])
    assert "\r" not in cell
    if cell[:1] in ("=", "+", "-", "@", "\t", "\n"):
        float(cell)
