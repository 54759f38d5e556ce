"""A disk of a test's own, small enough to be filled."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Self


class SmallDisk:
    """A file system of so many megabytes in memory, at `path` for the length of a block; needs root."""

    def __init__(self, path: Path, mb: int) -> None:
        self.path, self._mb = path, mb
        self._ballast = path / "ballast"

    def __enter__(self) -> Self:
        self.path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self._mb}m", "tmpfs", str(self.path)], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def fill(self) -> None:
        """Writes until not one byte more is taken."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size):
                        pass

    def free(self) -> None:
        """Makes room again."""
        self._ballast.unlink(missing_ok=True)
