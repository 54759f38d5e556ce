"""Finds and deletes files of the shared folder that no result needs. Never anything of a run that is not settled."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Final

from dscampaign.db import queries
from dscampaign.db.records import AttemptRow, CampaignRow, RunRow
from dscampaign.db.states import SETTLED_RUN, TERMINAL_ATTEMPT
from dscampaign.db.store import Store
from dscampaign.files import ours
from dscampaign.files.ours import Kept
from dscampaign.jobs.shared import checkpoint_retention
from dscampaign.jobs.shared.code_copy import CopyPaths, DamagedCopy
from dscampaign.jobs.shared.layout import MARKER, Beside, CampaignPaths
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.job_request import attempt_paths, run_config
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder
from dscampaign.orchestrator.reconcile.lease import LeaseHeld

from .code_copies import DRAFT
from .parts import ATTEMPT_LEFT
from .removal import acting_for

SURE_S: Final = 3600.0
"""Age from which a file that nobody names is not one that somebody is about to name."""


class GarbageKind(StrEnum):
    """Why something can be deleted."""

    CHECKPOINTS = "checkpoints beyond train.keep_checkpoints"
    CODE = "copies of code that no attempt ran"
    SPOOLS = "metrics files that the store has in full"
    TEMPORARY = "left-over temporary files"


@dataclass(frozen=True)
class Item:
    """Something that can be deleted, from a time on: 0 where age does not matter.

    Attributes:
        root: the folder above it that is this program's.
    """

    kind: GarbageKind
    path: Path
    root: Path
    size_bytes: int
    from_s: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it can be deleted now."""
        return self.from_s <= time.time()


@dataclass(frozen=True)
class Garbage:
    """What can be deleted, and what not.

    Attributes:
        notes: why a campaign or a folder was not looked at.
        too_new: what becomes garbage if nobody uses it.
        kept: places that stay, as they are not of this program.
    """

    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()
    too_new: tuple[Item, ...] = ()
    kept: tuple[Kept, ...] = ()

    def of(self, kind: GarbageKind) -> list[Item]:
        """Return the items of one kind."""
        return [item for item in self.items if item.kind is kind]

    @property
    def size_bytes(self) -> int:
        """Bytes of all items."""
        return sum(item.size_bytes for item in self.items)


def find_garbage(store: Store, campaigns: Sequence[CampaignRow], dir: Path) -> Garbage:
    """Find what can be deleted of these campaigns, and of the code below their folders and `dir`; delete nothing."""
    places, notes = list[Item | Kept](), list[str]()
    for campaign in campaigns:
        try:
            places += _of_campaign(store, campaign)
        except Unreachable as exc:
            notes.append(f"{campaign.name}: {exc.message}")
    for folder in _folders(campaigns, dir):
        if other := _campaign_of_other_store(store, folder):
            notes.append(f"code: kept, as {other} in {folder} is a campaign of another store")
        else:
            places += _unused_code(store, folder)
    items = [place for place in places if isinstance(place, Item)]
    return Garbage(
        tuple(item for item in items if item.is_due),
        tuple(notes),
        tuple(item for item in items if not item.is_due),
        tuple(place for place in places if isinstance(place, Kept)),
    )


def collect(store: Store, garbage: Garbage, campaigns: Sequence[CampaignRow], dir: Path) -> Garbage:
    """Delete what is garbage still, of each campaign while no reconciler acts for it; return what went.

    Raises:
        StoreReadOnly: the store is not this user's to write.
    """
    store.check_writable()
    asked = {item.path for item in garbage.items}
    gone, notes, kept = list[Item](), list[str](), list[Kept]()

    def delete(places: Iterable[Item | Kept]) -> None:
        for item in places:
            if isinstance(item, Item) and item.path in asked and item.is_due:
                stays = _delete(item)
                kept.extend(stays)
                gone.extend([] if stays else [item])

    for campaign in campaigns:
        try:
            with acting_for(store, campaign) as writer:  # from here on no run of it starts
                delete(writer.renewing(list(_of_campaign(store, campaign))))
        except (LeaseHeld, Unreachable) as exc:
            notes.append(f"{campaign.name}: {exc.message}")
    for folder in _folders(campaigns, dir):
        if not _campaign_of_other_store(store, folder):
            delete(list(_unused_code(store, folder)))
    return Garbage(tuple(gone), tuple(notes), kept=tuple(kept))


def _folders(campaigns: Iterable[CampaignRow], dir: Path) -> list[Path]:
    return sorted({dir, *(Path(campaign.dir) for campaign in campaigns)})


def _delete(item: Item) -> list[Kept]:
    if item.kind is GarbageKind.CHECKPOINTS:
        return checkpoint_retention.remove_checkpoint(item.path)
    return ours.remove(item.path, item.root)


def _of_campaign(store: Store, campaign: CampaignRow) -> Iterator[Item | Kept]:
    with store.read() as conn:
        runs, attempts = queries.runs(conn, campaign.id), queries.attempts_by_run(conn, campaign.id)
        steps = {row.run_id: row.step for row in queries.status(conn, campaign.id)}
        offsets = queries.node_offsets(conn, [row.id for rows in attempts.values() for row in rows])
    CampaignFolder(campaign).require(chain.from_iterable(attempts.values()))
    paths = CampaignPaths(Path(campaign.dir), campaign.name)
    if paths.dir.is_symlink():
        yield Kept(paths.dir, "a symbolic link")
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
                yield Kept(path, "it holds more than its manifest names")
        for name in {run.config_hash, *(row.config_hash for row in own)}:
            left = ours.named(folder.checkpoints(name), checkpoint_retention.TEMPORARY)
            yield from _items(GarbageKind.TEMPORARY, left, paths.dir, aged=True)
        for row in own:
            place = attempt_paths(row)
            yield from _items(GarbageKind.TEMPORARY, ours.named(place.dir, ATTEMPT_LEFT), paths.dir, aged=True)
            if not run.config.get("forward"):  # else another tool may lack lines
                yield from _items(GarbageKind.SPOOLS, _ingested(row, offsets.get(row.id, {})), paths.dir, aged=True)


def _checkpoints(run: RunRow, folder: Path, step: int | None) -> list[Path]:
    """Those of the built-in trainer alone: a script of one's own keeps what it needs."""
    config = run_config(run)
    if config.command or step is None:
        return []
    return checkpoint_retention.surplus(folder, config.train.keep_checkpoints, step, keep_best=config.train.keep_best)


def _ingested(row: AttemptRow, offsets: dict[int, int]) -> Iterator[Path]:
    place = attempt_paths(row)
    read = {place.metrics: row.spool_offset, **{place.gpu_spool(node): offset for node, offset in offsets.items()}}
    for path, offset in read.items():
        with suppress(OSError):
            if path.stat().st_size == offset:
                yield path


def _campaign_of_other_store(store: Store, dir: Path) -> str:
    """The name of a campaign in `dir` that this store does not know, whose code is unknown too; "" if there is none."""
    with store.read() as conn:
        known = {row.name for row in queries.list_campaigns(conn) if Path(row.dir) == dir}
    return min({marker.parent.name for marker in dir.glob(f"*/{MARKER}")} - known, default="")


def _unused_code(store: Store, dir: Path) -> Iterator[Item | Kept]:
    with store.read() as conn:
        campaigns = queries.list_campaigns(conn)
        named = {run.code for one in campaigns for run in queries.runs(conn, one.id)}
        named |= {row.code for one in campaigns for row in queries.attempts(conn, one.id)}
    codes = dir / Beside.CODE
    yield from _items(GarbageKind.TEMPORARY, ours.named(codes, DRAFT), dir, aged=True)
    for place in ours.named(codes, re.compile(r"[^.]+")):
        if place.name in named or not (place.is_dir() or place.is_symlink()):
            continue
        copy = CopyPaths(place)
        try:
            stays = [] if place.is_symlink() else copy.others_files()
        except (DamagedCopy, OSError):
            stays = [place]
        if stays or place.is_symlink():
            yield from (Kept(path, "not of this program") for path in stays or [place])
            continue
        parts = list(_items(GarbageKind.CODE, (place, copy.manifest, copy.damaged), dir, aged=True))
        from_s = max((part.from_s for part in parts if isinstance(part, Item)), default=0.0)
        yield from (replace(part, from_s=from_s) if isinstance(part, Item) else part for part in parts)


def _items(kind: GarbageKind, paths: Iterable[Path], root: Path, *, aged: bool = False) -> Iterator[Item | Kept]:
    """What is there of these places; `aged`: it must have been there, unchanged, for long enough."""
    for path in paths:
        if not path.is_relative_to(root):
            yield Kept(path, f"not in {root}")
            continue
        with suppress(OSError):
            from_s = path.lstat().st_mtime + SURE_S if aged else 0.0
            size, kept = ours.measure(path, root)
            yield from kept
            if not kept:
                yield Item(kind, path, root, size, from_s)
