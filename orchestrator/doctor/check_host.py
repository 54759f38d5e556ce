"""Check the host that calls `campaign doctor`: shared folder and store."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dscampaign.files.atomic_files import create_exclusively
from dscampaign.files.file_systems import LOCAL, file_system
from dscampaign.files.ownership import distrust
from dscampaign.orchestrator.executors import storage

from .check import At, Check
from .requirements import GB, Requirements

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.location import Location

LEAST_FREE_GB: Final = 5.0


def host_checks(location: Location, requirements: Sequence[Requirements], *, shared: bool = False) -> Iterator[Check]:
    """Return verdicts on a campaign's folder and store; `shared`: a node has proved that it sees the same folder."""
    slurm = any(required.config.executor == "slurm" for required in requirements)
    yield from folder_checks(location.settings.dir, nodes_need_it=slurm and not shared)
    yield from store_checks(location, slurm=slurm)


def folder_checks(folder: Path, *, nodes_need_it: bool = False) -> Iterator[Check]:
    """Return verdicts on a campaign's folder, or on the nearest existing folder above it.

    `nodes_need_it`: other hosts must see it, and none has been asked.
    """
    at = At("shared folder")
    nearest = next(path for path in (folder, *folder.parents) if os.path.isdir(path))  # noqa: PTH112 - pathlib would raise
    path = str(folder) if folder == nearest else f"{folder}, to be created in {nearest}"
    if wrong := storage.trouble(nearest):
        yield at.problem("folder.writable", f"{path}: {wrong.why}", wrong.hint)
        return
    yield at.ok("folder.writable", path)
    if doubt := distrust(nearest):
        hint = f"{doubt.hint}: nodes run nothing from a folder that others can write to or replace"
        yield at.problem("folder.private", str(doubt), hint)
    trial = nearest / f".doctor-{uuid.uuid4().hex[:12]}"
    trouble = "two processes could both create the same file"
    try:
        if create_exclusively(trial, "first") and not create_exclusively(trial, "second"):
            trouble = ""
    except OSError as exc:
        trouble = exc.strerror or str(exc)
    finally:
        trial.unlink(missing_ok=True)
    if trouble:
        hint = "claims need hard links: choose a folder on NFS, Lustre, GPFS, BeeGFS or a local disk"
        yield at.problem("folder.links", f"a file cannot be created exactly once: {trouble}", hint)
    kind = file_system(nearest)
    if nodes_need_it and kind in LOCAL:
        hint = "check with `--on-node`; if the nodes do not see this folder, choose another"
        yield at.warning("folder.file_system", f"{kind}, which other hosts do not see unless it is exported", hint)
    else:
        yield at.ok("folder.file_system", kind or "unknown file system")
    free_gb = shutil.disk_usage(nearest).free / GB
    if free_gb < LEAST_FREE_GB:
        yield at.warning("folder.space", f"{free_gb:,.0f} GB free", "`campaign gc` deletes files that no result needs")
    else:
        yield at.ok("folder.space", f"{free_gb:,.0f} GB free")


def store_checks(location: Location, *, slurm: bool) -> Iterator[Check]:
    """Return verdicts on the database; with `slurm` attempts on other hosts need it too."""
    from dscampaign.db.errors import StoreError, StoreMissing, StoreReadOnly, StoreUnreachable
    from dscampaign.db.schema import HEAD

    at, settings = At("store"), location.settings
    address = settings.store_without_password
    try:
        store = location.open()
        store.close()
        yield at.ok("store.reachable", f"{address}, schema {HEAD}")
        store.check_writable()
    except StoreMissing:
        yield at.ok("store.reachable", f"{address} is created by the first `campaign submit`")
    except StoreReadOnly as exc:
        yield at.problem("store.writable", exc.message, exc.hint)
    except StoreError as exc:
        away = isinstance(exc, StoreUnreachable)
        yield at.problem("store.reachable", exc.message, exc.hint or "see `--store`", away=away)
    except ImportError as exc:
        yield at.problem("store.reachable", str(exc), "`pip install 'dscampaign[postgres]'`")
    if settings.store.startswith("sqlite"):
        yield sqlite_check(file_system(Path(address.removeprefix("sqlite:///"))), at, slurm=slurm)


def sqlite_check(kind: str, at: At, *, slurm: bool) -> Check:
    """Return the verdict on the file system of a SQLite file; an unknown file system counts as a network's."""
    if kind not in LOCAL:
        text = f"SQLite on {kind or 'an unknown file system'}, over a network: corrupted if two hosts open it"
        other = "use PostgreSQL: `--store postgresql://USER@HOST/NAME`, then `campaign db upgrade`"
        return at.warning("store.file_system", text, f"run every `campaign` on this host, or {other}")
    alone = ": only this host can open it, metrics arrive when the reconciler passes" if slurm else ""
    return at.ok("store.file_system", f"SQLite on {kind}{alone}")
