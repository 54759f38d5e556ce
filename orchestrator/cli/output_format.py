"""Tables as people, spreadsheets or programs want them: `-o table|csv|tsv|json`, in one place for all commands."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Final

import click

from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import clean, spreadsheet_cells

from .options import Decorated, json_option
from .output import echo, echo_json

TABLE: Final = "table"
_JSON: Final = "json"
_SEPARATORS: Final = {"csv": ",", "tsv": "\t"}


def format_options(command: Decorated) -> Decorated:
    """`-o FORMAT`, and `--json` for `-o json`; the command is given the one word, as `form`."""

    @wraps(command)
    def with_form(*args: Any, form: str, as_json: bool = False, **options: Any) -> Any:
        if as_json and form not in (TABLE, _JSON):
            raise UserError(f"--json is -o json, not -o {form}", "leave one of the two out")
        return command(*args, form=_JSON if as_json else form, **options)

    chosen = click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice((TABLE, *_SEPARATORS, _JSON)),
        default=TABLE,
        show_default=True,
        help="How to print: as a table, as CSV or TSV with a line for each of its rows, or as one JSON document.",
    )
    return chosen(json_option(with_form))  # type: ignore[return-value] # click adds options to any function


def echo_rows(
    form: str, document: Mapping[str, Any], records: Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]]
) -> None:
    """Prints a command's document, or, as CSV or TSV, the records in it."""
    if form == _JSON:
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
    """A run's document with the columns that `campaign export --what runs` has: `param.*`, `forward.*`, `attempts`."""
    row = {name: value for name, value in run.items() if name not in ("params", "forwarded", "attempts")}
    for name, value in run.get("params", {}).items():
        row[f"param.{name}"] = json.dumps(value) if isinstance(value, Mapping) else value
    for tool, there in run.get("forwarded", {}).items():
        row[f"forward.{tool}"] = there.get("run_id")
    return row | ({"attempts": len(run["attempts"])} if "attempts" in run else {})
