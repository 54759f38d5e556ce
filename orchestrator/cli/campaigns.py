"""Commands about all campaigns of a store: list, rm, gc."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.commands import SPEC, typed
from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK
from dscampaign.orchestrator.formatting import count, duration, size

from .completion import names
from .options import Verb, agreed, json_option, store_options, verb, yes_option
from .output import echo, echo_err, echo_json, echo_page, page_for
from .output_format import TABLE, echo_rows, format_options
from .pages.text import Cell, Page, table
from .progress import progress_shown

if TYPE_CHECKING:
    from dscampaign.files.ours import Kept
    from dscampaign.orchestrator.campaign.overview import CampaignOverview
    from dscampaign.orchestrator.campaign.retention import Garbage


@click.command("list", cls=Verb)
@store_options
@format_options
def list_campaigns(place: PlaceOptions, form: str) -> int:
    """List the campaigns of the store.

    Shows the owner, the device-hours (GPUs, else ranks), the last activity and the runs by state of each campaign,
    the most recently active first.

    Examples:
      campaign list
      campaign list -o csv
      campaign list --store postgresql://me@db/campaigns
    """
    from dscampaign.orchestrator.campaign.overview import overview_document, read_overview

    rows = read_overview(locate(place).open())
    if form == TABLE:
        echo_page("\n".join(_overview(rows, page_for(sys.stdout))))
    else:
        echo_rows(form, overview_document(rows), lambda found: found["campaigns"])
    return EXIT_OK


@verb
@click.argument("name", metavar="NAME", shell_complete=names)
@yes_option
@store_options
@json_option
def rm(name: str, yes: bool, place: PlaceOptions, as_json: bool) -> int:
    """Remove a campaign.

    Deletes its files, with checkpoints and logs, and its records in the store. Other files in its folder, symbolic
    links and mounts stay, and are listed. The campaign must be settled, or its folder deleted and no job left. Lists
    the files, and asks. If it is interrupted, the same command finishes it.

    Examples:
      campaign rm sweep
      campaign rm sweep --yes
    """
    from dscampaign.orchestrator.campaign.lookup import open_campaign
    from dscampaign.orchestrator.campaign.removal import removal_of, remove

    from .watch import terminated_as_interrupted

    opened, campaign = open_campaign(place, name)
    opened.check_writable()
    found = removal_of(opened, campaign)
    if not as_json:
        echo_err("\n".join([*found.listing, *_kept(found.kept)]))
    folder = "no folder" if found.size_bytes is None else f"{size(found.size_bytes)} in {found.folder}"
    content = f"campaign {campaign.name}: {count(found.runs, 'run')} with metrics and events; {folder}"
    if not agreed(f"this removes {content}", "Remove it?", yes):
        echo_err("nothing was removed")
        return EXIT_FAILED
    with terminated_as_interrupted():
        try:
            with progress_shown(quiet=as_json):
                gone = remove(opened, campaign)
        except KeyboardInterrupt:
            echo_err(f"interrupted: `{typed('rm', campaign.name)}` removes the rest")
            raise
    if as_json:
        done = {"campaign": campaign.name, "runs": found.runs, "size_bytes": found.size_bytes, "removed": True}
        echo_json({**done, "kept": [_kept_document(one) for one in gone.kept]})
    else:
        echo_err("\n".join([f"removed {content}", *_kept([one for one in gone.kept if one not in found.kept])]))
    return EXIT_OK


@verb
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--dry-run", is_flag=True, help="List the files and stop.")
@yes_option
@store_options
@json_option
def gc(name: str | None, dry_run: bool, yes: bool, place: PlaceOptions, as_json: bool) -> int:
    """Delete files that no result needs, of a campaign or of all.

    Deletes checkpoints of settled runs beyond train.keep_checkpoints, copies of code that no attempt ran, metrics files
    that the store has in full, and left-over temporary files; all but checkpoints only once they are an hour old. Lists
    the files and the size of each kind, and asks. Never touches unsettled runs, your own files, symbolic links and
    mounts.

    Examples:
      campaign gc --dry-run
      campaign gc sweep --yes
    """
    from dscampaign.orchestrator.campaign.lookup import campaigns_of
    from dscampaign.orchestrator.campaign.retention import collect, find_garbage

    where = locate(place, [name])
    opened = where.open()
    chosen, shared = campaigns_of(opened, where.name), Path(where.settings.dir)
    found = find_garbage(opened, chosen, shared)
    if not as_json:
        echo("\n".join(_garbage(found)))
    if not found.items or dry_run:
        if as_json:
            echo_json(_garbage_document(found, deleted=False))
        return EXIT_OK
    if not agreed(f"this deletes {size(found.size_bytes)}", "Delete it?", yes):
        echo_err("nothing was deleted")
        return EXIT_FAILED
    gone = collect(opened, found, chosen, shared)
    for note in [*gone.notes, *_kept(gone.kept)]:
        echo_err(note)
    if as_json:
        echo_json(_garbage_document(gone, deleted=True))
    else:
        echo_err(f"deleted {size(gone.size_bytes)}")
    return EXIT_OK


def _overview(rows: Sequence[CampaignOverview], page: Page) -> list[str]:
    from .pages.states import counts_line

    if not rows:
        return [f"no campaign yet: `{typed('submit', SPEC)}` starts one"]
    header = ("campaign", "by", "runs", "device-hours", "last activity", "states")
    cells: list[list[Cell | str]] = [
        [
            row.campaign.name,
            row.user,
            f"{row.counts.total:,}",
            f"{row.device_hours:,.1f}",
            f"{duration(row.quiet_s)} ago",
            "being removed" if row.removed else counts_line(Page(), row.totals.shown, row.counts.early),
        ]
        for row in rows
    ]
    return table(page, header, cells, "--rrr-", ("by", "runs"))


def _garbage(found: Garbage) -> list[str]:
    from dscampaign.orchestrator.campaign.retention import GarbageKind

    lines = [f"deletes {item.path}" for item in found.items]
    for kind in GarbageKind:
        if items := found.of(kind):
            lines += [f"{size(sum(item.size_bytes for item in items)):>8}  {kind} ({len(items):,})"]
    lines += [f"{size(found.size_bytes):>8}  in all" if lines else "nothing to delete"]
    return [*lines, *_kept(found.kept), *found.notes]


def _kept(kept: Sequence[Kept]) -> list[str]:
    return [f"keeps {item.path}: {item.why}" for item in kept]


def _kept_document(kept: Kept) -> dict[str, str]:
    return {"path": str(kept.path), "why": kept.why}


def _garbage_document(found: Garbage, *, deleted: bool) -> dict[str, Any]:
    items = [{"kind": i.kind.name.lower(), "path": str(i.path), "size_bytes": i.size_bytes} for i in found.items]
    done = {"deleted": deleted, "size_bytes": found.size_bytes, "items": items, "notes": list(found.notes)}
    return {**done, "kept": [_kept_document(one) for one in found.kept]}
