"""Deletes campaigns (`rm`), files that no result needs (`gc`) and old metrics (`db prune`).

Only settled runs are touched, under the campaign's lease, and only files of this program: see `files/ours.py`. A second
call finishes an interrupted removal.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from dscampaign.db import queries
from dscampaign.db.campaigns import delete_campaign, delete_measurements
from dscampaign.db.prune import Pruned, Retention, prune
from dscampaign.db.records import AttemptRow, CampaignRow, RunRow
from dscampaign.db.states import ACTIVE_ATTEMPT, REMOVED, SETTLED_RUN, TERMINAL_ATTEMPT, UNSETTLED_RUN
from dscampaign.db.store import Store
from dscampaign.files import ours
from dscampaign.files.ours import Kept, Part, measure, sweep
from dscampaign.files.ownership import user_name
from dscampaign.jobs.shared import checkpoint, checkpoint_retention
from dscampaign.jobs.shared.layout import MARKER, CampaignPaths
from dscampaign.orchestrator.commands import counted, in_pieces, typed
from dscampaign.orchestrator.errors import Unreachable, UserError
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.executors.local import local_elsewhere
from dscampaign.orchestrator.formatting import count, some
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder
from dscampaign.orchestrator.reconcile.lease import FencedWriter, LeaseHeld, LeaseHolder, release_lease, take_lease
from dscampaign.orchestrator.reconcile.loop import make_executor
from dscampaign.orchestrator.reconcile.observe import list_jobs

_FILES: Final = (
    r"claim(-\d+)?|re(started|size)\.json|started\.json|metrics\.jsonl|gpus-\d+\.jsonl|forward\.jsonl?|ds_config\.json"
    r"|train\.json|stop|did-not-fit-\d+\.json|(heartbeat|outcome)-\d+\.json|(reserve|hostfile)-\d+"
    r"|logs/(\w+_rank\d+|(launcher|forward)-\w+)\.log|ranks/rank-\d+\.json(\.\d+)?"
)
_JOB_FILES: Final = (
    r"payloads\.jsonl|closed|cluster|host|submission\.sh|\d+\.log|\w+_log\.(out|err)|(job|setup)-\w+\.json|joins-.+"
)
_TEMPORARY: Final = r"\.({})\.\d+\.[0-9a-f]{{8}}"
"""The name that `files.atomic_files` gives a file until it is complete."""

_ATTEMPT: Final = re.compile(rf"{_FILES}|{_TEMPORARY.format(_FILES)}")
_BATCH: Final = re.compile(rf"{_JOB_FILES}|{_TEMPORARY.format(_JOB_FILES)}")
_CURRENT: Final = re.compile(rf"current|{_TEMPORARY.format('current')}")
_MARKER: Final = re.compile(rf"{re.escape(MARKER)}|{_TEMPORARY.format(re.escape(MARKER))}")
_SEARCH: Final = re.compile(rf"[^.]+\.json|{_TEMPORARY.format(r'[^.]+.json')}")
_EVENTS: Final = re.compile(r"events\.out\.tfevents\..+")
_ATTEMPT_TREES: Final = frozenset({"search", "profile"})
_FOLDERS: Final = frozenset({"runs", "batches", "searches", "tensorboard"})


@dataclass(frozen=True)
class CampaignParts:
    """Classifies the places of a campaign's folder, see `files.ours.PartOf`."""

    # by the name of a run, the names of its checkpoints' folders and of its attempts'
    runs: Mapping[str, Collection[str]]
    tokens: Collection[str] = field(default=())  # names of its job arrays
    others: Collection[tuple[str, ...]] = field(default=())  # places with files of others, which stay

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
            case ["runs", run, *inner] if run in self.runs and parts not in self.others:
                return _in_run(inner, self.runs[run]) if inner else Part.FOLDER
            case ["batches", token, *inner] if token in self.tokens:
                return _file(_BATCH, inner[0]) if inner else Part.FOLDER
            case ["searches", name]:
                return _file(_SEARCH, name)
            case ["tensorboard", run, *inner] if run in self.runs or run.rpartition("-")[0] in self.runs:
                return _file(_EVENTS, inner[0]) if inner else Part.FOLDER
        return None


def _in_run(names: Sequence[str], parts: Collection[str]) -> Part | None:
    name, *inner = names
    if name == "forward":
        return Part.TREE
    if name == "checkpoints" and inner:
        return (Part.TREE if inner[1:] else Part.FOLDER) if f"checkpoints/{inner[0]}" in parts else None
    if name not in (*parts, "checkpoints"):
        return _file(_CURRENT, name)
    if inner in ([], ["logs"], ["ranks"]):
        return Part.FOLDER
    return Part.TREE if inner[0] in _ATTEMPT_TREES else _file(_ATTEMPT, "/".join(inner))


def _file(pattern: re.Pattern[str], name: str) -> Part | None:
    return Part.FILE if pattern.fullmatch(name) else None


@contextmanager
def acting_for(store: Store, campaign: CampaignRow) -> Iterator[FencedWriter]:
    """Hold the campaign's lease, so that no reconciler starts anything; raises LeaseHeld if a reconciler holds it."""
    holder = LeaseHolder.me()
    writer = take_lease(store, campaign, holder)
    try:
        yield writer
    finally:
        release_lease(store, campaign, holder)


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
        hint = f"`{typed('cancel', name, '--all')}`, then `{typed('reconcile', name, '--watch')}`, then remove it"
        raise UserError(f"campaign {name} is not settled: {count(len(open_runs), 'run')}, such as {open_runs[0]}", hint)
    if not (is_gone or (fresh.desired == REMOVED and not campaign_folder.paths.marker.exists())):
        campaign_folder.require(store.url_without_password)
    parts = CampaignParts.of(runs, attempts)
    parts = replace(parts, others=_with_other_files(campaign_folder.paths, runs))
    size, kept = (0, [Kept(folder, "a symbolic link")]) if folder.is_symlink() else measure(folder, parts)
    size_bytes = size if os.path.lexists(folder) else None
    return Removal(fresh, len(runs), tuple(row.id for row in attempts), folder, size_bytes, parts, tuple(kept))


def _with_other_files(paths: CampaignPaths, runs: Sequence[RunRow]) -> set[tuple[str, ...]]:
    """Return checkpoints of the built-in trainer with more than it wrote; without a manifest, a removal broke off."""
    folders = [paths.run(run.name).dir for run in runs if not run.config.get("command")]
    manifests = f"checkpoints/*/g*-step*[0-9]/{checkpoint.MANIFEST}"
    saved = (place.parent for folder in folders for place in folder.glob(manifests))
    return {path.relative_to(paths.dir).parts for path in saved if not checkpoint_retention.is_ours(path)}


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
        hint = f"end {some(left, 10)}, then `{typed('rm', name)}`"
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
        for few in in_pieces("attempts removed", removal.attempts, _TOGETHER):
            with writer.write() as conn:
                delete_measurements(conn, few)
        with writer.write() as conn:
            delete_campaign(conn, campaign.id)
    return replace(removal, kept=tuple(kept))


def _remove_folder(removal: Removal, writer: FencedWriter) -> list[Kept]:
    """Remove the campaign's places; return the places that stay. The marker goes last: it names the folder's owner."""
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


SURE_S: Final = 3600.0  # age from which nobody is about to use a file that no row names


# -- garbage -----------------------------------------------------------------------------------------------------------


class GarbageKind(StrEnum):
    """Why something can be deleted."""

    CHECKPOINTS = "checkpoints beyond train.keep_checkpoints"
    TEMPORARY = "half-written and converted checkpoints"


@dataclass(frozen=True)
class Item:
    """A file or folder that can be deleted."""

    kind: GarbageKind
    path: Path
    size_bytes: int


@dataclass(frozen=True)
class Garbage:
    """Files to delete, and places to keep with the reason for each."""

    items: tuple[Item, ...]
    kept: tuple[Kept, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all items."""
        return sum(item.size_bytes for item in self.items)


def find_garbage(store: Store, campaigns: Sequence[CampaignRow]) -> Garbage:
    """Find the garbage of these campaigns; delete nothing."""
    places = [place for campaign in campaigns for place in _of_campaign(store, campaign)]
    items = tuple(place for place in places if isinstance(place, Item))
    return Garbage(items, tuple(place for place in places if isinstance(place, Kept)))


def collect(store: Store, garbage: Garbage, campaigns: Sequence[CampaignRow]) -> Garbage:
    """Delete files that are still garbage, of each campaign under its lease; return the deleted files."""
    store.check_writable()
    paths = {item.path for item in garbage.items}
    removed, kept = list[Item](), list[Kept]()
    for campaign in campaigns:
        root = CampaignPaths(Path(campaign.dir), campaign.name).dir
        try:
            with acting_for(store, campaign) as writer:
                for item in writer.renewing(list(_of_campaign(store, campaign))):
                    if isinstance(item, Item) and item.path in paths:
                        stays = checkpoint_retention.remove_checkpoint(item.path)
                        kept += stays
                        removed += [] if stays else [item]
        except (LeaseHeld, Unreachable) as exc:
            kept.append(Kept(root, exc.message))
    return Garbage(tuple(removed), tuple(kept))


def _of_campaign(store: Store, campaign: CampaignRow) -> Iterator[Item | Kept]:
    with store.read() as conn:
        runs, attempts = queries.runs(conn, campaign.id), queries.attempts_by_run(conn, campaign.id)
        steps = {row.run_id: row.step for row in queries.status(conn, campaign.id)}
    paths = CampaignPaths(Path(campaign.dir), campaign.name)
    if paths.dir.is_symlink():
        yield Kept(paths.dir, "a symbolic link")
        return
    try:
        CampaignFolder(campaign).require(store.url_without_password)
    except Unreachable as exc:
        yield Kept(paths.dir, exc.message)
        return
    for run in runs:
        own = attempts.get(run.id, [])
        if run.state not in SETTLED_RUN or any(row.state not in TERMINAL_ATTEMPT for row in own):
            continue
        folder = paths.run(run.name)
        config, step, surplus = run_config(run), steps.get(run.id), list[Path]()
        if config.command is not None:  # the user's own script keeps its own
            continue
        if step is not None:
            train, saved = config.train, folder.checkpoints(run.config_hash)
            surplus = checkpoint_retention.surplus(saved, train.keep_checkpoints, step, keep_best=train.keep_best)
        for path in surplus:
            if checkpoint_retention.is_ours(path):
                yield from _items(GarbageKind.CHECKPOINTS, [path], paths.dir)
            else:
                yield Kept(path, "it contains files that its manifest does not list")
        for name in {run.config_hash, *(row.config_hash for row in own)}:
            left = ours.named(folder.checkpoints(name), checkpoint_retention.TEMPORARY)
            yield from _items(GarbageKind.TEMPORARY, (path for path in left if not _is_new(path)), paths.dir)


def _is_new(path: Path) -> bool:
    with suppress(OSError):
        return path.lstat().st_mtime + SURE_S > time.time()
    return False


def _items(kind: GarbageKind, paths: Iterable[Path], root: Path) -> Iterator[Item | Kept]:
    """Yield the places that exist."""
    for path in paths:
        with suppress(OSError):
            path.lstat()
            size, kept = ours.measure(root, at=path.relative_to(root).parts)
            yield from kept
            if not kept:
                yield Item(kind, path, size)


# -- old metrics -------------------------------------------------------------------------------------------------------


Thinning = tuple[CampaignRow, Retention]
"""A campaign, and the rule by which its metrics are thinned."""


def thinnings(campaigns: Sequence[CampaignRow], keep_every: int | None, after_days: float | None) -> list[Thinning]:
    """Return the campaigns to thin, by the spec of each unless arguments differ; raises UserError without a rule."""
    wanted = []
    for campaign in campaigns:
        own = campaign.provenance.get("retention") or {}
        every = keep_every or own.get("keep_every")
        days = after_days if after_days is not None else own.get("after_days", 30.0)
        if every:
            wanted.append((campaign, Retention(int(every), float(days) * 86_400)))
    if not wanted:
        hint = "give --keep-every 10, or set `retention: {keep_every: 10}` in the spec and submit it again"
        names = ", ".join(row.name for row in campaigns) or "this store"
        raise UserError(f"no rule for the old metrics of {names}", hint)
    return wanted


def thin(store: Store, campaign: CampaignRow, rule: Retention, *, dry_run: bool) -> Pruned:
    """Thin the metrics, or count the rows to go. Raises StoreReadOnly if this user may not."""
    noun = "runs looked at" if dry_run else "runs thinned"
    return prune(store, campaign.id, rule, dry_run=dry_run, through=lambda runs: counted(noun, runs))
