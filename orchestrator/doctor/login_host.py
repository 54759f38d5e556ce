"""What `campaign doctor` sees of the host on which it is called: packages, the shared folder, the store."""

from __future__ import annotations

import netrc
import os
import platform
import re
import shutil
import socket
import sqlite3
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ...db.file_systems import file_system
from ...jobs.shared.files import create_exclusively
from ...jobs.shared.ownership import distrust
from ..executors import storage

if TYPE_CHECKING:
    from ..campaign.location import Location

GB: Final = 1e9
_NEED: Final = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?(?:>=([\d.]+))?")
_CREATED: Final = ".doctor-"
_PACKAGES: Final = {"wandb": ("wandb",), "tensorboard": ("tensorboard",), "mlflow": ("mlflow-skinny", "mlflow")}
"""Of each tool to which metrics can be forwarded, those of which one is enough."""


@dataclass(frozen=True)
class Package:
    """A package that this program needs: the least version, "" for any, and the installed one, "" for none."""

    name: str
    least: str
    found: str


@dataclass(frozen=True)
class Folder:
    """The campaign's folder, or the nearest one above it that exists.

    Attributes:
        path: the campaign's folder.
        looked_at: where the looks were made.
        trouble: why files cannot be written there, "" if they can.
        links: why a file cannot be created exactly once there, "" if it can.
        distrust: who else can write there, "" for nobody.
    """

    path: Path
    looked_at: Path
    trouble: str = ""
    links: str = ""
    distrust: str = ""
    file_system: str = ""
    free_gb: float = 0.0


@dataclass(frozen=True)
class StoreFacts:
    """The database.

    Attributes:
        address: without a password.
        missing: it is a SQLite file that has yet to be made.
        trouble: why it cannot be used, "" if it can.
        hint: what to do about that.
        away: it did not answer, and may do so later.
        version: of SQLite, or of the server.
        offset_s: its clock minus this host's; None for SQLite, which has none of its own.
    """

    address: str
    sqlite: bool
    missing: bool = False
    trouble: str = ""
    hint: str = ""
    away: bool = False
    version: str = ""
    schema: str = ""
    file_system: str = ""
    offset_s: float | None = None


@dataclass(frozen=True)
class Login:
    """This host.

    Attributes:
        tools: to which metrics can be forwarded, with the version that is installed.
        wandb_key: W&B finds out here who is asking.
        wandb_mode: `WANDB_MODE`, which holds where a spec says none.
    """

    host: str
    python: str
    packages: tuple[Package, ...] | None
    folder: Folder
    store: StoreFacts
    tools: Mapping[str, str] = field(default_factory=dict)
    wandb_key: bool = False
    wandb_mode: str = ""


def login(where: Location) -> Login:
    """Looks at this host, and at the folder and the store of a campaign."""
    return Login(
        host=socket.gethostname(),
        python=platform.python_version(),
        packages=_packages(),
        folder=_folder(where.settings.dir),
        store=_store(where),
        tools={tool: found for tool, names in _PACKAGES.items() if (found := _first_installed(names))},
        wandb_key=_has_wandb_key(),
        wandb_mode=os.environ.get("WANDB_MODE", ""),
    )


def _packages() -> tuple[Package, ...] | None:
    """What the package's own metadata asks for; None where it runs from a checkout that is not installed."""
    try:
        needs = metadata.requires("dscampaign") or []
    except metadata.PackageNotFoundError:
        return None
    return tuple(_package(need) for need in needs if "extra ==" not in need)


def _package(need: str) -> Package:
    found = _NEED.match(need)
    assert found is not None
    return Package(found[1], found[2] or "", _first_installed([found[1]]))


def _first_installed(names: Iterable[str]) -> str:
    """Version of the first of these packages that is installed, "" if none is."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC") or None).authenticators(server) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _folder(path: Path) -> Folder:
    looked_at = next(folder for folder in (path, *path.parents) if os.path.isdir(folder))  # noqa: PTH112 - as below
    try:
        free_gb = shutil.disk_usage(looked_at).free / GB
        return Folder(
            path,
            looked_at,
            trouble=storage.trouble(looked_at),
            links=_links(looked_at),
            distrust=distrust(path, path) if path == looked_at else "",
            file_system=file_system(looked_at),
            free_gb=free_gb,
        )
    except OSError as exc:
        return Folder(path, looked_at, trouble=exc.strerror or str(exc))


def _links(folder: Path) -> str:
    """Why a file cannot be created by exactly one of several here, as claims must be; "" if it can."""
    path = folder / f"{_CREATED}{uuid.uuid4().hex[:12]}"
    try:
        first, second = create_exclusively(path, "first"), create_exclusively(path, "second")
    except OSError as exc:
        return exc.strerror or str(exc)
    finally:
        path.unlink(missing_ok=True)
    return "" if first and not second else "two creations of one file both went well"


def _store(where: Location) -> StoreFacts:
    from ...db.errors import StoreError, StoreMissing, StoreUnreachable

    address, sqlite = where.settings.store_without_password, where.settings.store.startswith("sqlite")
    kind = file_system(Path(address.removeprefix("sqlite:///"))) if sqlite else ""
    library = sqlite3.sqlite_version if sqlite else ""
    facts = StoreFacts(address, sqlite, file_system=kind, version=library)
    try:
        schema, server, offset_s = _asked(where)
    except StoreMissing:
        return replace(facts, missing=True)
    except StoreError as exc:
        return replace(facts, trouble=exc.message, hint=exc.hint, away=isinstance(exc, StoreUnreachable))
    except ImportError as exc:
        return replace(facts, trouble=str(exc), hint="pip install 'dscampaign[postgres]'")
    except Exception as exc:  # noqa: BLE001 - a bug here must hide no other check, and its text may hold an address
        return replace(facts, trouble=f"cannot be asked: {type(exc).__name__}", hint="`campaign status --debug`")
    return replace(facts, version=library or server, schema=schema, offset_s=None if sqlite else offset_s)


def _asked(where: Location) -> tuple[str, str, float]:
    """The schema's version, the server's, and its clock minus this host's in seconds.

    Raises:
        StoreError: it cannot be used.
        ImportError: its driver is not installed.
    """
    store = where.open()
    try:
        schema = store.version() or ""
        with store.read() as conn:
            before_s = time.time()
            offset_s = store.now(conn) - (before_s + time.time()) / 2
            server = "" if store.is_sqlite else str(conn.exec_driver_sql("SHOW server_version").scalar_one())
    finally:
        store.close()
    return schema, server, offset_s


def missing_files(paths: Iterable[str]) -> tuple[str, ...]:
    """Those that are not on this host, or not for this user: pathlib would raise an error."""
    return tuple(path for path in paths if not os.path.exists(path))  # noqa: PTH110
