"""Writes a report into a folder: each file whole or not at all."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from altair.utils.schemapi import debug_mode

from dscampaign.files.atomic_files import read_json
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import printable, spreadsheet_cells
from dscampaign.orchestrator.report.compare.results import Results
from dscampaign.orchestrator.user_files import refuse_links_of_others, whole_file

from .data import condition_rows, document_of
from .details import details
from .looks import looks_of
from .questions import questions
from .render import html_page, markdown_page, pictures_of
from .summary import summary

PAGE: Final = "report.html"


def write_report(results: Results, folder: Path, made_s: float) -> list[Path]:
    """Write the page, its Markdown, the tables, and the figures; return what was written, the page first.

    Makes the folder if needed; `made_s` is now, in seconds since 1970. Raises UserError if it cannot be written.
    """
    looks = looks_of(results)
    with debug_mode(arg=False):  # which validates each part of a chart
        first = summary(results, looks)
        sections = [first, *questions(results, looks, first)]
    sections = [section for section in (*sections, *details(results)) if not section.is_empty]
    svgs = pictures_of([chart for section in sections for chart in section.charts])
    document, figures = document_of(results), {name: f"figures/{name}.svg" for name in svgs}
    files = {
        "report.json": json.dumps(document, allow_nan=False) + "\n",  # first: it makes the others of a report
        PAGE: html_page(results, sections, looks, made_s),
        "report.md": markdown_page(results, sections, figures, made_s),
        "conditions.csv": _csv(*condition_rows(document)),
        **{figures[name]: svg for name, svg in svgs.items()},
    }
    there = [folder / name for name in files if (folder / name).exists()]
    if there and not {"schema_version", "campaign", "workloads"} <= (read_json(folder / "report.json") or {}).keys():
        raise UserError(f"{there[0]} exists and belongs to no report", "name another folder: --output FOLDER")
    write_files(folder, files)
    return [folder / name for name in sorted(files, key=lambda name: name != PAGE)]


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder and its folder of figures; raise UserError if they cannot be written."""
    try:
        refuse_links_of_others(folder, folder / "figures")
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with whole_file(folder / name, binary=True) as stream:
                stream.write(content.encode())
    except OSError as error:
        raise UserError(f"cannot write {error.filename or folder}: {error.strerror}", "name another folder") from error


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(spreadsheet_cells(columns))
    writer.writerows(map(spreadsheet_cells, rows))
    return printable(stream.getvalue())
