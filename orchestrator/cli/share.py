"""The command share."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions
from dscampaign.orchestrator.errors import EXIT_OK, UserError

from .completion import campaign_argument
from .options import json_option, store_options, verb
from .output import echo_either
from .pages.text import Page, Style

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.sharing import SharedCampaign, SharedPlace


@verb
@campaign_argument
@click.option("--group", metavar="GROUP", help="Group that may read.  [default: the present group, else your own]")
@click.option("--checkpoints", is_flag=True, help="Share checkpoints too.")
@click.option("--stop", is_flag=True, help="Take it back: nobody else may read the campaign.")
@store_options
@json_option
def share(
    name: str | None, group: str | None, checkpoints: bool, stop: bool, place: PlaceOptions, as_json: bool
) -> int:
    """Let a group read a campaign.

    By default only you can read the shared folder. This lets a group use `status`, `explain`, `logs`, `report`,
    `recommend` and `compare`: it can read the folders of the runs, now and later, and a SQLite store with everything in
    it. It cannot write, read job files and their environment, or, without --checkpoints, read checkpoints. Lists the
    readable folders, and the folders that still keep the group out. Refuses if other files lie in `dir`, which the
    group could then read: this campaign needs a `dir` of its own.

    Examples:
      campaign share sweep --group vision
      campaign share sweep --checkpoints
      campaign share sweep --stop
    """
    from dscampaign.orchestrator.campaign.lookup import open_campaign
    from dscampaign.orchestrator.campaign.sharing import share as share_with
    from dscampaign.orchestrator.campaign.sharing import unshare

    if stop and (group or checkpoints):
        raise UserError("--stop takes everything back", "leave --group and --checkpoints out")
    opened, campaign = open_campaign(place, name)
    done = unshare(opened, campaign) if stop else share_with(opened, campaign, group, checkpoints=checkpoints)
    echo_either(as_json, lambda: done.document, lambda page: "\n".join(_page(done, page)))
    return EXIT_OK


def _page(done: SharedCampaign, page: Page) -> list[str]:
    if done.sharing is None:
        lines = [f"{done.campaign} is yours alone again."]
        if done.shared_with:
            lines += [f"The store stays readable: {', '.join(done.shared_with)} in {done.dir} is shared."]
        return lines
    group = done.sharing.group
    lines = [f"Group {group} can read, not write:", *_places(done.readable)]
    if not done.sharing.checkpoints:
        lines += ["Checkpoints and job files stay yours alone; --checkpoints shares checkpoints."]
    if done.blocked:
        lines += [page.paint(f"These still keep {group} out:", Style.YELLOW), *_places(done.blocked)]
    return [*lines, f"They type `campaign status {done.campaign} --dir {shlex.quote(str(done.dir))}`."]


def _places(places: tuple[SharedPlace, ...]) -> list[str]:
    return [f"  {place.path}: {place.what}" if place.path.parts else f"  {place.what}" for place in places]
