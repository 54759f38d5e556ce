"""Commands that evaluate the results: report, recommend, compare."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_UNDECIDED, needs_the_extra
from dscampaign.orchestrator.spec.objective import Objective

from . import console

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.status import CampaignStatus
    from dscampaign.orchestrator.report.compare.results import Results

_baseline: Final = click.option(
    "--baseline", metavar="NAME", help="Condition to compare with.  [default: of the spec, else ddp, else the first]"
)


@console.verb
@console.campaign_argument
@click.option("--output", type=click.Path(path_type=Path), help="Folder to write.  [default: NAME-report]")
@_baseline
@click.option("--watch", "-w", is_flag=True, help="Write it again whenever a run has changed, until all are settled.")
@console.store_options
@console.json_option
def report(
    name: str | None, output: Path | None, baseline: str | None, watch: bool, place: PlaceOptions, as_json: bool
) -> None:
    """Write a report of the results, with tables and figures.

    report.html opens offline; the folder also holds Markdown, JSON, CSV and SVG.

    Examples:
      campaign report sweep --output results --baseline zero_stage-0
    """
    with needs_the_extra(), console.progress_shown(quiet=as_json or watch):
        from dscampaign.orchestrator.api.results import measured
        from dscampaign.orchestrator.campaign.selection import open_campaign
        from dscampaign.orchestrator.pages.report import answers_page
        from dscampaign.orchestrator.pages.status import headline
        from dscampaign.orchestrator.report.page.data import document_of
        from dscampaign.orchestrator.report.page.write import write_report

        opened, campaign = open_campaign(place, name)
        folder = output or Path(f"{campaign.name}-report")

        def write(status: CampaignStatus | None = None) -> Results:
            results = measured(opened, campaign, baseline)
            if watch or output or not as_json:
                page, *others = write_report(results, folder, time.time())
                if status:
                    now = headline(status, console.page_for(sys.stderr))
                    console.echo_err(f"{time.strftime('%H:%M:%S')} {page} · {now}")
                else:
                    console.echo_err(f"{page}, and {len(others)} more files beside it")
            return results

        if watch:
            from .watch import write_until_settled  # the reconciler, which takes a quarter of a second to load

            results = write_until_settled(opened, campaign, write)
        else:
            results = write()
        console.echo_either(as_json, lambda: document_of(results), lambda page: answers_page(results, page))
        console.echo_age(opened, campaign)


@console.verb
@console.campaign_argument
@_baseline
@click.option(
    "--by",
    type=click.Choice([objective.value for objective in Objective], case_sensitive=False),
    help="Objective.  [default: `objective` of the spec, else speed unless another learns better]",
)
@console.store_options
@console.json_option
def recommend(name: str | None, baseline: str | None, by: str | None, place: PlaceOptions, as_json: bool) -> None:
    """Recommend a configuration: a sentence, and all conditions, best first.

    Conditions that failed, ran changed or nearly filled the memory are out. Among the others speed leads, unless an
    axis changes the loss.

    Examples:
      campaign recommend sweep --by loss
    """
    with needs_the_extra(), console.progress_shown(quiet=as_json):
        from dscampaign.orchestrator.api.results import measured
        from dscampaign.orchestrator.campaign.selection import open_campaign
        from dscampaign.orchestrator.pages.report import answers_page
        from dscampaign.orchestrator.report.page.data import recommendation_document

        opened, campaign = open_campaign(place, name)
        results = measured(opened, campaign, baseline, Objective(by) if by else None)
        console.echo_either(as_json, lambda: recommendation_document(results), lambda page: answers_page(results, page))
        console.echo_age(opened, results.campaign)


@console.verb
@click.argument("words", metavar="[NAME] A B", nargs=-1, required=True, shell_complete=console.names)
@click.option("--fail-if", multiple=True, metavar="LIMIT,...", help="Exit with 1 if B is worse: slower=3%,loss=0.01.")
@console.store_options
@console.json_option
def compare(words: Sequence[str], fail_if: Sequence[str], place: PlaceOptions, as_json: bool) -> int:
    """Compare two runs, two conditions, or two campaigns.

    A condition is a run with its repeats, named after the first; that run alone is NAME-r0. CAMPAIGN/NAME is in another
    campaign. Of two campaigns, compares the conditions with the same parameters. If A and B are parts of titles
    ("deepspeed 0.19.8"), compares all conditions that differ only in these.

    With --fail-if, a limit fails if the whole interval is above it (exit code 1), passes if no part is (0), else is
    undecided (4).

    Examples:
      campaign compare zero_stage-1 zero_stage-2
      campaign compare sweep-before sweep-after --fail-if slower=3%,loss=0.01
    """
    with needs_the_extra():
        from dscampaign.orchestrator.pages.report import comparison_page
        from dscampaign.orchestrator.report.compare.difference import LimitOutcome, compare_operands, limits_of
        from dscampaign.orchestrator.report.page.data import comparison_document

        limits = limits_of(",".join(fail_if)) if fail_if else []
        location = locate(place, words)
        compared = compare_operands(opened := location.open(), location.words)
        console.echo_either(
            as_json, lambda: comparison_document(compared, limits), lambda page: comparison_page(compared, page, limits)
        )
        console.echo_age(opened, *compared.campaigns)
        outcomes = {check.outcome for comparison in compared.comparisons for check in comparison.checks(limits)}
        if LimitOutcome.FAILED in outcomes:
            return EXIT_FAILED
        return EXIT_UNDECIDED if LimitOutcome.UNDECIDED in outcomes else EXIT_OK
