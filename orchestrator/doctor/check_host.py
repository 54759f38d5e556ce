"""From what was seen of the login host to verdicts: versions, the shared folder, the store, clocks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from ...db.file_systems import LOCAL
from ..spec.forward_section import WandbConfig
from .check import At, Check
from .login_host import Folder, Login, Package, StoreFacts
from .requirements import Wants

LEAST_FREE_GB: Final = 5.0
CLOCKS_AGREE_S: Final = 2.0
MUNGE_TOLERATES_S: Final = 300.0
"""Above this difference Slurm's own authentication fails."""

_WAL_BUG: Final = ((3, 7, 0), (3, 51, 2))
_SEVERAL_HOSTS: Final = "use PostgreSQL: `--store postgresql://USER@HOST/NAME`, then `campaign db upgrade`"


def host_checks(login: Login, wants: Sequence[Wants], *, shared: bool = False) -> Iterator[Check]:
    """Verdicts on the host where `campaign` was called, on the folder and on the store.

    Args:
        login: What was seen.
        wants: What a spec asks for; empty without one.
        shared: A node has proved to see the same folder.
    """
    yield from _versions(At(f"host {login.host}"), login)
    slurm = any(want.config.executor == "slurm" for want in wants)
    yield from folder_checks(login.folder, wants, at=At("shared folder"), nodes_need_it=slurm and not shared)
    yield from store_checks(login.store, at=At("store"), slurm=slurm)
    yield from _forward_checks(login, wants, at=At("forward"))


def _versions(at: At, login: Login) -> Iterator[Check]:
    yield at.ok("host.python", f"Python {login.python}")
    if login.packages is None:
        yield at.note("host.packages", "runs from a checkout that is not installed", "`pip install .` there")
        return
    wrong = [_wrong(package) for package in login.packages if _wrong(package)]
    if wrong:
        yield at.problem("host.packages", ", ".join(wrong), "install it again: `pip install -c constraints.txt .`")
    else:
        yield at.ok("host.packages", f"all {len(login.packages)} that it needs")


def _forward_checks(login: Login, wants: Sequence[Wants], *, at: At) -> Iterator[Check]:
    """Verdicts on the tools that get metrics too. Training does without them, so nothing here is a problem."""
    asked = {tool: (options, want) for want in wants for tool, options in want.config.forward.options().items()}
    for tool, (options, want) in sorted(asked.items()):
        version = login.tools.get(tool)
        if not version:
            hint = f"`pip install 'dscampaign[{tool}]'` into the environment that runs campaign"
            yield at.warning(f"forward.{tool}", f"{tool} is not installed: it will get no metrics", hint)
        elif tool == "wandb" and _wandb_asks(options.get("mode") or want.config.env.get("WANDB_MODE"), login):
            hint = f"{WandbConfig.login()}, or `mode: offline`"
            yield at.warning("forward.wandb", f"wandb {version}, which does not know who you are", hint)
        else:
            yield at.ok(f"forward.{tool}", f"{tool} {version}")


def _wandb_asks(mode: str | None, login: Login) -> bool:
    """Whether W&B wants to know who is there, and cannot."""
    return not login.wandb_key and (mode or login.wandb_mode or "online") == "online"


def _wrong(package: Package) -> str:
    if not package.found:
        return f"{package.name} is missing"
    if numbers(package.found) < numbers(package.least):
        return f"{package.name} {package.found} is older than {package.least}"
    return ""


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, to be compared: (3, 40, 1); empty where it has none."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def folder_checks(folder: Folder, wants: Sequence[Wants], *, at: At, nodes_need_it: bool) -> Iterator[Check]:
    """Verdicts on the campaign's folder.

    Args:
        nodes_need_it: Other hosts must see it, and none has been asked.
    """
    path = str(folder.path) if folder.path == folder.looked_at else f"{folder.path}, to be made in {folder.looked_at}"
    if folder.trouble:
        hint = "choose a folder that you can write to: `--dir`, or `dir` in campaign.toml"
        yield at.problem("folder.writable", f"{path}: {folder.trouble}", hint)
        return
    yield at.ok("folder.writable", path)
    if folder.distrust:
        hint = f"`chmod go-w {folder.path}`: nodes run nothing from a folder in which others can write"
        yield at.problem("folder.private", folder.distrust, hint)
    if folder.links:
        hint = "claims need hard links: choose a folder on NFS, Lustre, GPFS, BeeGFS or a local disk"
        yield at.problem("folder.links", f"a file cannot be created exactly once: {folder.links}", hint)
    else:
        yield at.ok("folder.links", "hard links and renames work")
    kind = folder.file_system or "unknown file system"
    if nodes_need_it and folder.file_system in LOCAL:
        hint = "`--on-node` asks a node; choose a folder that all nodes see, if they do not see this one"
        yield at.warning("folder.file_system", f"{kind}, which other hosts do not see unless it is exported", hint)
    else:
        yield at.ok("folder.file_system", kind)
    yield _space(folder, sum(want.checkpoints_gb for want in wants), at)


def _space(folder: Folder, needed_gb: float, at: At) -> Check:
    free = f"{folder.free_gb:,.0f} GB are free"
    if folder.free_gb < needed_gb:
        message = f"{free}, the checkpoints of all runs take about {needed_gb:,.0f} GB"
        return at.warning("folder.space", message, "keep fewer (train.keep_checkpoints), or make room")
    if folder.free_gb < LEAST_FREE_GB:
        return at.warning("folder.space", f"{folder.free_gb:,.1f} GB are free", "make room, or choose another folder")
    return at.ok("folder.space", f"{free}, checkpoints take about {needed_gb:,.0f} GB" if needed_gb >= 1 else free)


def store_checks(store: StoreFacts, *, at: At, slurm: bool) -> Iterator[Check]:
    """Verdicts on the database.

    Args:
        slurm: Attempts run on other hosts.
    """
    if store.trouble:
        yield at.problem("store.reachable", store.trouble, store.hint or "see `--store`", away=store.away)
    elif store.missing:
        yield at.ok("store.reachable", f"{store.address} is made by the first `campaign submit`")
    else:
        yield at.ok("store.reachable", f"{store.address}, schema {store.schema}")
    if not store.sqlite:
        if store.version:
            yield at.ok("store.version", f"PostgreSQL {store.version}")
        if store.offset_s is not None:
            yield clock_check("store.clock", store.offset_s, store.offset_s, "the database's clock", "this host's", at)
        return
    yield _sqlite_version(store.version, at)
    yield _sqlite_disk(store, at, slurm=slurm)


def _sqlite_version(version: str, at: At) -> Check:
    least, most = _WAL_BUG
    if least <= numbers(version) <= most:
        seen = f"SQLite {version} can damage a database that several programs write to at once (WAL reset)"
        hint = "campaigns write one at a time, which avoids it: let nothing else write to the file, or use PostgreSQL"
        return at.note("store.version", seen, hint)
    return at.ok("store.version", f"SQLite {version}")


def _sqlite_disk(store: StoreFacts, at: At, *, slurm: bool) -> Check:
    kind = store.file_system or "unknown file system"
    if store.file_system not in LOCAL:
        seen = f"SQLite on {kind}, a network file system: slower, and damaged if two hosts open it"
        return at.warning("store.file_system", seen, f"run every `campaign` on this one host, or {_SEVERAL_HOSTS}")
    if slurm:
        seen = f"SQLite on {kind}: only this host can open it, metrics arrive when the reconciler passes"
        return at.note("store.file_system", seen, f"for a reconciler as a job, {_SEVERAL_HOSTS}")
    return at.ok("store.file_system", f"SQLite on {kind}")


def clock_check(about: str, least_s: float, most_s: float, clock: str, other: str, at: At) -> Check:
    """The verdict on the difference of two clocks.

    Args:
        about: The check's id.
        least_s, most_s: Bounds of the first minus the second.
        clock, other: Whose they are.
    """
    off_s = 0.0 if least_s <= 0 <= most_s else min(abs(least_s), abs(most_s))
    if off_s <= CLOCKS_AGREE_S:
        return at.ok(about, f"{clock} agrees with {other} within {max(abs(least_s), abs(most_s), 0.1):.1f} s")
    seen = f"{clock} is {off_s:.0f} s {'ahead of' if least_s > 0 else 'behind'} {other}"
    hint = "have both set by NTP (`chronyc tracking`): ages, durations and energy are reckoned with them"
    if off_s > MUNGE_TOLERATES_S:
        return at.problem(about, seen, f"{hint}; Slurm's authentication fails above {MUNGE_TOLERATES_S:.0f} s")
    return at.warning(about, seen, hint)
