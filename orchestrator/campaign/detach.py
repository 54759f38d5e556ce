"""A reconciler that runs on after the shell is closed: a job of its own, or a process of this host.

All campaigns of a store share it. It holds the lease `STANDING`, which its starter holds before and hands over.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.files.private_files import make_private, open_private
from dscampaign.jobs.shared.layout import RECONCILER
from dscampaign.jobs.shared.variables import inheritable
from dscampaign.orchestrator.commands import CARRIED, typed
from dscampaign.orchestrator.errors import Unreachable, UserError
from dscampaign.orchestrator.executors import reconciler_job
from dscampaign.orchestrator.executors.base import ArrayTooLarge, SubmissionRefused, SubmissionUnclear, own_python
from dscampaign.orchestrator.executors.slurm_commands import LOOK_S, answering_within
from dscampaign.orchestrator.reconcile.lease import JOB_PREFIX, STANDING, LeaseHolder, acquire, release
from dscampaign.orchestrator.settings import Settings
from dscampaign.orchestrator.spec.slurm_syntax import slurm_minutes

_STARTED_WITHIN_S: Final = 30.0
_POLL_S: Final = 0.2


def jobs_in_queue(store: Store) -> Mapping[str, str] | None:
    """Return the states of the store's detached reconcilers in Slurm's queue, by job id; None without an answer."""
    try:
        with answering_within(LOOK_S):
            return reconciler_job.queued(_name(store))
    except Unreachable:
        return None


def runs_as_job(store: Store, campaign: CampaignRow) -> bool:
    """Return whether the reconciler can be a job: only one host may open SQLite. Raises Unreachable."""
    if campaign.executor != "slurm":
        return False
    return not store.is_sqlite or reconciler_job.place_of(_options(campaign).get("partition"))[0]


def detach(store: Store, campaign: CampaignRow, settings: Settings) -> LeaseHolder:
    """Start the reconciler of the store unless it runs, and return it; raises UserError if Slurm refuses the job."""
    as_job, me, gone, began_s = runs_as_job(store, campaign), LeaseHolder.me(), frozenset[str](), time.monotonic()
    while True:
        with store.write() as conn:
            epoch, other = acquire(conn, STANDING, me, gone)
        if epoch:
            break
        if other.job and not gone and other.job not in reconciler_job.queued(_name(store)):
            gone = frozenset({other.job})  # it was killed: its lease has yet to expire
        elif not other.starts or time.monotonic() - began_s > _STARTED_WITHIN_S:
            return other
        else:
            time.sleep(_POLL_S)  # another command is starting it
    [source] = [origin.source for origin in settings.origins if origin.name == "store"]
    found = settings.store != settings.store_without_password and source not in CARRIED
    place = [] if found else ["--store", store.url_without_password]  # else the job finds a password as this one did
    words = ["dscampaign.orchestrator.cli", "reconcile", "--all-campaigns", "--watch", *place]
    started, command = None, [*own_python(), *words]
    try:
        started = _job(store, campaign, command) if as_job else _process(store, campaign, command)
    except (SubmissionRefused, ArrayTooLarge, SubmissionUnclear) as error:
        by_hand = f"`{typed('reconcile', '--all-campaigns', '--watch')}`"
        hint = f"give its job another place in the spec, `reconciler: {{partition: ...}}`, or keep {by_hand} running"
        raise UserError(f"no job for the reconciler: {error}", hint) from error
    finally:
        with store.write() as conn:
            release(conn, STANDING, me)
            if started:
                acquire(conn, STANDING, started)
    return started


def _job(store: Store, campaign: CampaignRow, command: Sequence[str]) -> LeaseHolder:
    name, options = _name(store), _options(campaign)
    waiting = [job_id for job_id, state in reconciler_job.queued(name, "--me").items() if state.startswith("PENDING")]
    if waiting:
        return LeaseHolder.of_job(waiting[0])
    # One that runs without the lease has just seen that nothing is left. The next begins when it has ended (singleton).
    _, limit_min = reconciler_job.place_of(options.get("partition"))
    options["time"] = str(slurm_minutes(options.get("time", "")) or limit_min)
    return LeaseHolder.of_job(reconciler_job.submit(name, _folder(campaign) / f"{name}.sbatch", command, options))


def _process(store: Store, campaign: CampaignRow, command: Sequence[str]) -> LeaseHolder:
    with open(_folder(campaign) / f"{_name(store)}.log", "ab", opener=open_private) as log:
        process = subprocess.Popen(
            command,
            env=inheritable(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a closed terminal ends its own session alone
        )
    return LeaseHolder(socket.gethostname(), str(process.pid), "")


def _name(store: Store) -> str:
    return JOB_PREFIX + hashlib.sha256(store.url_without_login.encode()).hexdigest()[:8]


def _options(campaign: CampaignRow) -> dict[str, Any]:
    return dict(campaign.provenance.get("reconciler") or {})


def _folder(campaign: CampaignRow) -> Path:
    folder = Path(campaign.dir) / RECONCILER
    make_private(folder)
    return folder
