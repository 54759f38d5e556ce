"""Tables for people, spreadsheets and programs: `-o table|csv|tsv|json`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from dscampaign.orchestrator.formatting import clean, spreadsheet_cells

from .options import JSON, format_option
from .output import echo, echo_json

TABLE: Final = "table"
_SEPARATORS: Final = {"csv": ",", "tsv": "\t"}


format_options: Final = format_option(TABLE, *_SEPARATORS, JSON, default=TABLE)
"""`-o FORMAT` of a command that prints a table."""


def echo_rows(
    form: str, document: Mapping[str, Any], records: Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]]
) -> None:
    """Print a command's document, or, as CSV or TSV, the records in it."""
    if form == JSON:
        echo_json(document)
    else:
        echo(delimited(records(document), _SEPARATORS[form]).removesuffix("\n"))


def delimited(records: Iterable[Mapping[str, Any]], separator: str) -> str:
    """A header and a line for each record: nested fields have dots in their names, lists are JSON."""
    from dscampaign.orchestrator.campaign.documents import columns_of

    columns, rows = columns_of(list(records))
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    for row in (columns, *rows):
        writer.writerow(spreadsheet_cells(clean(value) if isinstance(value, str) else value for value in row))
    return text.getvalue()


def row_of_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's document with the columns of `campaign export --what runs`: `param.*`, `forward.*`, `attempts`."""
    row = {name: value for name, value in run.items() if name not in ("params", "forwarded", "attempts")}
    for name, value in run.get("params", {}).items():
        row[f"param.{name}"] = json.dumps(value) if isinstance(value, Mapping) else value
    for tool, there in run.get("forwarded", {}).items():
        row[f"forward.{tool}"] = there.get("run_id")
    return row | ({"attempts": len(run["attempts"])} if "attempts" in run else {})
