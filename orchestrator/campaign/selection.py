"""Finds the campaign and the runs that a user names, by name, title, pattern, job and state; counts runs by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

from dscampaign.db import queries
from dscampaign.db.records import CampaignRow, RunRow, RunStatus
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.commands import SPEC, typed
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import some

from .location import PlaceOptions, StrPath, locate
from .titles import Candidate, candidates, matching, unambiguous


@dataclass(frozen=True)
class RunCounts:
    """Runs by state; `early` of the completed ones did so before their target step."""

    states: Mapping[RunState, int]
    early: int = 0

    @classmethod
    def of(cls, runs: Iterable[Any]) -> Self:
        """Count runs, which have a `state`, and `early`."""
        rows = list(runs)
        return cls(Counter(run.state for run in rows), sum(run.early for run in rows))

    @property
    def total(self) -> int:
        """All runs."""
        return sum(self.states.values())

    @property
    def completed(self) -> int:
        """Completed runs, early or not."""
        return self.states.get(RunState.COMPLETED, 0)

    @property
    def note(self) -> str:
        """The note behind the number of completed runs: ` (2 early)`."""
        return f" ({self.early:,} early)" if self.early else ""

    def document(self) -> dict[str, Any]:
        """Return the counts for `--json`: every state, also states without a run."""
        counts = {str(state): self.states.get(state, 0) for state in RunState}
        return {"counts": counts, "completed_early": self.early}


@dataclass(frozen=True)
class Selection:
    """Runs in these states, and with these names."""

    states: Collection[RunState] = ()
    names: Collection[str] = ()

    def __bool__(self) -> bool:
        return bool(self.states or self.names)

    def of(self, runs: Iterable[RunStatus]) -> list[RunStatus]:
        """Return these runs of the campaign."""
        names = frozenset(self.names)
        named = (run for run in runs if not names or run.name in names)
        return [run for run in named if not self.states or run.state in self.states]

    def none(self, campaign: str) -> str:
        """Return that no run matches: `no run of sweep is failed or held`."""
        states = " or ".join(state for state in RunState if state in self.states)
        return f"no{' such' if self.names else ''} run of {campaign} is {states}"


def open_campaign(place: PlaceOptions, name: StrPath | None) -> tuple[Store, CampaignRow]:
    """Open the store at the place that `locate` returns, and find the campaign as `find` does."""
    location = locate(place, [name])
    opened = location.open()
    return opened, find(opened, location.name)


def open_selection(
    place: PlaceOptions, words: Sequence[str], chosen: Selection | None = None
) -> tuple[Store, CampaignRow, Selection]:
    """Open the store and find the campaign of `[NAME] [RUN...]`; add the runs to the selection."""
    location = locate(place, words)
    opened = location.open()
    return opened, *select(opened, location.words, chosen)


def select(store: Store, words: Sequence[str], chosen: Selection | None = None) -> tuple[CampaignRow, Selection]:
    """Find the campaign of `[NAME] [RUN...]`; add the runs to the selection."""
    campaign, names = find_runs(store, words)
    return campaign, replace(chosen or Selection(), names=names)


def names_of(store: Store, campaign: CampaignRow, chosen: Selection) -> list[str] | None:
    """Return the names of the selected runs, None without a selection."""
    if not chosen:
        return None
    with store.read() as conn:
        return [run.name for run in chosen.of(queries.status(conn, campaign.id))]


def find(store: Store, name: str | None) -> CampaignRow:
    """Return the campaign of that name, or the only one. Raises UserError."""
    campaigns = _known(store)
    if name in campaigns:
        return campaigns[name]
    if name is None and len(campaigns) == 1:
        return next(iter(campaigns.values()))
    if not campaigns:
        raise UserError("no campaign yet", f"`{typed('submit', SPEC)}` starts one")
    message = "which campaign?" if name is None else f"no campaign named {name}"
    raise UserError(message, f"one of: {', '.join(campaigns)}")


def names_to_complete(place: PlaceOptions, words: Sequence[str]) -> list[str]:
    """The names that may follow these arguments: campaigns, or the runs of the named or only campaign."""
    location = locate(place, words)
    store = location.open()
    campaigns = _known(store)
    chosen = campaigns.get(location.name or "") or (next(iter(campaigns.values())) if len(campaigns) == 1 else None)
    with store.read() as conn:
        runs = queries.run_names(conn, chosen.id) if chosen else []
    return runs if words else [*campaigns, *runs]


def campaigns_of(store: Store, name: str | None) -> list[CampaignRow]:
    """Return the campaign of that name, or all of the store; raises UserError as `find`."""
    return [find(store, name)] if name else list(_known(store).values())


def find_run(store: Store, words: Sequence[str]) -> tuple[CampaignRow, RunRow]:
    """Resolve `[NAME] RUN`; the only run of a campaign may be omitted. Raises UserError if it is not one run."""
    if len(words) > 1:
        find(store, words[0])  # before a run, only a campaign can stand
    campaign, names = find_runs(store, words)
    with store.read() as conn:
        runs = [run for run in queries.runs(conn, campaign.id) if not names or run.name in names]
    if len(runs) != 1:
        hint = f"add one of: {some([run.name for run in runs], 5)}"
        raise UserError("a single run at a time" if names else f"which run of {campaign.name}?", hint)
    return campaign, runs[0]


def find_runs(store: Store, words: Sequence[str]) -> tuple[CampaignRow, list[str]]:
    """Resolve `[NAME] [RUN...]`: a campaign, and the names of the runs, none without a RUN. Raises UserError.

    A RUN is a name, the title of a condition, a pattern, the beginning of a name or title, a job or a job array. NAME
    may be omitted if no other campaign has a run that matches.
    """
    campaigns = _known(store)
    named = not words or words[0] in campaigns or not campaigns or words[0].endswith((".yaml", ".yml"))
    homes = [find(store, next(iter(words), None))] if named else list(campaigns.values())
    with store.read() as conn:
        names = {home.name: dict.fromkeys(queries.run_names(conn, home.id)) for home in homes}

    @cache
    def runs(home: str) -> list[Candidate]:
        with store.read() as conn:
            return candidates(names[home], queries.params_of_first_repeats(conn, campaigns[home].id), home)

    chosen: dict[str, None] = {}
    for word in words[named:]:
        exact = [Candidate(word, word, home) for home in names if word in names[home]]
        known = [run for home in names for run in runs(home)] if not exact else []
        found = unambiguous(word, exact, several=False) or matching(word, known)
        if not found:
            with store.read() as conn:
                having = {(home, run) for home, run, _ in queries.runs_of_job(conn, word)}
            found = unambiguous(word, [run for run in known if (run.campaign, run.name) in having], several=True)
        if not found:
            only = next(iter(names)) if len(names) == 1 else ""
            shown = list(dict.fromkeys(run.title for run in known) if only else names)
            hint = f"`{typed('status', only)}` lists them" if only and " " not in word else f"one of: {some(shown, 8)}"
            raise UserError(f"no run named {word} in {only}" if only else f"no campaign or run named {word}", hint)
        names = {found[0].campaign: names[found[0].campaign]}
        chosen.update(dict.fromkeys(run.name for run in found))
    return campaigns[next(iter(names))], list(chosen)


def attempt_of_job(store: Store, campaign: CampaignRow, run: RunRow, word: str) -> int | None:
    """Return the attempt of a run that ran in this job; None if no job of it has this id."""
    with store.read() as conn:
        jobs = queries.runs_of_job(conn, word)
    return next((number for home, name, number in jobs if (home, name) == (campaign.name, run.name)), None)


def _known(store: Store) -> dict[str, CampaignRow]:
    with store.read() as conn:
        return {campaign.name: campaign for campaign in queries.list_campaigns(conn)}
