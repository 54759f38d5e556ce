"""Check the host that calls `campaign doctor`: shared folder, store, clocks, the Python of a spec."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dscampaign.files.atomic_files import create_exclusively
from dscampaign.files.file_systems import LOCAL, file_system
from dscampaign.files.ownership import distrust
from dscampaign.jobs.probe.examine import store_offset_s
from dscampaign.orchestrator.executors import storage
from dscampaign.orchestrator.settings import Settings

from .check import At, Check
from .option_checks import answer
from .requirements import GB, Requirements

if TYPE_CHECKING:
    from dscampaign.db.store import Store
    from dscampaign.orchestrator.campaign.location import Location

LEAST_FREE_GB: Final = 5.0
CLOCKS_AGREE_S: Final = 2.0
MUNGE_TOLERATES_S: Final = 300.0
"""Above this difference Slurm's own authentication fails."""

_SEVERAL_HOSTS: Final = "use PostgreSQL: `--store postgresql://USER@HOST/NAME`, then `campaign db upgrade`"


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
    if trouble := _without_links(nearest):
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


def _without_links(folder: Path) -> str:
    path = folder / f".doctor-{uuid.uuid4().hex[:12]}"
    try:
        first, second = create_exclusively(path, "first"), create_exclusively(path, "second")
    except OSError as exc:
        return exc.strerror or str(exc)
    finally:
        path.unlink(missing_ok=True)
    return "" if first and not second else "two processes could both create the same file"


def store_checks(location: Location, *, slurm: bool) -> Iterator[Check]:
    """Return verdicts on the database; with `slurm` attempts on other hosts need it too."""
    from dscampaign.db.errors import StoreError, StoreMissing, StoreUnreachable

    at, settings = At("store"), location.settings
    try:
        store = location.open()
        try:
            yield from _answers(store, settings, at)
        finally:
            store.close()
    except StoreMissing:
        yield at.ok("store.reachable", f"{settings.store_without_password} is created by the first `campaign submit`")
    except StoreError as exc:
        away = isinstance(exc, StoreUnreachable)
        yield at.problem("store.reachable", exc.message, exc.hint or "see `--store`", away=away)
    except ImportError as exc:
        yield at.problem("store.reachable", str(exc), "`pip install 'dscampaign[postgres]'`")
    if settings.store.startswith("sqlite"):
        kind = file_system(Path(settings.store_without_password.removeprefix("sqlite:///")))
        yield sqlite_check(kind, at, slurm=slurm)


def _answers(store: Store, settings: Settings, at: At) -> Iterator[Check]:
    from dscampaign.db.errors import StoreReadOnly
    from dscampaign.db.schema import HEAD

    text = f"{settings.store_without_password}, schema {HEAD}"
    if store.is_sqlite:
        yield at.ok("store.reachable", text)
        try:
            store.check_writable()
        except StoreReadOnly as exc:
            yield at.problem("store.writable", exc.message, exc.hint)
        return
    offset_s = store_offset_s(store)
    with store.read() as conn:
        server = conn.exec_driver_sql("SHOW server_version").scalar_one()
    yield at.ok("store.reachable", f"{text}, PostgreSQL {server}")
    yield clock_check("store.clock", offset_s, offset_s, "the database's clock", "this host's", at)


def sqlite_check(kind: str, at: At, *, slurm: bool) -> Check:
    """Return the verdict on the file system of a SQLite file; an unknown one counts as a network's."""
    if kind not in LOCAL:
        text = f"SQLite on {kind or 'an unknown file system'}, over a network: corrupted if two hosts open it"
        return at.warning("store.file_system", text, f"run every `campaign` on this host, or {_SEVERAL_HOSTS}")
    if slurm:
        text = f"SQLite on {kind}: only this host can open it, metrics arrive when the reconciler passes"
        return at.note("store.file_system", text, f"for a reconciler as a job, {_SEVERAL_HOSTS}")
    return at.ok("store.file_system", f"SQLite on {kind}")


def clock_check(about: str, least_s: float, most_s: float, clock: str, other: str, at: At) -> Check:
    """Return the verdict on the difference of two clocks, which lies between `least_s` and `most_s`."""
    off_s = 0.0 if least_s <= 0 <= most_s else min(abs(least_s), abs(most_s))
    if off_s <= CLOCKS_AGREE_S:
        return at.ok(about, f"{clock} agrees with {other} within {max(abs(least_s), abs(most_s), 0.1):.1f} s")
    text = f"{clock} is {off_s:.0f} s {'ahead of' if least_s > 0 else 'behind'} {other}"
    hint = "synchronize both with NTP (`chronyc tracking`): ages, durations and energy depend on them"
    if off_s > MUNGE_TOLERATES_S:
        return at.problem(about, text, f"{hint}; Slurm's authentication fails above {MUNGE_TOLERATES_S:.0f} s")
    return at.warning(about, text, hint)


_OF_THE_TRAINER: Final = ("deepspeed", "transformers")
_OF_LAUNCHERS: Final = {None: ("deepspeed",), "deepspeed": ("deepspeed",), "accelerate": ("accelerate",)}
_ASK: Final = "import sys; from importlib.util import find_spec; print(*(n for n in sys.argv[1:] if not find_spec(n)))"
_WAIT_S: Final = 20.0
_WRITE: Final = "write the path of an interpreter as `python`"
_NODES: Final = "`campaign doctor SPEC --on-node` checks a node"


def python_checks(host: str, requirements: Sequence[Requirements]) -> Iterator[Check]:
    """Return verdicts on the interpreters as this host sees them; a cluster's nodes may have others."""
    questions: dict[tuple[str, tuple[str, ...]], Requirements] = {}
    for required in requirements:
        config = required.config
        if config.container:  # only a node can start it
            continue
        own = _OF_THE_TRAINER if config.command is None else _OF_LAUNCHERS.get(config.launcher, ())
        questions.setdefault((config.python or sys.executable, ("torch", *own)), required)
    yield from (_python(At(host), python, names, required) for (python, names), required in questions.items())


def _python(at: At, python: str, names: Sequence[str], required: Requirements) -> Check:
    config = required.config
    local = config.executor == "local"
    try:
        done = answer([python, "-c", _ASK, *names], {**os.environ, **config.env}, _WAIT_S)
    except (OSError, subprocess.TimeoutExpired) as exc:
        text = f"{python} did not answer: {getattr(exc, 'strerror', None) or f'{_WAIT_S:.0f} s passed'}"
        return at.problem("host.packages", text, _WRITE) if local else at.note("host.packages", text, _NODES)
    if done.returncode:
        text = f"{python} fails: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
        return at.problem("host.packages", text, _WRITE)
    missing = done.stdout.split()
    if not missing:
        return at.ok("host.packages", f"{python} has {', '.join(names)}")
    text = f"{python} has no {', no '.join(missing)}"
    hint = f"`{python} -m pip install {' '.join(missing)}`, or name another interpreter as `python`"
    if config.slurm.setup if not local else config.local.setup:
        return at.note("host.packages", text, f"unless `setup` provides them; {_NODES}")
    return at.problem("host.packages", text, hint) if local else at.warning("host.packages", text, f"{hint}; {_NODES}")
