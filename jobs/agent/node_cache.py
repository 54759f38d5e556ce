"""Where a node keeps what its ranks compile: a folder of this user's alone, for what lies in it is run.

Over a shared home the ranks of all nodes wait for one lock, and a half-written file of one version of torch is read by
another: so the node's own disk is asked first. But a public folder may hold what somebody else has put there under the
expected name, modules of Python and libraries among it.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dscampaign.files.ownership import private_folder

_FOLDERS: Final = {
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}

_AT_HOME: Final = Path(".cache", "dscampaign")


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The caches' variables that the environment does not set, each with a folder on this node.

    Args:
        environ: of this process; TMPDIR names the node's disk.
    """
    missing = {name: below for name, below in _FOLDERS.items() if not environ.get(name)}
    if not missing:
        return {}
    folder = _ours(environ)
    return {name: str(folder / below) for name, below in missing.items()}


def is_ours(folder: Path) -> bool:
    """Whether a cache's folder is one that `variables` chose, and not the user."""
    return folder.parent.name == _name() or folder.parent.parent == Path.home() / _AT_HOME


def _name() -> str:
    return f"dscampaign-{os.geteuid()}"


def _ours(environ: Mapping[str, str]) -> Path:
    name = _name()
    for public in dict.fromkeys((environ.get("TMPDIR") or "/tmp", "/tmp")):  # noqa: S108 - looked at before it is used
        folder = Path(public) / name
        if not (why := private_folder(folder)):
            return folder
        print(f"what is compiled is not kept there: {why}", file=sys.stderr, flush=True)
    return Path.home() / _AT_HOME / socket.gethostname()
