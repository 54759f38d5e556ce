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
from math import inf
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


def _names(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of names, with those that `files.atomic_files` gives these files until they are complete."""
    return re.compile(rf"{pattern}|\.({pattern})\.\d+\.[0-9a-f]{{8}}")


_ATTEMPT: Final = _names(
    r"claim(-\d+)?|re(started|size)\.json|started\.json|metrics\.jsonl|gpus-\d+\.jsonl|forward\.jsonl?|ds_config\.json"
    r"|train\.json|stop|did-not-fit-\d+\.json|(heartbeat|outcome)-\d+\.json|(reserve|hostfile)-\d+"
    r"|logs/(\d+_rank\d+|launcher-\d+|forward-(mlflow|tensorboard|wandb))\.log|ranks/rank-\d+\.json(\.\d+)?"
    r"|profile/(trace\.json\.gz|operators\.txt)"
)
_ATTEMPT_FOLDERS: Final = frozenset({"", "logs", "ranks", "profile", "search"})
_SEARCH_ROUND: Final = re.compile(r"^search/from-\d+(/|$)")
_BATCH: Final = _names(
    r"payloads\.jsonl|closed|cluster|host|submission\.sh|\d+\.log|\d\w*_log\.(out|err)|(job|setup)-\d\w*\.json"
    r"|joins-\d+-.+"
)
_CURRENT: Final = _names("current")
_FORWARD: Final = _names(r"\w+-(mlflow|tensorboard|wandb)\.(json|lock)")
_MARKER: Final = _names(re.escape(MARKER))
_SEARCH: Final = _names(r"[0-9a-f]{16}\.json")
_CHECKPOINT: Final = re.compile(rf"g\d{{4,}}-step\d{{8,}}({re.escape(checkpoint.DRAFT_SUFFIX)})?")
_EXPERIMENT: Final = re.compile(r"[0-9a-f]{6}")
_EVENTS: Final = re.compile(r"events\.out\.tfevents\..+")
_FOLDERS: Final = frozenset({"runs", "batches", "searches", "tensorboard"})


@dataclass(frozen=True)
class CampaignParts:
    """Classifies the places of a campaign's folder, see `files.ours.PartOf`."""

    # by the name of a run, the names of its checkpoints' folders and of its attempts'
    runs: Mapping[str, Collection[str]]
    tokens: Collection[str] = field(default=())  # names of its job arrays
    others: Collection[tuple[str, ...]] = field(default=())  # places with files of others, which stay

    @classmethod
    def of(cls, paths: CampaignPaths, runs: Sequence[RunRow], attempts: Sequence[AttemptRow]) -> CampaignParts:
        """Return the classifier of a campaign with these rows."""
        names = {run.id: run.name for run in runs}
        by_run: dict[str, set[str]] = defaultdict(set)
        for run in runs:
            by_run[run.name].add(f"checkpoints/{run.config_hash}")
        for row in attempts:
            by_run[names[row.run_id]] |= {f"checkpoints/{row.config_hash}", f"g{row.generation:04d}"}
        return cls(by_run, {row.token for row in attempts}, _of_others(paths, runs))

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
            case ["tensorboard", folder, *inner]:
                run, _, experiment = folder.rpartition("-")
                if folder in self.runs or (run in self.runs and _EXPERIMENT.fullmatch(experiment)):
                    return _file(_EVENTS, inner[0]) if inner else Part.FOLDER
        return None


def _in_run(names: Sequence[str], parts: Collection[str]) -> Part | None:
    name, *inner = names
    if name == "forward":
        return Part.FOLDER if not inner else Part.TREE if inner == ["wandb"] else _file(_FORWARD, "/".join(inner))
    if name == "checkpoints" and inner:
        return (Part.TREE if inner[1:] else Part.FOLDER) if f"checkpoints/{inner[0]}" in parts else None
    if name not in (*parts, "checkpoints"):
        return _file(_CURRENT, name)
    path = _SEARCH_ROUND.sub("", "/".join(inner))  # which is an attempt of its own
    return Part.FOLDER if path in _ATTEMPT_FOLDERS else _file(_ATTEMPT, path)


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
    parts = CampaignParts.of(campaign_folder.paths, runs, attempts)
    size, kept = (0, [Kept(folder, "a symbolic link")]) if folder.is_symlink() else measure(folder, parts)
    size_bytes = size if os.path.lexists(folder) else None
    return Removal(fresh, len(runs), tuple(row.id for row in attempts), folder, size_bytes, parts, tuple(kept))


def _of_others(paths: CampaignPaths, runs: Sequence[RunRow]) -> set[tuple[str, ...]]:
    """Return places beside the built-in trainer's checkpoints that it did not make, and those with files of others."""
    folders = [paths.run(run.name).dir for run in runs if not run.config.get("command")]
    places = [place for folder in folders for place in folder.glob("checkpoints/*/*")]
    others = {place for place in places if not _CHECKPOINT.fullmatch(place.name)}
    whole = {place for place in places if (place / checkpoint.MANIFEST).exists()}  # else half saved or half removed
    others |= {place for place in whole if not checkpoint_retention.is_ours(place)}
    return {place.relative_to(paths.dir).parts for place in others}


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
            yield from _items(GarbageKind.TEMPORARY, left, paths.dir, time.time() - SURE_S)


def _items(kind: GarbageKind, paths: Iterable[Path], root: Path, newest_s: float = inf) -> Iterator[Item | Kept]:
    """Yield the places that exist and have not changed since ``newest_s``."""
    for path in paths:
        with suppress(OSError):
            if path.lstat().st_mtime > newest_s:
                continue
            size, kept = ours.measure(root, at=path.relative_to(root).parts)
            yield from kept
            if not kept:
                yield Item(kind, path, size)


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
