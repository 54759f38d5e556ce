"""What can be deleted on the shared folder without losing a result. Never anything of a run that is not settled."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Final

from ...db import queries
from ...db.records import AttemptRow, CampaignRow, RunRow
from ...db.states import SETTLED_RUN, TERMINAL_ATTEMPT
from ...db.store import Store
from ...jobs.shared import checkpoint_retention
from ...jobs.shared.checkpoint import DRAFT_SUFFIX
from ...jobs.shared.code_copy import CopyPaths
from ...jobs.shared.layout import MARKER, Beside, CampaignPaths
from ..errors import Unreachable
from ..executors.job_request import attempt_paths, run_config
from ..reconcile.campaign_folder import CampaignFolder
from ..reconcile.lease import LeaseHeld
from .removal import acting_for, folder_bytes, remove_tree

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
    """Something that can be deleted, from a time on: 0 where age does not matter."""

    kind: GarbageKind
    path: Path
    size_bytes: int
    from_s: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it can be deleted now."""
        return self.from_s <= time.time()


@dataclass(frozen=True)
class Garbage:
    """What can be deleted, why some of it was not looked at, and what is too new to be deleted."""

    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()
    too_new: tuple[Item, ...] = ()

    def of(self, kind: GarbageKind) -> list[Item]:
        """What is of one kind."""
        return [item for item in self.items if item.kind is kind]

    @property
    def size_bytes(self) -> int:
        """Of everything."""
        return sum(item.size_bytes for item in self.items)


def find_garbage(store: Store, campaigns: Sequence[CampaignRow], dir: Path) -> Garbage:
    """What can be deleted of these campaigns, and of the code below their folders and `dir`; deletes nothing."""
    items, notes = [], []
    for campaign in campaigns:
        try:
            items += list(_of_campaign(store, campaign))
        except Unreachable as exc:
            notes.append(f"{campaign.name}: {exc.message}")
    for folder in _folders(campaigns, dir):
        found, why = _unused_code(store, folder)
        items, notes = [*items, *found], [*notes, *why]
    due, too_new = list[Item](), list[Item]()
    for item in items:
        (due if item.is_due else too_new).append(item)
    return Garbage(tuple(due), tuple(notes), tuple(too_new))


def collect(store: Store, garbage: Garbage, campaigns: Sequence[CampaignRow], dir: Path) -> Garbage:
    """Deletes what is garbage still, of each campaign while no reconciler acts for it; returns what went."""
    asked, gone, notes = {item.path for item in garbage.items}, [], []
    for campaign in campaigns:
        try:
            with acting_for(store, campaign) as writer:  # from here on no run of it starts
                wanted = [item for item in _of_campaign(store, campaign) if item.path in asked and item.is_due]
                gone += [_deleted(item) for item in writer.renewing(wanted)]
        except (LeaseHeld, Unreachable) as exc:
            notes.append(f"{campaign.name}: {exc.message}")
    for folder in _folders(campaigns, dir):
        gone += [_deleted(item) for item in _unused_code(store, folder)[0] if item.path in asked and item.is_due]
    return Garbage(tuple(gone), tuple(notes))


def _folders(campaigns: Iterable[CampaignRow], dir: Path) -> list[Path]:
    return sorted({dir, *(Path(campaign.dir) for campaign in campaigns)})


def _deleted(item: Item) -> Item:
    if item.kind is GarbageKind.CHECKPOINTS:
        checkpoint_retention.remove_checkpoint(item.path)
    else:
        remove_tree(item.path)
    return item


def _of_campaign(store: Store, campaign: CampaignRow) -> Iterator[Item]:
    with store.read() as conn:
        runs, attempts = queries.runs(conn, campaign.id), queries.attempts_by_run(conn, campaign.id)
        steps = {row.run_id: row.step for row in queries.status(conn, campaign.id)}
        offsets = queries.node_offsets(conn, [row.id for rows in attempts.values() for row in rows])
    CampaignFolder(campaign).require(chain.from_iterable(attempts.values()))
    paths = CampaignPaths(Path(campaign.dir), campaign.name)
    for run in runs:
        own = attempts.get(run.id, [])
        if run.state not in SETTLED_RUN or any(row.state not in TERMINAL_ATTEMPT for row in own):
            continue
        folder = paths.run(run.name)
        yield from _items(
            GarbageKind.CHECKPOINTS, _checkpoints(run, folder.checkpoints(run.config_hash), steps.get(run.id))
        )
        drafts = folder.dir.glob(f"checkpoints/*/g*-step*{DRAFT_SUFFIX}")
        converted = folder.dir.glob(f"checkpoints/*/{checkpoint_retention.UNIVERSAL}*")
        yield from _items(GarbageKind.TEMPORARY, chain(drafts, converted), aged=True)
        for row in own:
            place = attempt_paths(row)
            left = chain(place.dir.glob(".*.*.????????"), place.dir.glob("reserve-*"))
            yield from _items(GarbageKind.TEMPORARY, left, aged=True)
            if not run.config.get("forward"):  # else another tool may lack lines
                yield from _items(GarbageKind.SPOOLS, _ingested(row, offsets.get(row.id, {})), aged=True)


def _checkpoints(run: RunRow, folder: Path, step: int | None) -> list[Path]:
    """Those of the built-in trainer alone: a script of one's own keeps what it needs."""
    config = run_config(run)
    if config.command or step is None:
        return []
    return checkpoint_retention.surplus(folder, config.train.keep_checkpoints, step, keep_best=config.train.keep_best)


def _ingested(row: AttemptRow, offsets: dict[int, int]) -> Iterator[Path]:
    """Spools of an ended attempt that hold nothing which the store does not have."""
    place = attempt_paths(row)
    read = {place.metrics: row.spool_offset, **{place.gpu_spool(node): offset for node, offset in offsets.items()}}
    for path, offset in read.items():
        with suppress(OSError):
            if path.stat().st_size == offset:
                yield path


def _unused_code(store: Store, dir: Path) -> tuple[list[Item], list[str]]:
    """Copies that no run and no attempt of the store names."""
    with store.read() as conn:
        campaigns = queries.list_campaigns(conn)
        named = {run.code for one in campaigns for run in queries.runs(conn, one.id)}
        named |= {row.code for one in campaigns for row in queries.attempts(conn, one.id)}
    known = {one.name for one in campaigns if Path(one.dir) == dir}
    others = {marker.parent.name for marker in dir.glob(f"*/{MARKER}")} - known
    if others:
        return [], [f"code: kept, as {min(others)} in {dir} is a campaign of another store"]
    places = [place for place in (dir / Beside.CODE).glob("*") if place.is_dir() and place.name not in named]
    found: list[Item] = []
    for place in places:
        copy = CopyPaths(place)
        parts = list(_items(GarbageKind.CODE, (place, copy.manifest, copy.damaged), aged=True))
        found += [replace(part, from_s=max(one.from_s for one in parts)) for part in parts]
    return found, []


def _items(kind: GarbageKind, paths: Iterable[Path], *, aged: bool = False) -> Iterator[Item]:
    """What is there of these files and folders; `aged`: it must have been there, unchanged, for long enough."""
    for path in paths:
        with suppress(OSError):
            from_s = path.lstat().st_mtime + SURE_S if aged else 0.0
            yield Item(kind, path, folder_bytes(path), from_s)
