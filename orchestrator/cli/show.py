"""Commands that only read: status, explain, logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK

from .options import (
    json_option,
    runs_argument,
    selection_options,
    store_options,
    verb,
)
from .output import echo_either, echo_err, echo_json, echo_screen, page_for, screen_height
from .pages.text import Page

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.selection import Selection


@verb
@runs_argument
@click.option("--watch", "-w", is_flag=True, help="Refresh every two seconds until every run is settled.")
@selection_options
@click.option("--all", "everything", is_flag=True, help="Show every run.")
@click.option("--wide", is_flag=True, help="Show every run with all columns.")
@store_options
@json_option
def status(
    words: Sequence[str],
    watch: bool,
    chosen: Selection,
    everything: bool,
    wide: bool,
    place: PlaceOptions,
    as_json: bool,
) -> int:
    """Show the status of a campaign.

    NAME is a campaign or its spec file; leave it out if there is only one. RUN may be a pattern. Loss and speed are
    those of the last step that the reconciler has read; a completed run has its final loss and speed. If runs do
    not fit on the screen, or all have ended, shows conditions (all repeats of a point) with medians, the worst first; a
    file or a pipe gets every run.

    Examples:
      campaign status sweep --watch
      campaign status sweep 'zero_stage-3*' --state queued,running
      campaign status sweep --json | jq '.runs[] | select(.state == "failed") | .name'
    """
    from dscampaign.orchestrator.campaign.documents import status_document
    from dscampaign.orchestrator.campaign.selection import open_selection
    from dscampaign.orchestrator.campaign.status import read_status, with_final_figures, with_titles

    from .pages.status import status_page

    opened, campaign, chosen = open_selection(place, words, chosen)
    if watch:
        from .watch import watch_status

        watch_status(opened, campaign, chosen)
    seen, page = read_status(opened, campaign), page_for(sys.stdout)
    shown = seen.of(chosen)
    if chosen and not shown.runs:
        echo_err(chosen.none(campaign.name))
    if as_json:
        echo_json(status_document(opened, campaign, chosen))
    else:
        page = Page(page.colour) if wide else page
        height = None if everything or wide or chosen else screen_height(sys.stdout)
        shown = with_final_figures(opened, with_titles(opened, shown) if height else shown)
        echo_screen(status_page(shown, page, height, seen if chosen else None))
    return EXIT_FAILED if watch and not seen.all_completed else EXIT_OK


@verb
@runs_argument
@click.option("--config", "settings", is_flag=True, help="Show the settings with their sources.")
@store_options
@json_option
def explain(words: Sequence[str], settings: bool, place: PlaceOptions, as_json: bool) -> int:
    """Explain the state of a run, or of a campaign.

    For a run: its configuration, why each attempt ended, the log line that proves it, what to do, and its events.

    Examples:
      campaign explain sweep
      campaign explain sweep zero_stage-3
      campaign explain --config
    """
    from dscampaign.orchestrator.campaign import documents
    from dscampaign.orchestrator.campaign.selection import find_run, open_selection

    from .pages.describe import campaign_page, run_page, settings_page

    if settings:
        shown = locate(place, words).settings.shown
        document = {"settings": [{"name": s.name, "value": s.value, "source": s.source} for s in shown]}
        echo_either(as_json, lambda: document, lambda page: settings_page(shown, page))
        return EXIT_OK
    opened, campaign, chosen = open_selection(place, words)
    if chosen:
        run = documents.run_details(opened, *find_run(opened, (campaign.name, *chosen.patterns)))
        echo_either(as_json, lambda: documents.run_document(run), lambda page: run_page(run, page))
    else:
        facts = documents.campaign_details(opened, campaign)
        echo_either(as_json, lambda: documents.campaign_document(facts), lambda page: campaign_page(facts, page))
    return EXIT_OK


@verb
@runs_argument
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Rank whose output to show.")
@click.option("--launcher", is_flag=True, help="Show the launcher's output on node --rank instead.")
@click.option("--attempt", type=click.IntRange(min=1), help="Attempt to show.  [default: the newest]")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="LINES", help="Show only the last LINES lines.")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the attempt ends; wait for a queued attempt.")
@store_options
def logs(
    words: Sequence[str],
    rank: int,
    launcher: bool,
    attempt: int | None,
    lines: int | None,
    follow: bool,
    place: PlaceOptions,
) -> int:
    """Show the output of a rank of a run.

    Until the rank prints something, shows the output of the launcher or of the batch job. On a terminal, shows progress
    bars in their last state, and passes colours but no other escape sequence; a file or a pipe gets the log as it is.

    Examples:
      campaign logs sweep zero_stage-2 -f
      campaign logs sweep zero_stage-2 --rank 3 --attempt 1 -n 50
    """
    from dscampaign.orchestrator.campaign.logs import Wanted, await_attempt, follow_log, newest_log, print_log
    from dscampaign.orchestrator.campaign.selection import find_run

    from .output import log_stream

    where = locate(place, words)
    campaign, run = find_run(opened := where.open(), where.words)
    if follow and attempt is None:
        await_attempt(opened, campaign, run, echo_err, time.sleep)
    wanted = Wanted.of(opened, campaign, run, rank=rank, launcher=launcher, generation=attempt)
    if follow:
        follow_log(wanted, lines, log_stream())
    else:
        path = newest_log(wanted)
        if not launcher and f"_rank{rank}." not in path.name:
            printed = "printed nothing" if wanted.ended else "has printed nothing yet"
            echo_err(f"rank {rank} {printed}; showing {path}")
        print_log(path, lines, log_stream())
    return EXIT_OK
