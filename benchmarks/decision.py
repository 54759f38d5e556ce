"""From the end of a job to the sbatch of its successor: seconds, and passes of `campaign reconcile --watch`.

    python benchmarks/decision.py

On a private Slurm (root, with the servers that `make test` installs), nothing queued, no backoff, a pass every
10 s as by default. A job's end is what Slurm's accounting says, in whole seconds; the successor's sbatch is the time of
its submission there. Steps take between 0 and 10 s, so that jobs end at any moment between two passes.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dscampaign.orchestrator.reconcile.actions import Finish, Submit
from dscampaign.orchestrator.reconcile.loop import SLURM_POLL_S
from dscampaign.tests.faults.trial import begin, case
from dscampaign.tests.support.slurm_fixtures import running_cluster

NODES = 2
STEPS = 7
ENDS = {
    "a rank exits with an error": "exit=3",
    "a rank dies by SIGKILL": "kill=9",
    "the launcher dies by SIGKILL": "launcher=9",
    "the agent dies by SIGKILL, no word left": "agent=9",
}
RUNS_EACH = 3

if TYPE_CHECKING:
    Decision = tuple[str, float, int]


def main() -> int:
    """Prints one line for each kind of end."""
    if not shutil.which("slurmctld", path="/usr/sbin:/usr/bin"):
        print("Slurm is not installed: scripts/test_dependencies.sh says what to install", file=sys.stderr)
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="decision-", dir="/tmp") as folder,
        running_cluster(Path(folder) / "slurm", NODES) as cluster,
    ):
        _print(_measure(Path(folder), cluster))
    return 0


def _measure(folder: Path, cluster: Any) -> list[Decision]:
    names = {f"end{kind}-{number}": end for kind, end in enumerate(ENDS) for number in range(RUNS_EACH)}
    cases = [
        case(name, str(STEPS), _step_time(number), *(f"{ENDS[end]}@{step}" for step in range(3, STEPS)))
        for number, (name, end) in enumerate(names.items())
    ]
    trial = begin(folder, cases, retry={"backoff_s": 0, "crash": 20, "infra": 20})
    done = trial.watch(poll_s=SLURM_POLL_S)
    kinds = {run.id: names[name.removeprefix("case-")] for name, run in done.runs.items()}
    submitted = _submit_times(cluster)
    return [decision for timed in trial.passes for decision in _decisions(timed, trial.passes, kinds, submitted)]


def _step_time(number: int) -> str:
    """Each run's own, in an order that no kind of end shares."""
    return f"--step-s={0.1 + SLURM_POLL_S * (number * 5 % 12) / 12:.2f}"


def _decisions(timed: Any, passes: list[Any], kinds: dict[int, str], submitted: dict[str, float]) -> list[Decision]:
    """The ends that one pass answered with a successor."""
    found = []
    followed = {action.run.id for action in timed.done.actions if isinstance(action, Submit)}
    for finish in (action for action in timed.done.actions if isinstance(action, Finish)):
        row, job = finish.attempt, finish.ended.job
        if row.run_id in followed and job is not None and job.ended_s is not None:
            took = sum(1 for other in passes if job.ended_s < other.began_s <= timed.began_s)
            next_s = min(at for at in submitted.values() if at >= timed.began_s - 1)
            found.append((kinds[row.run_id], next_s - job.ended_s, took))
    return found


def _submit_times(cluster: Any) -> dict[str, float]:
    """When each job was submitted, as the accounting has it."""
    lines = cluster.run(
        *("env", "SLURM_TIME_FORMAT=%s", "sacct", "-X", "-n", "-P", "--starttime=now-1days", "--format=JobID,Submit")
    )
    return {job: float(at) for job, at in (line.split("|") for line in lines.splitlines())}


def _print(decisions: list[Decision]) -> None:
    by_kind: dict[str, list[Decision]] = defaultdict(list)
    for decision in decisions:
        by_kind[decision[0]].append(decision)
    print(f"{'end of the job':42} {'n':>4} {'median s':>9} {'most s':>7} {'passes':>7} {'most':>5}")
    for kind, found in [*sorted(by_kind.items()), ("all", decisions)]:
        seconds, passes = [each[1] for each in found], [each[2] for each in found]
        median, typical = statistics.median(seconds), statistics.median(passes)
        print(f"{kind:42} {len(found):4} {median:9.1f} {max(seconds):7.1f} {typical:7.0f} {max(passes):5}")


if __name__ == "__main__":
    sys.exit(main())
