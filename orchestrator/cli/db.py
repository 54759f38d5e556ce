"""The verb about the store itself: db upgrade."""

from __future__ import annotations

import click

from ..campaign.location import locate
from ..errors import EXIT_OK
from .common import Verb, Verbs, echo, store_options


@click.group(cls=Verbs)
def db() -> None:
    """Look after the store."""


@db.command(cls=Verb)
@store_options
def upgrade(dir: str | None, store: str | None) -> int:
    """Make the store's tables, or bring them up to date.

    A SQLite file gets its tables by itself; a PostgreSQL database gets them from this command alone. Stop the
    reconcilers of the older version first; jobs may go on, their metrics wait in files.

    Examples:
      campaign db upgrade --store postgresql://me@db/campaigns
    """
    from ...db.store import Store
    from ...db.upgrade import upgrade as apply

    settings = locate(dir, store).settings
    opened = Store.open(settings.store, check_schema=False)
    before, after = apply(opened)
    changed = f"{before or 'empty'} → {after}" if before != after else f"{after}, up to date"
    echo(f"{opened.url_without_password}: {changed}")
    return EXIT_OK
