"""What reporting costs a training step: microseconds a call, back to back. Medians of five rounds.

python benchmarks/reporting.py
"""

from __future__ import annotations

import importlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CALLS = 20_000
FIGURES = {"ts": 1.5, "loss": 3.25, "lr": 1.2e-4, "grad_norm": 0.5, "step_time": 0.12, "tokens_per_s": 12345.6}


def main() -> None:
    """Prints one line a figure."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=memory) as progress:
        os.environ |= {"CAMPAIGN_METRICS_FILE": str(Path(folder, "metrics.jsonl")), "RANK": "0"}
        report = importlib.import_module("dscampaign.jobs.report")
        _print("report, without a progress record", lambda step: report.report(step, **FIGURES))
        os.environ["CAMPAIGN_PROGRESS_DIR"] = progress
        report = importlib.reload(report)
        _print("report, six figures, first rank", lambda step: report.report(step, **FIGURES))
        _print("progress, first rank", lambda step: report.progress(step, 0.1))
        os.environ["RANK"] = "1"
        report = importlib.reload(report)
        _print("report, six figures, other ranks", lambda step: report.report(step, **FIGURES))


def _print(what: str, call: Callable[[int], None]) -> None:
    times_us = []
    for _ in range(5):
        start_s = time.perf_counter()
        for step in range(CALLS):
            call(step)
        times_us.append((time.perf_counter() - start_s) / CALLS * 1e6)
    print(f"{what:40} {statistics.median(times_us):6.2f} µs", flush=True)


if __name__ == "__main__":
    main()
