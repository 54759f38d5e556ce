"""What a campaign of thousands of runs takes on the login node: plan, submit, a pass, status, cancel, beside submitit.

    python benchmarks/scale.py [--runs 10000] [--repeats 3] [--runs-per-job 20] [--json FILE]
    python benchmarks/scale.py --runs 1000 10000 100000 --repeats 1 --watch

Each row is one command in a process of its own: seconds, seconds of CPU, the most memory that it held, and for `submit`
what it left on the disk. Slurm is a stub that queues what it is given, so that only this side is measured; submitit
alone submits the same number of tasks to it. Medians over the repeats, each with a store and a folder of its own.
With `--watch` there is one row instead: a campaign that `reconcile --watch` brings to its end, on a simulated
cluster where a tenth of the runs runs at a time and each job lasts from one pass to the next (`simulated_watch.py`).
Of several numbers of runs a last table says what each further run takes, from one number to the next: what grows there
grows faster than the campaign.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from dscampaign.benchmarks.shared.results import commit_id, write_json
from dscampaign.benchmarks.shared.simulated_watch import leave_end, record_campaign, watch
from dscampaign.db import queries
from dscampaign.db.store import Store
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.layout import AttemptPaths

SBATCH = """\
#!/bin/sh
# Queues each task of the array, as `squeue --array` would print it, and says the array's number.
case " $* " in *" --test-only "*) exit 0 ;; esac
cd {folder} || exit 1
for script; do :; done
number=$(($(cat count) + 1)); echo $number > count
name=$(sed -n 's/^#SBATCH --job-name=//p' "$script" | tr -d "\\"'")
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
seq -f "${{number}}_%.0f|PENDING|Priority|2026-01-31T12:00:00|N/A|N/A||$(id -u)|$name" 0 "$last" >> queue
echo "{said}"
"""
ANSWERS = {
    "squeue": "cat {folder}/queue",
    "scancel": "sed -i 's/|PENDING|Priority|/|CANCELLED|None|/' {folder}/queue",
    "sacct": ":",
    "sinfo": "echo node1",
    "scontrol": "echo 'MaxArraySize = 10001'",
    "srun": ":",
}
SPEC = """\
name: scale
executor: slurm
max_runs: {runs}
command: train.py --a {{a}} --b {{b}}
train: {{steps: 100}}
slurm: {{partition: h100, gpus_per_node: 8, time: 60, runs_per_job: {per_job}}}
matrix: {{a: {a}, b: {b}}}
"""
ENDED = "pass, a tenth ended"
COMMANDS: Mapping[str, Sequence[str]] = {
    "plan": ["plan", "spec.yaml"],
    "submit": ["submit", "spec.yaml", "--yes"],
    "idle pass": ["reconcile", "scale"],
    ENDED: ["reconcile", "scale"],
    "status": ["status", "scale"],
    "status --json": ["status", "scale", "--json"],
    "cancel --all": ["cancel", "scale", "--all"],
}
SUBMITIT = """\
import sys, submitit
executor = submitit.SlurmExecutor(folder="submitit")
executor.update_parameters(time=60, partition="h100", array_parallelism=100)
executor.map_array(abs, range(int(sys.argv[1])))
"""


TOP = """\
import asyncio
from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.live.top import view_of

async def look():
    app = view_of(locate(PlaceOptions()).open(), None)
    async with app.run_test(size=(140, 40)) as pilot:
        await app.look().wait()
        await pilot.press("end", "s", "r", "slash", "b", "-", "9", "enter", "home", "pagedown")

asyncio.run(look())
"""
"""`campaign top` from its start to its end, with ten keys: sorting and filtering among them."""


UNSETTLED = 8
"""The exit code of a pass that leaves something to wait for."""


@dataclass(frozen=True)
class Cost:
    """What one command took; files and megabytes are what it added to the disk."""

    seconds: float
    cpu_s: float
    memory_mb: float
    files: int
    disk_mb: float
    lines: int


def main() -> int:
    """Prints a table; writes it as JSON too if asked."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, nargs="+", default=[10_000])
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--runs-per-job", type=int, default=1, help="runs that a job runs in turn; not with --watch")
    options.add_argument("--json", type=Path, help="file to write")
    options.add_argument("--watch", action="store_true", help="a whole campaign under the watch, instead of commands")
    given = options.parse_args()
    found = {}
    for runs in sorted(given.runs):
        measure = _watched if given.watch else partial(_measure, per_job=given.runs_per_job)
        found[runs] = _medians(runs, given.repeats, measure)
        _print(found[runs], runs, given.repeats)
    if len(found) > 1:
        _print_growth(found)
    sizes = [
        {"runs": runs, "rows": {name: asdict(cost) for name, cost in rows.items()}} for runs, rows in found.items()
    ]
    write_json(given.json, {"repeats": given.repeats, "commit": commit_id(), "cores": os.cpu_count(), "sizes": sizes})
    return 0


def _medians(runs: int, repeats: int, measure: Callable[[Path, int], dict[str, Cost]]) -> dict[str, Cost]:
    costs: dict[str, list[Cost]] = defaultdict(list)
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="scale-") as folder:
            for name, cost in measure(Path(folder), runs).items():
                costs[name].append(cost)
    return {name: _median(each) for name, each in costs.items()}


def make_campaign(folder: Path, runs: int, per_job: int = 1) -> dict[str, str]:
    """Writes a campaign's spec and script into a folder; returns the environment with a Slurm that only queues."""
    rows = next(rows for rows in range(round(runs**0.5), 0, -1) if runs % rows == 0)
    (folder / "train.py").touch()
    axes = {"a": list(range(rows)), "b": list(range(runs // rows))}
    (folder / "spec.yaml").write_text(SPEC.format(**axes, runs=runs, per_job=per_job))
    return _stub(folder, "$number")


def _measure(folder: Path, runs: int, per_job: int) -> dict[str, Cost]:
    env = make_campaign(folder, runs, per_job)
    words = [sys.executable, "-m", "dscampaign.orchestrator.cli"]
    found = {}
    for name, command in COMMANDS.items():
        if name == ENDED:
            end_some(folder, runs // 10)
        found[name] = _run([*words, *command], folder, env)
    found["top, 10 keys"] = _run([sys.executable, "-c", TOP], folder, env)
    env = _stub(folder, "Submitted batch job $number")
    return found | {"submitit alone": _run([sys.executable, "-c", SUBMITIT, str(runs)], folder, env)}


def _watched(folder: Path, runs: int) -> dict[str, Cost]:
    env = make_campaign(folder, runs)
    found = watch(folder, record_campaign(folder), env)
    return {f"watch, {found.passes} passes": Cost(found.seconds, found.cpu_s, found.memory_mb, 0, 0.0, found.lines)}


def end_some(folder: Path, number: int) -> None:
    """Has the jobs of so many runs end, as their agents and Slurm would leave them: ten steps each, completed."""
    store = Store.open(f"sqlite:///{folder}/campaign/campaign.db")
    with store.read() as conn:
        [campaign] = queries.list_campaigns(conn)
        rows = queries.attempts(conn, campaign.id)[:number]
    store.close()
    now_s = time.time()
    for row in rows:
        files = AttemptPaths(Path(row.spool_path).parent)
        make_below(Path(row.spool_path).parents[2], files.dir)
        files.claim.write_text(json.dumps({"job_id": row.job_id, "host": "node1", "ts": now_s}))
        leave_end(files, row.job_id or "", now_s - 60, now_s)
    ended = {row.job_id for row in rows}
    queue = folder / "slurm" / "queue"
    lines = queue.read_text().splitlines()
    was, now = (
        "|PENDING|Priority|2026-01-31T12:00:00|N/A|N/A||",
        f"|COMPLETED|None|{now_s:.0f}|{now_s:.0f}|{now_s:.0f}|node1|",
    )
    queue.write_text("".join(f"{line.replace(was, now) if line.split('|')[0] in ended else line}\n" for line in lines))


def _stub(folder: Path, said: str) -> dict[str, str]:
    """Slurm's commands on PATH."""
    slurm = folder / "slurm"
    slurm.mkdir(exist_ok=True)
    (slurm / "count").write_text("0")
    (slurm / "queue").write_text("")
    scripts = {name: f"#!/bin/sh\n{line.format(folder=slurm)}\n" for name, line in ANSWERS.items()}
    for name, text in {**scripts, "sbatch": SBATCH.format(folder=slurm, said=said)}.items():
        (slurm / name).write_text(text)
        (slurm / name).chmod(0o755)
    own = {"PATH": f"{slurm}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(folder / "config")}
    # as installed: modules that were compiled once stay compiled
    hidden = ("CAMPAIGN_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | own


def _run(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> Cost:
    files, size = _disk(folder)
    with (folder / "output").open("w+b") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        took = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode()
    if process.returncode not in (0, UNSETTLED):
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {text[-2000:]}")
    (folder / "output").unlink()
    more_files, more_size = _disk(folder)
    memory_mb = usage.ru_maxrss / 1e3
    added = more_files - files, (more_size - size) / 1e6
    return Cost(took, usage.ru_utime + usage.ru_stime, memory_mb, *added, text.count("\n"))


def _disk(folder: Path) -> tuple[int, int]:
    """Files and folders below it, and the bytes that their blocks take."""
    found = [path.lstat() for path in folder.rglob("*")]
    return len(found), sum(each.st_blocks * 512 for each in found)


def _median(found: Sequence[Cost]) -> Cost:
    """Of each figure by itself."""
    return Cost(*(statistics.median(values) for values in zip(*(asdict(one).values() for one in found), strict=True)))


def _print(rows: Mapping[str, Cost], runs: int, repeats: int) -> None:
    version = platform.python_version()
    print(f"{runs:,} runs, medians of {repeats}; {os.cpu_count()} cores, Python {version}; commit {commit_id()}")
    print(f"{'':20}{'s':>8}{'CPU s':>8}{'MB':>7}{'files':>8}{'disk MB':>9}{'lines':>8}")
    for name, cost in rows.items():
        figures = f"{cost.seconds:8.2f}{cost.cpu_s:8.2f}{cost.memory_mb:7.0f}"
        print(f"{name:20}{figures}{cost.files:8.0f}{cost.disk_mb:9.1f}{cost.lines:8.0f}")


def growth(found: Mapping[int, Mapping[str, Cost]]) -> dict[str, list[tuple[float, float]]]:
    """By command and from one number of runs to the next: CPU milliseconds and kilobytes of memory a further run."""
    steps = list(pairwise(sorted(found)))
    return {
        name: [
            (
                (found[more][name].cpu_s - found[less][name].cpu_s) / (more - less) * 1e3,
                (found[more][name].memory_mb - found[less][name].memory_mb) / (more - less) * 1e3,
            )
            for less, more in steps
        ]
        for name in found[min(found)]
    }


def _print_growth(found: Mapping[int, Mapping[str, Cost]]) -> None:
    heads = "".join(f"{f'{less:,} to {more:,}':>22}" for less, more in pairwise(sorted(found)))
    print(f"{'each further run':20}{heads}")
    for name, steps in growth(found).items():
        print(f"{name:20}" + "".join(f"{cpu_ms:12.2f} ms{memory_kb:4.0f} kB" for cpu_ms, memory_kb in steps))


if __name__ == "__main__":
    sys.exit(main())
