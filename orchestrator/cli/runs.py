"""Commands that change the desired state and then run a pass of the reconciler: submit, reconcile, cancel, retry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.commands import SPEC, typed
from dscampaign.orchestrator.errors import EXIT_OK, EXIT_UNREACHABLE, EXIT_UNSETTLED, UserError

from . import console
from .spec import read_submission, set_option, spec_argument, warn_of_other_store

if TYPE_CHECKING:
    from dscampaign.db.records import CampaignRow
    from dscampaign.db.store import Store
    from dscampaign.orchestrator.api.passes import Detaching
    from dscampaign.orchestrator.campaign.selection import Selection
    from dscampaign.orchestrator.settings import Settings


@console.verb
@spec_argument
@set_option
@console.yes_option
@click.option("--watch", "-w", is_flag=True, help="Then reconcile until every run is settled.")
@click.option(
    "--detach/--no-detach",
    default=None,
    help="Leave retries to a job, or on this host to a process.  [default: to a job, if the store can be opened there]",
)
@console.store_options
@console.json_option
def submit(
    spec: Path, sets: Sequence[str], yes: bool, watch: bool, detach: bool | None, place: PlaceOptions, as_json: bool
) -> int:
    """Submit the runs of a spec that are not in the store yet.

    Shows the plan, asks if it is large, and submits new runs: submitting again is safe. A finished run continues if the
    spec has more steps and a constant learning rate. A small job then retries failed runs.

    Examples:
      campaign submit campaign.yaml --yes --watch
      campaign submit campaign.yaml --set train.steps=10 --set name=trial
    """
    from dscampaign.orchestrator.api.passes import Detaching

    if watch and detach:
        raise UserError("--watch or --detach, not both")
    with console.progress_shown(quiet=as_json):
        settings, recorded = _record(spec, sets, place, yes=yes)
    if watch:
        return _watch(*recorded, None, as_json)
    return _one_pass(*recorded, as_json, then=Detaching(settings, detach))


def _record(
    spec: Path, sets: Sequence[str], place: PlaceOptions, *, yes: bool
) -> tuple[Settings, tuple[Store, CampaignRow]]:
    """Show the plan, and record its runs if the user agrees.

    A function of its own: the specs of thousands of runs take more memory than the pass that follows.
    """
    from dscampaign.orchestrator.api.submission import Proposal
    from dscampaign.orchestrator.pages.plan import plan_page

    submission, location = read_submission(spec, sets, place)
    warn_of_other_store(location)
    proposal = Proposal(submission, location)
    console.echo_err(plan_page(proposal.plan, console.page_for(sys.stderr)))
    console.confirm(proposal.doubt, "Submit?", yes, "nothing was submitted")
    try:
        return location.settings, proposal.record()
    except KeyboardInterrupt:
        console.echo_err(f"interrupted before anything was submitted; `{typed('submit', SPEC)}` begins again")
        raise


@console.verb
@console.campaign_argument
@click.option("--watch", "-w", is_flag=True, help="Repeat until every run is settled.")
@click.option("--detach", is_flag=True, help="Leave it to a job, or on this host to a process.")
@click.option("--all-campaigns", "everything", is_flag=True, help="Drive every campaign that is not settled.")
@click.option("--interval", type=float, metavar="SECONDS", help="Time between passes.  [default: 10, Slurm's minimum]")
@console.store_options
@console.json_option
def reconcile(
    name: str | None,
    watch: bool,
    detach: bool,
    everything: bool,
    interval: float | None,
    place: PlaceOptions,
    as_json: bool,
) -> int:
    """Drive campaigns to completion.

    Records the ends of jobs, retries failed runs and resumes interrupted runs. Stop and restart it at any time. Exit
    code 0: all runs completed or were cancelled. 1: settled, but runs failed or are held. 8: not settled.

    Examples:
      campaign reconcile sweep --watch
    """
    from dscampaign.orchestrator.api.passes import Detaching
    from dscampaign.orchestrator.campaign.selection import open_campaign

    if interval is not None and not watch:
        raise UserError("--interval is for --watch")
    if detach and (watch or everything):
        raise UserError(f"--detach or {'--watch' if watch else '--all-campaigns'}, not both", "it drives all campaigns")
    if everything:
        from .watch import reconcile_all

        if name is not None:
            raise UserError(f"--all-campaigns or {name}, not both")
        return reconcile_all(locate(place).open(), as_json, interval, watch=watch)
    opened, campaign = open_campaign(place, name)
    if watch:
        return _watch(opened, campaign, interval, as_json)
    then = Detaching(locate(place, [name]).settings, True) if detach else None
    return _one_pass(opened, campaign, as_json, report_unsettled=not detach, then=then)


@console.verb
@console.runs_argument
@click.option("--all", "everything", is_flag=True, help="Cancel the whole campaign.")
@console.selection_options
@console.store_options
@console.json_option
def cancel(words: Sequence[str], everything: bool, chosen: Selection, place: PlaceOptions, as_json: bool) -> int:
    """Cancel runs and their jobs.

    Cancelled runs keep their metrics; `campaign retry` resumes them.

    Examples:
      campaign cancel sweep 'zero_stage-3*' --state queued
    """
    from dscampaign.orchestrator.campaign import desired
    from dscampaign.orchestrator.campaign.documents import status_document
    from dscampaign.orchestrator.campaign.selection import names_of, open_selection

    opened, campaign, chosen = open_selection(place, words, chosen)
    if bool(chosen) is everything:
        raise UserError("which runs?", f"name them, or `{typed('cancel', campaign.name, '--all')}`")
    names = names_of(opened, campaign, chosen)
    with console.progress_shown(quiet=as_json):
        effect = desired.cancel(opened, campaign, names)
    console.echo_err(chosen.none(campaign.name) if names == [] else effect.text)
    if not effect.changed:
        if as_json:
            console.echo_json(status_document(opened, campaign))
        return EXIT_OK
    argument = "--all" if everything else names[0] if names and len(names) == 1 else "RUN"
    code = _one_pass(opened, campaign, as_json, cancelled=typed("retry", campaign.name, argument))
    return EXIT_UNREACHABLE if code == EXIT_UNREACHABLE else EXIT_OK


@console.verb
@console.runs_argument
@click.option("--all", "everything", is_flag=True, help="Retry every failed, held or cancelled run of the spec.")
@console.selection_options
@console.yes_option
@console.store_options
@console.json_option
def retry(
    words: Sequence[str], everything: bool, chosen: Selection, yes: bool, place: PlaceOptions, as_json: bool
) -> int:
    """Retry failed, held or cancelled runs.

    Each resumes from its last checkpoint, with fresh retry budgets and its present script. Without RUN, retries failed
    and held runs. Runs that completed early need RUN or an option, runs that left the spec need RUN.

    Examples:
      campaign retry sweep 'zero_stage-3*' --state cancelled
    """
    from dscampaign.orchestrator.api.campaign import planned_retry
    from dscampaign.orchestrator.api.passes import Detaching
    from dscampaign.orchestrator.api.submission import large
    from dscampaign.orchestrator.campaign import desired
    from dscampaign.orchestrator.campaign.selection import open_selection

    opened, campaign, chosen = open_selection(place, words, chosen)
    if chosen and everything:
        raise UserError("which runs?", "--all or RUN, not both")
    planned = planned_retry(opened, campaign, chosen, cancelled=everything)
    nothing = chosen and not (planned.changed or planned.left)
    console.echo_err(chosen.none(campaign.name) if nothing else planned.text)
    doubt = large(locate(place, words).settings, len(planned.changed), planned.hours)
    if everything or sys.stdin.isatty():  # a crontab retries failed runs however many there are
        console.confirm(doubt, "Submit?", yes, "nothing was retried")
    desired.retry(opened, campaign, [run.name for run in planned.changed])
    then = Detaching(locate(place, words).settings, None) if planned.changed else None
    return _one_pass(opened, campaign, as_json, changed=bool(planned.changed), then=then)


def _one_pass(
    store: Store,
    campaign: CampaignRow,
    as_json: bool,
    *,
    report_unsettled: bool = False,
    cancelled: str = "",
    changed: bool = True,
    then: Detaching | None = None,
) -> int:
    """Run one pass, printed line by line, then print the status; return the exit code.

    With `cancelled`, the command that resumes the cancelled runs, a second pass sees that their jobs have ended;
    `changed`: another reconciler has something to apply; `then` may start a reconciler that goes on.
    """
    from dscampaign.orchestrator.campaign.status import read_status, with_queue
    from dscampaign.orchestrator.pages.status import retries_line

    from .watch import exit_code_of_passes, print_end, run_one_pass

    status, troubled = run_one_pass(store, campaign, quiet=as_json, changed=changed, cancelled=bool(cancelled))
    begun = then is not None and not status.settled and then.start(store, campaign, console.echo_err)
    status = with_queue(store, read_status(store, campaign) if begun else status)
    whole = print_end(status, store, as_json, brief=True)
    goes_on = status.acting or status.queue
    if then and not status.settled and goes_on:
        console.echo_err(retries_line(status))
        console.echo_next(f"{typed('status', campaign.name)}{'   (nothing has to stay open)' if begun else ''}")
    elif not whole and not status.settled and not goes_on:
        console.echo_next(
            f"{typed('reconcile', campaign.name, '--detach')}   (jobs run on; until then none is retried)"
        )
    elif cancelled:
        console.echo_next(f"{cancelled}   (to resume it later)")
    code = exit_code_of_passes(status, troubled=troubled)
    return EXIT_OK if code == EXIT_UNSETTLED and not report_unsettled else code


def _watch(store: Store, campaign: CampaignRow, interval_s: float | None, as_json: bool) -> int:
    from dscampaign.orchestrator.campaign.status import read_status

    from .watch import exit_code_of_passes, patiently, print_end, watch_passes

    watch_passes(store, campaign, interval_s)
    status = patiently(lambda: read_status(store, campaign))
    patiently(lambda: print_end(status, store, as_json))
    return exit_code_of_passes(status, troubled=False)
