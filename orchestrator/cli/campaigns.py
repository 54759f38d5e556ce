"""Commands about whole campaigns and their store: list, rm, gc, share, db."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.commands import SPEC, typed
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import count, size
from dscampaign.orchestrator.pages.text import Page, Style, table

from . import console

if TYPE_CHECKING:
    from dscampaign.db.store import Store
    from dscampaign.files.ours import Kept


@click.command("list", cls=console.Verb)
@console.store_options
@console.json_option
def list_campaigns(place: PlaceOptions, as_json: bool) -> None:
    """List the campaigns of the store.

    Shows owner, device-hours, last activity and runs by state.

    Examples:
      campaign list --store postgresql://me@db/campaigns
    """
    echo_overview(locate(place).open(), as_json)


def echo_overview(store: Store, as_json: bool) -> None:
    """Print all campaigns."""
    from dscampaign.orchestrator.campaign.status import overview_document, read_overview
    from dscampaign.orchestrator.pages.rows import OVERVIEW

    def overview(page: Page) -> str:
        cells = [[text(row) for text in OVERVIEW.values()] for row in rows]
        lines = table(page, tuple(OVERVIEW), cells, "--rrr-", ("by", "runs"))
        return "\n".join(lines) if rows else f"no campaign yet: `{typed('submit', SPEC)}` starts one"

    rows = read_overview(store)
    console.echo_either(as_json, lambda: overview_document(rows), overview)


@console.verb
@click.argument("name", metavar="NAME", shell_complete=console.names)
@console.yes_option
@console.store_options
def rm(name: str, yes: bool, place: PlaceOptions) -> None:
    """Remove a campaign.

    Lists its files, asks, and deletes them and its records in the store. Copies of code, other files, links and mounts
    stay. The campaign must be settled, or its folder deleted and no job left. If interrupted, run it again.

    Examples:
      campaign rm sweep --yes
    """
    from dscampaign.orchestrator.campaign.retention import removal_of, remove
    from dscampaign.orchestrator.campaign.selection import open_campaign

    opened, campaign = open_campaign(place, name)
    opened.check_writable()
    removal = removal_of(opened, campaign)
    listed = [] if removal.size_bytes is None else [f"deletes the files of the campaign in {removal.folder}"]
    console.echo_err("\n".join([*listed, *_kept(removal.kept)]))
    folder = "no folder" if removal.size_bytes is None else f"{size(removal.size_bytes)} in {removal.folder}"
    content = f"campaign {campaign.name}: {count(removal.runs, 'run')} with metrics and events; {folder}"
    console.confirm(f"this removes {content}", "Remove it?", yes, "nothing was removed")
    try:
        with console.progress_shown():
            removed = remove(opened, campaign)
    except KeyboardInterrupt:
        console.echo_err(f"interrupted: `{typed('rm', campaign.name)}` removes the rest")
        raise
    left = _kept([item for item in removed.kept if item not in removal.kept])
    console.echo_err("\n".join([f"removed {content}", *left]))


@console.verb
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--dry-run", is_flag=True, help="List the files and stop.")
@console.yes_option
@console.store_options
def gc(name: str | None, dry_run: bool, yes: bool, place: PlaceOptions) -> None:
    """Delete checkpoints that no result needs, of a campaign or of all.

    Lists, asks, and deletes checkpoints of the built-in trainer: of settled runs beyond train.keep_checkpoints, and
    half-written after an hour.

    Examples:
      campaign gc sweep
    """
    from dscampaign.orchestrator.campaign.retention import GarbageKind, collect, find_garbage
    from dscampaign.orchestrator.campaign.selection import campaigns_of

    location = locate(place, [name])
    opened = location.open()
    chosen = campaigns_of(opened, location.name)
    garbage = find_garbage(opened, chosen)
    lines = [f"deletes {item.path}" for item in garbage.items]
    for kind in GarbageKind:
        if sizes := [item.size_bytes for item in garbage.items if item.kind is kind]:
            lines += [f"{size(sum(sizes)):>8}  {kind} ({len(sizes):,})"]
    lines += [f"{size(garbage.size_bytes):>8}  in all" if lines else "nothing to delete"]
    console.echo("\n".join([*lines, *_kept(garbage.kept)]))
    if not garbage.items or dry_run:
        return
    console.confirm(f"this deletes {size(garbage.size_bytes)}", "Delete it?", yes, "nothing was deleted")
    removed = collect(opened, garbage, chosen)
    console.echo_err("\n".join([*_kept(removed.kept), f"deleted {size(removed.size_bytes)}"]))


def _kept(kept: Sequence[Kept]) -> list[str]:
    return [f"keeps {item.path}: {item.why}" for item in kept]


@console.verb
@console.campaign_argument
@click.option("--group", metavar="GROUP", help="Group that may read.  [default: the present group, else your own]")
@click.option("--checkpoints", is_flag=True, help="Share checkpoints too.")
@click.option("--stop", is_flag=True, help="Take it back: nobody else may read the campaign.")
@console.store_options
def share(name: str | None, group: str | None, checkpoints: bool, stop: bool, place: PlaceOptions) -> None:
    """Let a group read a campaign.

    The group reads the folders of runs and a whole SQLite store, but neither job files nor, without --checkpoints,
    checkpoints. `dir` may hold no other files.

    Examples:
      campaign share sweep --group vision
    """
    from dscampaign.orchestrator.campaign.selection import open_campaign
    from dscampaign.orchestrator.campaign.sharing import share as share_with
    from dscampaign.orchestrator.campaign.sharing import unshare

    if stop and (group or checkpoints):
        raise UserError("--stop takes everything back", "leave --group and --checkpoints out")
    opened, campaign = open_campaign(place, name)
    if stop:
        others = unshare(opened, campaign)
        lines = [f"{campaign.name} is yours alone again."]
        lines += [f"The store stays readable: {', '.join(others)} in {campaign.dir} is shared."] if others else []
    else:
        done = share_with(opened, campaign, group, checkpoints=checkpoints)
        lines = [f"Group {done.group} can read, not write:", *_places(done.readable)]
        lines += ["Checkpoints and job files stay yours alone; --checkpoints shares checkpoints."] * (not checkpoints)
        if done.blocked:
            warning = f"These still keep {done.group} out:"
            lines += [console.page_for(sys.stdout).paint(warning, Style.YELLOW), *_places(done.blocked)]
        usual = opened.url_without_login == f"sqlite:///{campaign.dir}/campaign.db"
        at = ("--dir", campaign.dir) if usual else ("--store", opened.url_without_login)
        lines += [f"They type `{shlex.join(['campaign', 'status', campaign.name, *at])}`."]
    console.echo_page("\n".join(lines))


def _places(places: Mapping[Path, str]) -> list[str]:
    return [f"  {path}: {text}" if path.parts else f"  {text}" for path, text in places.items()]


@click.group(cls=console.Verbs)
def db() -> None:
    """Manage the store."""


@db.command(cls=console.Verb)
@console.store_options
def upgrade(place: PlaceOptions) -> None:
    """Create or upgrade the store's tables.

    SQLite needs this only after an upgrade of this program, PostgreSQL also before its first use. Stop reconcilers of
    the older version first; jobs may keep running.

    Examples:
      campaign db upgrade
    """
    from dscampaign.db.store import Store
    from dscampaign.db.upgrade import upgrade as apply

    settings = locate(place).settings
    opened = Store.open(settings.store, check_schema=False)
    before, after = apply(opened)
    changed = f"{before or 'empty'} → {after}" if before != after else f"{after}, up to date"
    console.echo_page(f"{opened.url_without_password}: {changed}")


@db.command(cls=console.Verb)
@console.campaign_argument
@click.option(
    "--keep-every", type=click.IntRange(2, 1_000_000), metavar="N", help="Keep a step in N.  [default: the spec's]"
)
@click.option(
    "--after-days", type=click.FloatRange(0), metavar="D", help="Days since it ended.  [default: the spec's, or 30]"
)
@click.option("--dry-run", is_flag=True, help="Show the number of rows and stop.")
@console.yes_option
@console.store_options
def prune(
    name: str | None, keep_every: int | None, after_days: float | None, dry_run: bool, yes: bool, place: PlaceOptions
) -> None:
    """Thin the metrics of runs that ended long ago, of a campaign or of all.

    Keeps a step in N of each run, a sample in N of each GPU, and all that figures need. If interrupted, run it again.
    SQLite reuses the space; `VACUUM` returns it to the disk, while nothing uses the store.

    Examples:
      campaign db prune sweep --keep-every 10 --dry-run
    """
    from dscampaign.orchestrator.campaign.retention import thin, thinnings
    from dscampaign.orchestrator.campaign.selection import campaigns_of

    location = locate(place, [name])
    opened = location.open()
    wanted = thinnings(campaigns_of(opened, location.name), keep_every, after_days)
    with console.progress_shown():
        previews = [(*each, pruned) for each in wanted if (pruned := thin(opened, *each, dry_run=True)).runs]
    for campaign, rule, pruned in previews:
        runs, rows = count(pruned.runs, "run"), count(pruned.rows, "row")
        console.echo(f"{campaign.name}: {runs}, one step in {rule.keep_every} stays, {rows} of metrics go")
    if not previews:
        console.echo("nothing to thin")
    if previews and not dry_run:
        lines = sum(pruned.rows for _, _, pruned in previews)
        console.confirm(f"this removes {lines:,} rows of metrics", "Remove them?", yes, "nothing was removed")
        with console.progress_shown():
            for campaign, rule, _ in previews:
                thin(opened, campaign, rule, dry_run=False)
        console.echo_err(f"removed {lines:,} rows")
