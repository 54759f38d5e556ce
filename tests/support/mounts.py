"""Whether tests may mount a folder over another one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache


@cache
def may_mount() -> bool:
    """Whether this user may: root of a machine, not of every container."""
    with tempfile.TemporaryDirectory() as folder:
        done = os.geteuid() == 0 and subprocess.run(["mount", "--bind", folder, folder], check=False).returncode == 0
        if done:
            subprocess.run(["umount", folder], check=True)
        return done
