"""Deletes files and metrics that no result needs: garbage (`gc`) and old metrics (`db prune`).

Only settled runs are touched, under the campaign's lease, and only files of this program: see `files/ours.py`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from dscampaign.db import queries
from dscampaign.db.prune import Pruned, Retention, prune
from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.states import SETTLED_RUN, TERMINAL_ATTEMPT
from dscampaign.db.store import Store
from dscampaign.files import ours
from dscampaign.files.ours import Kept
from dscampaign.jobs.shared import checkpoint_retention
from dscampaign.jobs.shared.code_copy import CopyPaths, DamagedCopy
from dscampaign.jobs.shared.layout import MARKER, Beside, CampaignPaths
from dscampaign.orchestrator.commands import counted
from dscampaign.orchestrator.errors import Unreachable, UserError
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder
from dscampaign.orchestrator.reconcile.lease import LeaseHeld

from .removal import acting_for

SURE_S: Final = 3600.0  # age from which nobody is about to use a file that no row names
_DAY_S: Final = 86_400.0
_DEFAULT_DAYS: Final = 30.0


# -- garbage -----------------------------------------------------------------------------------------------------------


class GarbageKind(StrEnum):
    """Why something can be deleted."""

    CHECKPOINTS = "checkpoints beyond train.keep_checkpoints"
    CODE = "copies of code that no attempt ran"
    TEMPORARY = "half-written and converted checkpoints"


@dataclass(frozen=True)
class Item:
    """A file or folder that can be deleted."""

    kind: GarbageKind
    path: Path
    root: Path  # the folder above it that is this program's
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


def find_garbage(store: Store, campaigns: Sequence[CampaignRow], dir: Path) -> Garbage:
    """Find the garbage of these campaigns, and of the code below their folders and `dir`; delete nothing."""
    places = [place for campaign in campaigns for place in _of_campaign(store, campaign)]
    places += [place for folder in _folders(campaigns, dir) for place in _unused_code(store, folder)]
    items = tuple(place for place in places if isinstance(place, Item))
    return Garbage(items, tuple(place for place in places if isinstance(place, Kept)))


def collect(store: Store, garbage: Garbage, campaigns: Sequence[CampaignRow], dir: Path) -> Garbage:
    """Delete files that are still garbage, of each campaign under its lease; return the deleted files."""
    store.check_writable()
    paths = {item.path for item in garbage.items}
    removed, kept = list[Item](), list[Kept]()

    def delete(places: Iterable[Item | Kept]) -> None:
        for item in places:
            if isinstance(item, Item) and item.path in paths:
                if item.kind is GarbageKind.CHECKPOINTS:
                    stays = checkpoint_retention.remove_checkpoint(item.path)
                else:
                    stays = ours.remove(item.path, item.root)
                kept.extend(stays)
                removed.extend([] if stays else [item])

    for campaign in campaigns:
        try:
            with acting_for(store, campaign) as writer:
                delete(writer.renewing(list(_of_campaign(store, campaign))))
        except (LeaseHeld, Unreachable) as exc:
            kept.append(Kept(CampaignPaths(Path(campaign.dir), campaign.name).dir, exc.message))
    for folder in _folders(campaigns, dir):
        delete(list(_unused_code(store, folder)))
    return Garbage(tuple(removed), tuple(kept))


def _folders(campaigns: Iterable[CampaignRow], dir: Path) -> list[Path]:
    return sorted({dir, *(Path(campaign.dir) for campaign in campaigns)})


def _of_campaign(store: Store, campaign: CampaignRow) -> Iterator[Item | Kept]:
    with store.read() as conn:
        runs, attempts = queries.runs(conn, campaign.id), queries.attempts_by_run(conn, campaign.id)
        steps = {row.run_id: row.step for row in queries.status(conn, campaign.id)}
    paths = CampaignPaths(Path(campaign.dir), campaign.name)
    if paths.dir.is_symlink():
        yield Kept(paths.dir, "a symbolic link")
        return
    try:
        CampaignFolder(campaign).require()
    except Unreachable as exc:
        yield Kept(paths.dir, exc.message)
        return
    for run in runs:
        own = attempts.get(run.id, [])
        if run.state not in SETTLED_RUN or any(row.state not in TERMINAL_ATTEMPT for row in own):
            continue
        folder = paths.run(run.name)
        for path in _checkpoints(run, folder.checkpoints(run.config_hash), steps.get(run.id)):
            if checkpoint_retention.is_ours(path):
                yield from _items(GarbageKind.CHECKPOINTS, [path], paths.dir)
            else:
                yield Kept(path, "it contains files that its manifest does not list")
        for name in {run.config_hash, *(row.config_hash for row in own)}:
            left = ours.named(folder.checkpoints(name), checkpoint_retention.TEMPORARY)
            yield from _items(GarbageKind.TEMPORARY, (path for path in left if not _is_new(path)), paths.dir)


def _checkpoints(run: RunRow, folder: Path, step: int | None) -> list[Path]:
    """Return the surplus checkpoints of the built-in trainer: the user's own script keeps its own."""
    config = run_config(run)
    if config.command or step is None:
        return []
    return checkpoint_retention.surplus(folder, config.train.keep_checkpoints, step, keep_best=config.train.keep_best)


def _unused_code(store: Store, dir: Path) -> Iterator[Item | Kept]:
    codes = dir / Beside.CODE
    with store.read() as conn:
        campaigns = queries.list_campaigns(conn)
        used = {run.code for campaign in campaigns for run in queries.runs(conn, campaign.id)}
        used |= {row.code for campaign in campaigns for row in queries.attempts(conn, campaign.id)}
    known = {row.name for row in campaigns if Path(row.dir) == dir}
    if other := min({marker.parent.name for marker in dir.glob(f"*/{MARKER}")} - known, default=""):
        yield Kept(codes, f"{other} in {dir} is a campaign of another store")
        return
    for place in ours.named(codes, re.compile(r"[^.]+")):
        if place.name in used or not (place.is_dir() or place.is_symlink()):
            continue
        copy = CopyPaths(place)
        try:
            stays = [place] if place.is_symlink() else copy.others_files()
        except (DamagedCopy, OSError):
            stays = [place]
        if stays:
            yield from (Kept(path, "not of this program") for path in stays)
            continue
        parts = (place, copy.manifest, copy.damaged)
        if not any(map(_is_new, parts)):
            yield from _items(GarbageKind.CODE, parts, dir)


def _is_new(path: Path) -> bool:
    with suppress(OSError):
        return path.lstat().st_mtime + SURE_S > time.time()
    return False


def _items(kind: GarbageKind, paths: Iterable[Path], root: Path) -> Iterator[Item | Kept]:
    """Yield the places that exist."""
    for path in paths:
        if not path.is_relative_to(root):
            yield Kept(path, f"not in {root}")
            continue
        with suppress(OSError):
            path.lstat()
            size, kept = ours.measure(root, at=path.relative_to(root).parts)
            yield from kept
            if not kept:
                yield Item(kind, path, root, size)


# -- old metrics -------------------------------------------------------------------------------------------------------


Thinning = tuple[CampaignRow, Retention]
"""A campaign, and the rule by which its metrics are thinned."""


def thinnings(campaigns: Sequence[CampaignRow], keep_every: int | None, after_days: float | None) -> list[Thinning]:
    """Return the campaigns to thin, by the spec of each unless arguments differ; raises UserError without a rule."""
    wanted = []
    for campaign in campaigns:
        own = campaign.provenance.get("retention") or {}
        every = keep_every or own.get("keep_every")
        days = after_days if after_days is not None else own.get("after_days", _DEFAULT_DAYS)
        if every:
            wanted.append((campaign, Retention(int(every), float(days) * _DAY_S)))
    if not wanted:
        hint = "give --keep-every 10, or set `retention: {keep_every: 10}` in the spec and submit it again"
        raise UserError(
            f"no rule for the old metrics of {', '.join(row.name for row in campaigns) or 'this store'}", hint
        )
    return wanted


def thin(store: Store, campaign: CampaignRow, rule: Retention, *, dry_run: bool) -> Pruned:
    """Thin the metrics, or count the rows to go. Raises StoreReadOnly if this user may not."""
    noun = "runs looked at" if dry_run else "runs thinned"
    return prune(store, campaign.id, rule, dry_run=dry_run, through=lambda runs: counted(noun, runs))
