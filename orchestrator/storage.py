"""Whether the campaign's folder takes files: tried by writing one, since quotas and stale handles show in no figure."""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

PROBE_BYTES: Final = 1 << 20
"""More than what a file system keeps for the directory itself."""


def trouble(folder: Path, needed_bytes: int = 0) -> str:
    """What is wrong with a folder; "" if it takes files.

    Args:
        folder: where attempts write.
        needed_bytes: what must be free for the next attempt to get anywhere, such as the size of a checkpoint.
    """
    probe = folder / f".probe-{uuid.uuid4().hex[:8]}"
    try:
        _write(probe)
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        return exc.strerror or str(exc)
    finally:
        with suppress(OSError):
            probe.unlink()
    if free < needed_bytes:
        return f"{free / 1e9:.1f} GB are free, a checkpoint takes {needed_bytes / 1e9:.1f} GB"
    return ""


def _write(probe: Path) -> None:
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, bytes(PROBE_BYTES))
        os.fsync(descriptor)  # a quota may be found out only here
    finally:
        os.close(descriptor)
