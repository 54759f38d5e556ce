"""The command db upgrade."""

from __future__ import annotations

import click

from ..campaign.location import locate
from ..errors import EXIT_OK
from .common import Verb, Verbs, echo_either, json_option, store_options


@click.group(cls=Verbs)
def db() -> None:
    """Manage the store."""


@db.command(cls=Verb)
@store_options
@json_option
def upgrade(dir: str | None, store: str | None, as_json: bool) -> int:
    """Create or upgrade the store's tables.

    SQLite needs this only after an upgrade of this program, PostgreSQL also before its first use. Stop reconcilers of
    the older version first. Jobs may keep running: their metrics wait in files.

    Examples:
      campaign db upgrade --store postgresql://me@db/campaigns
    """
    from ...db.store import Store
    from ...db.upgrade import upgrade as apply

    settings = locate(dir, store).settings
    opened = Store.open(settings.store, check_schema=False)
    before, after = apply(opened)
    changed = f"{before or 'empty'} → {after}" if before != after else f"{after}, up to date"
    document = {"store": opened.url_without_password, "schema_before": before, "schema": after}
    echo_either(as_json, lambda: document, lambda _: f"{opened.url_without_password}: {changed}")
    return EXIT_OK
