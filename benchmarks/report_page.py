"""What a report costs: seconds of the processor and memory for the page of a large campaign. SQLite.

python benchmarks/report_page.py [--runs 1000] [--steps 1000]
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dscampaign.db import bulk, queries
from dscampaign.db.ingest.metrics import MetricSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.db.records import NewAttempt, NewRun
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store

REPEATS = 3
_SCATTER = 0.03
"""Part by which the steps of a run are slower or faster than those of another: as fast as each other, but not quite."""
TRAIN = {"model": "gpt2", "seq_len": 1024, "global_batch": 64, "zero_stage": 1}


def main() -> None:
    """Prints one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        url = f"sqlite:///{folder}/campaign.db"
        _fill(Store.open(url, create=True), folder, options.runs, options.steps)
        words = [
            sys.executable,
            "-m",
            "dscampaign.orchestrator.cli",
            "report",
            "large",
            "--store",
            url,
            "--output",
            "page",
        ]
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds, peak_gb = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9
        size_mb = (folder / "page/report.html").stat().st_size / 1e6
    steps = options.runs * options.steps
    cost = f"{seconds:.1f} s of the processor, {peak_gb:.2f} GB, page {size_mb:.1f} MB"
    print(f"report of {options.runs:,} runs, {steps:,} steps: {cost}")


def _fill(store: Store, folder: Path, runs: int, steps: int) -> None:
    """Runs in conditions of three repeats, each with an attempt that completed, with losses and a speed of its own."""
    spool = folder / "metrics.jsonl"
    with store.write() as conn:
        campaign = queries.insert_campaign(
            conn, name="large", spec="", spec_hash="s", dir=str(folder), executor="slurm"
        )
        bulk.insert_runs(conn, campaign, [_run(number, steps) for number in range(runs)])
        ids = [run.id for run in queries.runs(conn, campaign)]
    for run_id in ids:
        spool.write_text("".join(_lines(steps, random.Random(run_id))))
        with store.write() as conn:
            attempt = bulk.insert_attempts(conn, [_attempt(run_id)])[0].id
        while not ingest(store, MetricSpool(attempt, spool)).caught_up:
            pass
        with store.write() as conn:
            queries.update_attempt(
                conn, attempt, state=AttemptState.COMPLETED, failure_class="completed", started_s=1.0, ended_s=1000.0
            )
    store.close()


def _run(number: int, steps: int) -> NewRun:
    point, repeat = divmod(number, REPEATS)
    name = f"lr-{point}" + (f"-r{repeat}" if repeat else "")
    config = {"train": {**TRAIN, "lr": point, "steps": steps}}
    return NewRun(name, {"lr": point}, config, "h", number, repeat, steps, RunState.COMPLETED)


def _attempt(run_id: int) -> NewAttempt:
    return NewAttempt(
        run_id=run_id,
        generation=1,
        token=f"t{run_id}",
        config_hash="h",
        micro_batch=8,
        accumulation=1,
        world_size=8,
        nodes=1,
        executor="slurm",
        spool_path="metrics.jsonl",
    )


def _lines(steps: int, noise: random.Random) -> Iterator[str]:
    """Losses that scatter as those of batches do: a smooth curve would take a fraction of the page."""
    step_s = 0.1 * noise.uniform(1 - _SCATTER, 1 + _SCATTER)
    pace = f'"step_time": {step_s:.5f}, "tokens_per_s": {65536 / step_s:.1f}'
    for step in range(1, steps + 1):
        loss = 2 + 5 / step + noise.gauss(0, 0.05)
        yield (
            f'{{"step": {step}, "ts": {step * step_s:.1f}, "loss": {loss:.4f}, "lr": 0.001, "grad_norm": 0.5, '
            f'{pace}, "mem_allocated": 20.5, "mem_reserved": 22.5, "mfu": 0.4}}\n'
        )
    yield f'{{"step": {steps}, "ts": {steps * step_s:.1f}, "eval_loss": 2.5}}\n'


if __name__ == "__main__":
    main()
