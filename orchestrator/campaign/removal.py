"""Removes a campaign that is over: its folder first, then what the store has of it. A second call finishes a first."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...db import queries
from ...db.campaigns import delete_campaign, delete_measurements
from ...db.records import CampaignRow
from ...db.rows import pieces
from ...db.states import ACTIVE_ATTEMPT, REMOVED, UNSETTLED_RUN
from ...db.store import Store
from ...jobs.shared.layout import CampaignPaths
from ..errors import UserError
from ..formatting import count
from ..progress import counted
from ..reconcile.campaign_folder import CampaignFolder
from ..reconcile.lease import FencedWriter, LeaseHolder, release_lease, take_lease


@dataclass(frozen=True)
class Removal:
    """What would go: runs, attempts, and the folder with its size, None where it is gone already."""

    campaign: CampaignRow
    runs: int
    attempts: tuple[int, ...]
    folder: Path
    size_bytes: int | None


def removal_of(store: Store, campaign: CampaignRow) -> Removal:
    """What removing a campaign would take away.

    Raises:
        UserError: it is not settled, or has an attempt that may have a job.
        Unreachable: its folder is away.
    """
    with store.read() as conn:
        fresh = queries.campaign_by_id(conn, campaign.id) or campaign
        runs, attempts = queries.runs(conn, campaign.id), queries.attempts(conn, campaign.id)
    live = {row.run_id for row in attempts if row.state in ACTIVE_ATTEMPT}
    open_runs = [run.name for run in runs if run.state in UNSETTLED_RUN or run.id in live]
    if open_runs:
        name = campaign.name
        raise UserError(
            f"campaign {name} is not settled: {count(len(open_runs), 'run')}, such as {open_runs[0]}",
            f"`campaign cancel {name} --all`, then `campaign reconcile {name} --watch`, and remove it when that ends",
        )
    folder = CampaignPaths(Path(fresh.dir), fresh.name).dir
    if not (_is_gone(folder) or (fresh.desired == REMOVED and not CampaignFolder(fresh).paths.marker.exists())):
        CampaignFolder(fresh).require(attempts)
    size = folder_bytes(folder) if folder.exists() else None
    return Removal(fresh, len(runs), tuple(row.id for row in attempts), folder, size)


def remove(store: Store, campaign: CampaignRow) -> Removal:
    """Removes a campaign; returns what went. Killed anywhere, it is finished by a second call.

    Raises:
        LeaseHeld: a reconciler is at work on it.
        UserError, Unreachable: as of `removal_of`, now that nobody else acts for it; OSError: a file cannot be removed.
    """
    with acting_for(store, campaign) as writer:
        found = removal_of(store, campaign)
        with writer.write() as conn:
            queries.update_campaign(conn, campaign.id, desired=REMOVED)
        _remove_folder(found.folder, writer)
        for some in counted("attempts removed", _together(store, found.attempts), len):
            with writer.write() as conn:
                delete_measurements(conn, some)
        with writer.write() as conn:
            delete_campaign(conn, campaign.id)
    return found


def _together(store: Store, attempt_ids: Sequence[int]) -> list[Sequence[int]]:
    """Attempts by id, as many at a time as one transaction may remove: one may have millions of rows, and others write.

    Those that never reported a step have hardly any.
    """
    with store.read() as conn:
        reported = {row.id for row in queries.attempts_of(conn, attempt_ids) if row.last_step is not None}
    silent = [attempt_id for attempt_id in attempt_ids if attempt_id not in reported]
    return [*pieces(silent), *([attempt_id] for attempt_id in attempt_ids if attempt_id in reported)]


@contextmanager
def acting_for(store: Store, campaign: CampaignRow) -> Iterator[FencedWriter]:
    """The campaign's lease, so that no reconciler starts anything meanwhile; raises LeaseHeld if one is at work."""
    holder = LeaseHolder.me()
    writer = take_lease(store, campaign, holder)
    try:
        yield writer
    finally:
        release_lease(store, campaign, holder)


def _remove_folder(folder: Path, writer: FencedWriter) -> None:
    """The marker goes last: as long as it is there, the folder is known to be this campaign's."""
    if not folder.exists():
        return
    marker = CampaignPaths(folder.parent, folder.name).marker
    places = sorted(folder.glob("runs/*")) + sorted(folder.iterdir())
    for place in writer.renewing(counted("folders removed", places)):
        if place != marker:
            remove_tree(place)
    marker.unlink(missing_ok=True)
    if folder.is_symlink():
        folder.resolve().rmdir()
        folder.unlink()
    else:
        folder.rmdir()


def _is_gone(folder: Path) -> bool:
    """Whether the folder was removed, by its user perhaps: what is above it holds other things, so it is mounted."""
    return not folder.exists() and folder.parent.is_dir() and any(folder.parent.iterdir())


def remove_tree(place: Path) -> None:
    """Removes a file, a link or a folder with all that is in it, unless it is gone."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def folder_bytes(place: Path) -> int:
    """Bytes of a file, or of all files in a folder; what goes meanwhile counts nothing."""
    total = 0
    for path in [place] if place.is_file() else place.rglob("*"):
        try:
            found = path.lstat()
        except OSError:
            continue
        total += found.st_size
    return total
