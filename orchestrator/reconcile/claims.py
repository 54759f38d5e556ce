"""Claims: a job takes that of an attempt before it begins, the reconciler so that no job can begin one that is over."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from dscampaign.db.records import AttemptRow
from dscampaign.db.storable import is_whole
from dscampaign.files.atomic_files import create_exclusively, read_json
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.identity import Identity
from dscampaign.jobs.shared.layout import AttemptPaths, RunPaths
from dscampaign.orchestrator.executors.job_request import attempt_paths


def take_claim(row: AttemptRow) -> bool:
    """Takes an attempt's claim for the reconciler; False if a job was faster.

    A claim of another submission keeps the jobs of this one from beginning just as well.

    Raises:
        OSError: the shared folder takes no files.
    """
    files, own = attempt_paths(row), asdict(Identity.of(row))
    if files.claim.exists():
        return _is_fenced(row)
    make_below(files.dir.parents[1], files.dir)  # the folder of all runs is made by whoever records the campaign
    taken = create_exclusively(files.claim, json.dumps({"job_id": revoked(row.token), "ts": time.time(), **own}))
    return taken or _is_fenced(row)


def _is_fenced(row: AttemptRow) -> bool:
    claim = read_json(attempt_paths(row).claim) or {}
    return claim.get("job_id") == revoked(row.token) or not Identity.of(row).owns(claim)


def is_foreign(row: AttemptRow) -> bool:
    """Return whether the files in an attempt's folder are another submission's, by the claim there."""
    return not Identity.of(row).owns(read_json(attempt_paths(row).claim) or {})


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


def newest_begun(run: RunPaths) -> int:
    """Return the highest generation of a run that may have begun, 0 for none.

    The one that may write need not have: it may not have been submitted after all.
    """
    current = (read_json(run.current) or {}).get("generation")
    numbers = (claim.parent.name[1:] for claim in run.dir.glob("g[0-9]*/claim"))
    claimed = max((int(number) for number in numbers if number.isdecimal()), default=0)
    return max(claimed, current - 1 if is_whole(current, 1) else 0)


def revoked(token: str) -> str:
    """What a claim names as its job after the reconciler has taken it."""
    return f"revoked-{token}"
