"""The database goes away while runs train, and comes back: no step is missing, none is given twice."""

from __future__ import annotations

from pathlib import Path

from dscampaign.db.states import RunState
from dscampaign.tests.support.campaigns import Observed, open_store, run_to_end, submit
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.slurm_cluster import SlurmCluster

from .test_submission import write_spec

STEPS = 40


class Outage:
    """Stops the server at once when the run is under way; the watch starts it again after some vain passes."""

    def __init__(self, server: PostgresServer) -> None:
        self._server, self.passes, self.seen_step = server, 0, 0

    def __call__(self, seen: Observed) -> None:
        last = max((a.last_step or 0 for rows in seen.attempts.values() for a in rows), default=0)
        if last >= 5 and not self.seen_step:
            self.seen_step = last
            self._server.stop("immediate")

    def while_away(self, _: Exception) -> None:
        self.passes += 1
        if self.passes == 5:
            self._server.start()


def test_no_step_is_missing_after_the_database_was_away(
    slurm: SlurmCluster, postgres: PostgresServer, tmp_path: Path
) -> None:
    store = open_store(postgres.new_database())
    campaign = submit(write_spec(tmp_path, steps=STEPS, step_s=0.5, runs=1), tmp_path, store)
    outage = Outage(postgres)
    done = run_to_end(store, campaign, each_pass=outage, each_error=outage.while_away)
    [name] = done.runs
    assert done.runs[name].state is RunState.COMPLETED
    assert outage.passes >= 5
    assert 5 <= outage.seen_step < STEPS
    assert done.steps(name) == list(range(1, STEPS + 1))
    assert len(done.attempts[name]) == 1
