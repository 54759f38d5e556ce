"""Claims: a job takes that of an attempt before it begins, the reconciler so that no job can begin one that is over."""

from __future__ import annotations

import json
import time
from typing import Any

from ...db.records import AttemptRow
from ...files.atomic_files import create_exclusively, read_json
from ...files.private_files import make_below
from ...jobs.shared.layout import AttemptPaths, RunPaths
from ..executors.job_request import attempt_paths


def take_claim(row: AttemptRow) -> bool:
    """Takes an attempt's claim for the reconciler; False if a job was faster.

    Raises:
        OSError: the shared folder takes no files.
    """
    files, mine = attempt_paths(row), revoked(row.token)
    if files.claim.exists():
        return (read_json(files.claim) or {}).get("job_id") == mine
    make_below(files.dir.parents[1], files.dir)  # the folder of all runs is made by whoever records the campaign
    taken = create_exclusively(files.claim, json.dumps({"job_id": mine, "ts": time.time()}))
    return taken or (read_json(files.claim) or {}).get("job_id") == mine


def is_claimed(row: AttemptRow) -> bool:
    """Whether anybody has taken an attempt's claim. Raises OSError if nobody can tell."""
    return attempt_paths(row).claim.exists()


def job_claim(files: AttemptPaths, token: str) -> dict[str, Any] | None:
    """A job's claim, empty where it cannot be read; None for none.

    The reconciler may have taken it and died before recording that.
    """
    claim = read_json(files.claim)
    if claim is None:
        return {} if files.claim.exists() else None
    return None if claim.get("job_id") == revoked(token) else claim


def newest_claimed(run: RunPaths) -> int:
    """The highest generation of a run with a claim, 0 for none."""
    return max((int(claim.parent.name[1:]) for claim in run.dir.glob("g[0-9]*/claim")), default=0)


def revoked(token: str) -> str:
    """What a claim names as its job after the reconciler has taken it."""
    return f"revoked-{token}"
