"""Removes a settled campaign: its files first, then its rows in the store. A second call finishes a first."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from dscampaign.db import queries
from dscampaign.db.campaigns import delete_campaign, delete_measurements
from dscampaign.db.records import AttemptRow, CampaignRow, RunRow
from dscampaign.db.states import ACTIVE_ATTEMPT, REMOVED, UNSETTLED_RUN
from dscampaign.db.store import Store
from dscampaign.files.ours import Kept, Part, measure, sweep
from dscampaign.files.ownership import user_name
from dscampaign.jobs.shared.layout import MARKER, CampaignPaths
from dscampaign.orchestrator.commands import counted, typed
from dscampaign.orchestrator.errors import Unreachable, UserError
from dscampaign.orchestrator.executors.local import local_elsewhere
from dscampaign.orchestrator.formatting import count, some
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder
from dscampaign.orchestrator.reconcile.lease import FencedWriter, LeaseHolder, release_lease, take_lease
from dscampaign.orchestrator.reconcile.loop import make_executor
from dscampaign.orchestrator.reconcile.observe import list_jobs

_FILES: Final = (
    r"claim(-\d+)?|re(started|size)\.json|started\.json|metrics\.jsonl|gpus-\d+\.jsonl|forward\.jsonl?|ds_config\.json"
    r"|train\.json|stop|did-not-fit-\d+\.json|(heartbeat|outcome)-\d+\.json|(reserve|hostfile)-\d+"
)
_TEMPORARY: Final = r"\.({})\.\d+\.[0-9a-f]{{8}}"
"""The name that `files.atomic_files` gives a file until it is complete."""

_ATTEMPT: Final = re.compile(rf"{_FILES}|{_TEMPORARY.format(_FILES)}")
_CURRENT: Final = re.compile(rf"current|{_TEMPORARY.format('current')}")
_MARKER: Final = re.compile(rf"{re.escape(MARKER)}|{_TEMPORARY.format(re.escape(MARKER))}")
_SEARCH: Final = re.compile(rf"[^.]+\.json|{_TEMPORARY.format(r'[^.]+.json')}")
_EVENTS: Final = re.compile(r"events\.out\.tfevents\..+")
_ATTEMPT_TREES: Final = frozenset({"logs", "ranks", "search", "profile"})
_FOLDERS: Final = frozenset({"runs", "batches", "searches", "tensorboard"})


@dataclass(frozen=True)
class CampaignParts:
    """Classifies the places of a campaign's folder, see `files.ours.PartOf`."""

    # by the name of a run, the names of its checkpoints' folders and of its attempts'
    runs: Mapping[str, Collection[str]]
    tokens: Collection[str] = field(default=())  # names of its job arrays

    @classmethod
    def of(cls, runs: Sequence[RunRow], attempts: Sequence[AttemptRow]) -> CampaignParts:
        """Return the classifier of a campaign with these rows."""
        names = {run.id: run.name for run in runs}
        by_run: dict[str, set[str]] = defaultdict(set)
        for run in runs:
            by_run[run.name].add(f"checkpoints/{run.config_hash}")
        for row in attempts:
            by_run[names[row.run_id]] |= {f"checkpoints/{row.config_hash}", f"g{row.generation:04d}"}
        return cls(by_run, {row.token for row in attempts})

    def __call__(self, parts: tuple[str, ...]) -> Part | None:
        """Return how much of the place with these names is ours."""
        match parts:
            case [name]:
                return Part.FOLDER if name in _FOLDERS else _file(_MARKER, name)
            case ["runs", run, *inner] if run in self.runs:
                return _in_run(inner, self.runs[run]) if inner else Part.FOLDER
            case ["batches", token] if token in self.tokens:
                return Part.TREE
            case ["searches", name]:
                return _file(_SEARCH, name)
            case ["tensorboard", run, *inner] if run in self.runs or run.rpartition("-")[0] in self.runs:
                return _file(_EVENTS, inner[0]) if inner else Part.FOLDER
        return None


def _in_run(names: Sequence[str], parts: Collection[str]) -> Part | None:
    name, *inner = names
    if name == "forward":
        return Part.TREE
    if name == "checkpoints":
        return (Part.TREE if f"checkpoints/{inner[0]}" in parts else None) if inner else Part.FOLDER
    if name not in parts:
        return _file(_CURRENT, name)
    if not inner:
        return Part.FOLDER
    return Part.TREE if inner[0] in _ATTEMPT_TREES else _file(_ATTEMPT, inner[0])


def _file(pattern: re.Pattern[str], name: str) -> Part | None:
    return Part.FILE if pattern.fullmatch(name) else None


@contextmanager
def acting_for(store: Store, campaign: CampaignRow) -> Iterator[FencedWriter]:
    """Hold the campaign's lease, so that no reconciler starts anything; raises LeaseHeld if one is at work."""
    holder = LeaseHolder.me()
    writer = take_lease(store, campaign, holder)
    try:
        yield writer
    finally:
        release_lease(store, campaign, holder)


_SHOWN: Final = 10  # jobs that a hint names
_TOGETHER: Final = 20  # attempts of which one transaction deletes the measurements


@dataclass(frozen=True)
class Removal:
    """The files and rows to delete."""

    campaign: CampaignRow
    runs: int
    attempts: tuple[int, ...]
    folder: Path
    size_bytes: int | None  # of its files; None if its folder is gone already
    parts: CampaignParts  # classifies the places of its folder
    kept: tuple[Kept, ...] = ()  # places in its folder that stay, as they are not of this program


def removal_of(store: Store, campaign: CampaignRow) -> Removal:
    """Return the effect of removing a campaign.

    If its user has deleted its folder, no pass can settle it any more: then it is enough that no job is left. Raises
    UserError if it is not settled or may have a job; Unreachable if that is unknown, or its folder is away.
    """
    with store.read() as conn:
        fresh = queries.campaign_by_id(conn, campaign.id) or campaign
        runs, attempts = queries.runs(conn, campaign.id), queries.attempts(conn, campaign.id)
    campaign_folder = CampaignFolder(fresh)
    folder, is_gone = campaign_folder.paths.dir, campaign_folder.was_removed
    active = [row for row in attempts if row.state in ACTIVE_ATTEMPT]
    live = {row.run_id for row in active}
    open_runs = [run.name for run in runs if run.state in UNSETTLED_RUN or run.id in live]
    if is_gone:
        _require_no_job(fresh, active)
    elif open_runs:
        name = campaign.name
        raise UserError(
            f"campaign {name} is not settled: {count(len(open_runs), 'run')}, such as {open_runs[0]}",
            f"`{typed('cancel', name, '--all')}`, then `{typed('reconcile', name, '--watch')}`, then remove it",
        )
    if not (is_gone or (fresh.desired == REMOVED and not campaign_folder.paths.marker.exists())):
        campaign_folder.require()
    parts = CampaignParts.of(runs, attempts)
    size, kept = (0, [Kept(folder, "a symbolic link")]) if folder.is_symlink() else measure(folder, parts)
    size_bytes = size if os.path.lexists(folder) else None
    return Removal(fresh, len(runs), tuple(row.id for row in attempts), folder, size_bytes, parts, tuple(kept))


def _require_no_job(campaign: CampaignRow, active: Sequence[AttemptRow]) -> None:
    """Make sure that none of these attempts has a job: their agents would wait for the folder, or begin without it."""
    if not active:
        return
    name, user = campaign.name, campaign.provenance.get("user")
    if user and user != user_name(os.geteuid()):  # whose jobs are listed
        raise UserError(f"the folder of {name} is gone, and jobs of {user} may be left", f"let {user} remove it")
    listing = list_jobs(make_executor(campaign, CampaignPaths(Path(campaign.dir), name)), active)
    views = [*listing.jobs.values(), *(job for jobs in listing.rivals.values() for job in jobs)]
    if left := [job.job_id for job in views if not job.terminal]:
        hint = f"end {some(left, _SHOWN)}, then `{typed('rm', name)}`"
        raise UserError(f"the folder of {name} is gone, and {count(len(left), 'job')} of it may still run", hint)
    if not listing.complete or any(local_elsewhere(row) for row in active):
        raise Unreachable(f"it is unknown whether {name} has a job left", "try again, where it was submitted")


def remove(store: Store, campaign: CampaignRow) -> Removal:
    """Remove a campaign; return the deleted parts. Killed anywhere, it is finished by a second call.

    Raises as `removal_of`, now that nobody else acts for it; LeaseHeld if a reconciler is at work; OSError.
    """
    with acting_for(store, campaign) as writer:
        removal = removal_of(store, campaign)
        with writer.write() as conn:
            queries.update_campaign(conn, campaign.id, desired=REMOVED)
        kept = _remove_folder(removal, writer)
        attempts = removal.attempts
        together = [attempts[start : start + _TOGETHER] for start in range(0, len(attempts), _TOGETHER)]
        for few in counted("attempts removed", together, len):
            with writer.write() as conn:
                delete_measurements(conn, few)
        with writer.write() as conn:
            delete_campaign(conn, campaign.id)
    return replace(removal, kept=tuple(kept))


def _remove_folder(removal: Removal, writer: FencedWriter) -> list[Kept]:
    """Remove the campaign's places; return those that stay. The marker goes last: it names the folder's owner."""
    folder, parts = removal.folder, removal.parts
    marker = CampaignPaths(folder.parent, folder.name).marker
    if folder.is_symlink():
        return list(removal.kept)
    kept = list[Kept]()
    if marker.exists():
        pieces_of = [*(("runs", run) for run in parts.runs), *(("batches", token) for token in parts.tokens)]
        for names in writer.renewing(counted("folders removed", pieces_of)):
            sweep(folder, parts, names)
        rest = sweep(folder, lambda names: None if names == (marker.name,) else parts(names))
        kept = [stays for stays in rest if stays.path != marker]
        if refused := next((stays.error for stays in kept if stays.error), None):
            raise refused
        sweep(folder, parts, (marker.name,))
    with suppress(OSError):  # gone, or something stays in it
        folder.rmdir()
    return kept
