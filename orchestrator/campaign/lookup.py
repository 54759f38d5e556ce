"""Finds the campaign and the runs that a user names. Imports only the store: `campaign status` must be instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dscampaign.db import queries
from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.commands import SPEC, typed
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import some

from .location import PlaceOptions, locate
from .selection import Selection


def open_campaign(place: PlaceOptions, name: str | None) -> tuple[Store, CampaignRow]:
    """Open the store at the place that `locate` returns, and find the campaign as `find` does."""
    where = locate(place, [name])
    opened = where.open()
    return opened, find(opened, where.name)


def open_selection(
    place: PlaceOptions, words: Sequence[str], chosen: Selection | None = None
) -> tuple[Store, CampaignRow, Selection]:
    """Open the store and find the campaign of `[NAME] [RUN...]`; add the runs to the selection."""
    where = locate(place, words)
    opened = where.open()
    campaign, patterns = _find_with_patterns(opened, where.words)
    chosen = chosen or Selection()
    return opened, campaign, replace(chosen, patterns=[*patterns, *chosen.patterns])


def names_of(store: Store, campaign: CampaignRow, chosen: Selection) -> list[str] | None:
    """Return the names of the selected runs, None without a selection; raises UserError as `Selection.of`."""
    if not chosen:
        return None
    with store.read() as conn:
        return [run.name for run in chosen.of(queries.status(conn, campaign.id), campaign.name)]


def find(store: Store, name: str | None) -> CampaignRow:
    """Return the campaign of that name, or the only one.

    Raises UserError if there is none, or no name for one of several. Its hint names a campaign with a run of that name.
    """
    known = _known(store)
    if name in known:
        return known[name]
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if not known:
        raise UserError("no campaign yet", f"`{typed('submit', SPEC)}` starts one")
    what = "campaign or spec file" if name and _is_spec(name) else "campaign"
    if name is None:
        raise UserError("which campaign?", f"one of: {', '.join(known)}")
    with store.read() as conn:
        having = [other.name for other in known.values() if queries.run_by_name(conn, other.id, name)]
    run = f"it is a run of {having[0]}: write `{having[0]} {name}`" if len(having) == 1 else ""
    raise UserError(f"no {what} named {name}", run or f"one of: {', '.join(known)}")


def names_to_complete(place: PlaceOptions, words: Sequence[str]) -> list[str]:
    """The names that may follow these arguments: campaigns, or the runs of the named or only campaign."""
    where = locate(place, words)
    store = where.open()
    known = _known(store)
    chosen = known.get(where.name or "") or (next(iter(known.values())) if len(known) == 1 else None)
    with store.read() as conn:
        runs = queries.run_names(conn, chosen.id) if chosen else []
    return runs if words else [*known, *runs]


def campaigns_of(store: Store, name: str | None) -> list[CampaignRow]:
    """Return the campaign of that name, or all of the store; raises UserError as `find`."""
    return [find(store, name)] if name else list(_known(store).values())


def find_run(store: Store, words: Sequence[str]) -> tuple[CampaignRow, RunRow]:
    """Resolve `[NAME] RUN`; the name may be omitted if there is only one campaign, the run if it has only one.

    Raises UserError as `find`, or if it is not one run; the run may be a pattern.
    """
    if len(words) > 1:
        find(store, words[0])  # before a run, only a campaign can stand
    campaign, patterns = _find_with_patterns(store, words)
    names = names_of(store, campaign, Selection(patterns=patterns))
    with store.read() as conn:
        runs = [run for run in queries.runs(conn, campaign.id) if not names or run.name in names]
    if len(runs) != 1:
        hint = f"add one of: {some([run.name for run in runs], 5)}"
        raise UserError("a single run at a time" if names else f"which run of {campaign.name}?", hint)
    return campaign, runs[0]


def _find_with_patterns(store: Store, words: Sequence[str]) -> tuple[CampaignRow, Sequence[str]]:
    known = _known(store)
    if words and words[0] not in known and len(known) == 1 and not _is_spec(words[0]):
        words = [next(iter(known)), *words]
    return find(store, words[0] if words else None), words[1:]


def _is_spec(word: str) -> bool:
    return word.endswith((".yaml", ".yml"))


def _known(store: Store) -> dict[str, CampaignRow]:
    with store.read() as conn:
        return {campaign.name: campaign for campaign in queries.list_campaigns(conn)}
