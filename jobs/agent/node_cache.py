"""Choose a node's folder for compiled code: it must be this user's alone, for the code is run.

In a shared home the ranks of all nodes wait for one lock, and another version of torch reads half-written files: so the
node's own disk comes first. But in a public folder another user may have put modules and libraries under the expected
name.
"""

from __future__ import annotations

import hashlib
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


def variables(environ: Mapping[str, str], image: str = "") -> dict[str, str]:
    """Return the caches' variables that the environment does not set, each with a folder on this node.

    What one image's compiler and torch have built, another's must not load.
    """
    missing = {name: below for name, below in _FOLDERS.items() if not environ.get(name)}
    folder = _ours(environ, f"-{hashlib.sha256(image.encode()).hexdigest()[:8]}" if image else "")
    return {name: str(folder / below) for name, below in missing.items()}


def _ours(environ: Mapping[str, str], image: str) -> Path:
    name = f"dscampaign-{os.geteuid()}{image}"
    for public in dict.fromkeys((environ.get("TMPDIR") or "/tmp", "/tmp")):  # noqa: S108 - looked at before it is used
        folder = Path(public) / name
        if not (why := private_folder(folder)):
            return folder
        print(f"compiled kernels are not kept there: {why}", file=sys.stderr, flush=True)
    return Path.home() / ".cache" / "dscampaign" / f"{socket.gethostname()}{image}"
