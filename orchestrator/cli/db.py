"""The commands db upgrade and db prune."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK
from dscampaign.orchestrator.formatting import count

from .completion import campaign_argument
from .options import Verb, Verbs, agreed, json_option, store_options, yes_option
from .output import echo, echo_either, echo_err, echo_json
from .progress import progress_shown

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.retention import Thinning


@click.group(cls=Verbs)
def db() -> None:
    """Manage the store."""


@db.command(cls=Verb)
@store_options
@json_option
def upgrade(place: PlaceOptions, as_json: bool) -> int:
    """Create or upgrade the store's tables.

    SQLite needs this only after an upgrade of this program, PostgreSQL also before its first use. Stop reconcilers of
    the older version first. Jobs may keep running: their metrics wait in files.

    Examples:
      campaign db upgrade --store postgresql://me@db/campaigns
    """
    from dscampaign.db.store import Store
    from dscampaign.db.upgrade import upgrade as apply

    settings = locate(place).settings
    opened = Store.open(settings.store, check_schema=False)
    before, after = apply(opened)
    changed = f"{before or 'empty'} → {after}" if before != after else f"{after}, up to date"
    document = {"store": opened.url_without_password, "schema_before": before, "schema": after}
    echo_either(as_json, lambda: document, lambda _: f"{opened.url_without_password}: {changed}")
    return EXIT_OK


@db.command(cls=Verb)
@campaign_argument
@click.option(
    "--keep-every", type=click.IntRange(2, 1_000_000), metavar="N", help="Keep a step in N.  [default: the spec's]"
)
@click.option(
    "--after-days", type=click.FloatRange(0), metavar="D", help="Days since it ended.  [default: the spec's, or 30]"
)
@click.option("--dry-run", is_flag=True, help="Show the number of rows and stop.")
@yes_option
@store_options
@json_option
def prune(
    name: str | None,
    keep_every: int | None,
    after_days: float | None,
    dry_run: bool,
    yes: bool,
    place: PlaceOptions,
    as_json: bool,
) -> int:
    """Thin the metrics of runs that ended long ago, of a campaign or of all.

    Keeps one step in N of each run, and one sample in N of each GPU, by the spec's `retention` or by --keep-every.
    Held-out losses, values that are not finite, the first and the last step of each attempt, the lowest loss and the
    peaks of memory stay; figures of GPUs are computed before. Reports, exports and `campaign explain` name the thinned
    runs. Shows the number of rows, and asks. If it is interrupted, the same command finishes it.

    SQLite reuses the space but does not return it to the disk; `VACUUM` does, while the store is not in use.

    Examples:
      campaign db prune sweep --keep-every 10 --dry-run
      campaign db prune --yes
    """
    from dscampaign.orchestrator.campaign.lookup import campaigns_of
    from dscampaign.orchestrator.campaign.retention import thin, thinnings

    where = locate(place, [name])
    opened = where.open()
    wanted = thinnings(campaigns_of(opened, where.name), keep_every, after_days)
    with progress_shown(quiet=as_json):
        found = [thin(opened, one, dry_run=True) for one in wanted]
    found = [one for one in found if one.removed.runs]
    if not as_json:
        echo("\n".join(map(_thinning, found)) or "nothing to thin")
    if found and not dry_run:
        lines = sum(one.removed.steps + one.removed.figures + one.removed.samples for one in found)
        if not agreed(f"this removes {lines:,} rows of metrics", "Remove them?", yes):
            echo_err("nothing was removed")
            return EXIT_FAILED
        with progress_shown(quiet=as_json):
            found = [thin(opened, one, dry_run=False) for one in found]
        if not as_json:
            echo_err(f"removed {lines:,} rows")
    if as_json:
        echo_json({"campaigns": [one.document for one in found], "removed": bool(found) and not dry_run})
    return EXIT_OK


def _thinning(one: Thinning) -> str:
    removed, kept = one.removed, one.rule.keep_every
    rows = {"step": removed.steps, "figure": removed.figures, "GPU sample": removed.samples}
    parts = ", ".join(count(number, noun) for noun, number in rows.items() if number)
    return f"{one.campaign.name}: {count(removed.runs, 'run')}, one step in {kept} stays, {parts} go"
