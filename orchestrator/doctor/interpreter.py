"""Run a Python that a spec names, for a short question."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from dscampaign.jobs.shared.process_groups import signal_group

_PIPE = subprocess.PIPE


def answer(
    command: Sequence[str], env: Mapping[str, str], wait_s: float, question: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its output.

    Ended with it are all processes that it has started: an interpreter may be a script around another.

    Raises:
        OSError: it cannot be run.
        subprocess.TimeoutExpired: it did not end in time.
    """
    # Not in this folder, whose files could pass for packages.
    with subprocess.Popen(
        command, env=env, cwd="/", text=True, start_new_session=True, stdin=_PIPE, stdout=_PIPE, stderr=_PIPE
    ) as child:
        try:
            out, err = child.communicate(question, timeout=wait_s)
        finally:
            signal_group(child.pid)
    return subprocess.CompletedProcess(command, child.returncode, out, err)
