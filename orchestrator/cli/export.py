"""The command export."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions
from dscampaign.orchestrator.errors import EXIT_OK, UserError
from dscampaign.orchestrator.formatting import count, printable
from dscampaign.orchestrator.output_files import check_folder_of, whole_file
from dscampaign.orchestrator.progress import counted

from .completion import campaign_argument
from .options import format_option, store_options, verb
from .output import echo_err
from .progress import progress_shown

if TYPE_CHECKING:
    from dscampaign.db.records import CampaignRow
    from dscampaign.db.store import Store

FORMATS: Final = ("csv", "json", "parquet")
TABLES: Final = ("steps", "runs", "attempts", "gpus", "events")


@verb
@campaign_argument
@click.option("--what", type=click.Choice(TABLES), default="steps", show_default=True, help="Rows to export.")
@click.option("--output", type=click.Path(path_type=Path), help="File to write.  [default: standard output]")
@store_options
@format_option(*FORMATS, default=None)
def export(name: str | None, form: str | None, what: str, output: Path | None, place: PlaceOptions) -> int:
    """Export a campaign's results as CSV, JSON or Parquet.

    Each step appears once, as reported by the newest attempt that ran it. Files are written atomically. The default
    format is that of the file's name, or CSV. In Parquet, times are UTC timestamps.

    Examples:
      campaign export sweep --output steps.csv
      campaign export sweep --what runs -o json | jq '.rows[].loss'
      campaign export sweep --what gpus --output power.csv
      campaign export sweep --output steps.parquet
    """
    from dscampaign.orchestrator.campaign.lookup import open_campaign
    from dscampaign.orchestrator.export.arrow import require_pyarrow, write_parquet
    from dscampaign.orchestrator.export.rows import columns_and_rows, write_csv, write_json

    named = output.suffix.removeprefix(".") if output else ""
    form = form or (named if named in FORMATS else "csv")
    if form == "parquet":
        require_pyarrow()
        if output is None:
            raise UserError("Parquet cannot be printed", f"name a file: --output {what}.parquet")

    opened, campaign = open_campaign(place, name)
    writers: dict[str, Callable[..., int]] = {"csv": write_csv, "json": write_json, "parquet": write_parquet}
    with (
        _output(output, form) as stream,
        columns_and_rows(opened, campaign, what) as (columns, rows),
        progress_shown(quiet=output is None and sys.stdout.isatty()),
    ):
        number = writers[form](stream, campaign.name, what, columns, counted("rows", rows))
    echo_err(f"{number:,} rows" + (f" in {output}" if output else ""))
    if what in ("steps", "gpus") and (thinned := _thinned(opened, campaign)):
        echo_err(thinned)
    return EXIT_OK


def _thinned(store: Store, campaign: CampaignRow) -> str:
    from dscampaign.db.campaigns import thinned_runs

    with store.read() as conn:
        runs = thinned_runs(conn, campaign.id)
    return f"{count(len(runs), 'run')} thinned: as few as 1 row in {max(runs.values())} is left" if runs else ""


@contextmanager
def _output(path: Path | None, form: str) -> Iterator[IO[Any]]:
    """A stream to write to inside a transaction: a pager may wait, and gets all rows after it."""
    if path:
        check_folder_of(path)
    try:
        if path is not None:
            with whole_file(path, binary=form == "parquet") as stream:
                yield stream
            return
        with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as rows:
            yield rows
            rows.seek(0)
            sys.stdout.writelines(map(printable, rows) if sys.stdout.isatty() else rows)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"cannot write {path or 'the rows'}: {error.strerror}") from error
