"""The built-in trainer, through `campaign submit`, with all of its reporting and telemetry, or with next to none.

All figures come from the store.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dscampaign.db import metrics, queries
from dscampaign.db.records import MetricRow, RunRow
from dscampaign.db.store import Store
from dscampaign.jobs.shared.ds_config import merged
from dscampaign.orchestrator.spec.model import Spec

from .serve import serve
from .work import LEARNING_RATE, OURS, OURS_ALWAYS, Measured, Request

NAME = "speed"
CAMPAIGN = (sys.executable, "-m", "dscampaign.orchestrator.cli")
LOOK_S = 2
END_S = 25
"""What a campaign may take to end when it is cancelled."""


def measure(request: Request) -> Measured:
    """Runs the campaign to its end and reads its figures; cancels it when this process is asked to end.

    Raises:
        RuntimeError: the run failed; with the reason that the store has.
    """
    folder = Path(request.folder)
    path = folder / "spec.yaml"  # JSON is YAML
    path.write_text(json.dumps(spec(request), indent=1))
    store = f"sqlite:///{folder}/campaign.db"
    place = ["--dir", str(folder / "campaign"), "--store", store]  # both, whatever the user's settings say
    watch = ["reconcile", NAME, "--watch", "--interval", str(LOOK_S), *place]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    settled = False
    try:
        for words in (["submit", str(path), "--yes", *place], watch):
            subprocess.run([*CAMPAIGN, *words], check=False)
        settled = True
    finally:
        if not settled:  # the training is a process of its own, and would go on
            cancel(place)
    run, rows = read(folder / "campaign.db")
    if run.state != "completed":
        raise RuntimeError(f"{run.state}: {run.reason}")
    return figures(request, rows)


def spec(request: Request) -> dict[str, Any]:
    """The campaign's spec: one run, one rank, one micro-batch a step, and no second try, which would hide a failure."""
    work, on = request.work, request.variant != "ours_off"
    train = {
        # as a user writes it: to pad the vocabulary is the trainer's own affair
        "model": {"model_type": "gpt2", **work.model.fields(work.model.vocab)},
        "tokenizer": request.tokenizer,
        "dataset": {"path": request.text, "eval_fraction": 0.0},
        "seq_len": work.seq_len,
        "global_batch": work.micro_batch,
        "micro_batch": work.micro_batch,
        "steps": request.warmup + request.steps,
        "precision": work.precision,
        "zero_stage": work.zero_stage,
        "lr": LEARNING_RATE,
        # off is a line at the window's beginning and end, and the few between that this implies
        "log_every": 1 if on else request.warmup,
    }
    document = {
        "name": NAME,
        "executor": "local",
        "ranks_per_node": 1,
        "env": {"DS_ACCELERATOR": "cpu"} if request.device == "cpu" else {},
        "retry": {"crash": 0, "infra": 0, "oom": 0, "host_oom": 0, "backoff_s": 0},
        "train": train,
        **telemetry(on=on),
    }
    document = merged(merged(document, OURS_ALWAYS), OURS.get(work.name, {}))
    return document if request.compile else merged(document, {"train": {"compile": False}})


def telemetry(*, on: bool) -> dict[str, float]:
    """A look at the GPU every second, or none; nothing where the spec cannot say it."""
    return {"telemetry_s": 1 if on else 0} if "telemetry_s" in Spec.model_fields else {}


def cancel(place: Sequence[str]) -> None:
    """Ends the run."""
    subprocess.run([*CAMPAIGN, "cancel", NAME, "--all", *place], check=False)
    with suppress(subprocess.TimeoutExpired):
        watch = ["reconcile", NAME, "--watch", "--interval", str(LOOK_S), *place]
        subprocess.run([*CAMPAIGN, *watch], check=False, timeout=END_S)


def read(path: Path) -> tuple[RunRow, list[MetricRow]]:
    """The only run and its metrics.

    Raises:
        RuntimeError: nothing was submitted.
    """
    if not path.exists():
        raise RuntimeError("the campaign was not submitted")
    store = Store.open(f"sqlite:///{path}")
    try:
        with store.read() as conn:
            campaign = queries.campaign_by_name(conn, NAME)
            runs = queries.runs(conn, campaign.id) if campaign else []
            if not runs:
                raise RuntimeError("the campaign was not submitted")
            return runs[0], list(metrics.metrics(conn, runs[0].id))
    finally:
        store.close()


def figures(request: Request, rows: Sequence[MetricRow]) -> Measured:
    """What the store's lines say of the window.

    Raises:
        RuntimeError: the line of the window's beginning or end is missing.
    """
    by_step = {row.step: row for row in rows if row.step >= request.warmup}
    first, last = by_step.get(request.warmup), by_step.get(request.warmup + request.steps)
    if not (first and last and first.ts_s and last.ts_s):
        raise RuntimeError("the store lacks the lines at the window's ends")
    inside = [row for row in by_step.values() if row.step > request.warmup]
    return Measured(
        step_ms=[1000 * row.step_time_s for row in inside if row.step_time_s is not None],
        window_ms=1000 * (last.ts_s - first.ts_s) / request.steps,
        peak_mem_gb=max(row.mem_allocated_gb or 0.0 for row in inside),
        setup_s=first.ts_s - request.started_s,
        loss=last.loss if last.loss is not None else float("nan"),
    )


if __name__ == "__main__":
    serve(measure)
