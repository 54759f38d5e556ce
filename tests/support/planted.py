"""Campaigns with planted results, written into a store as attempts write them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from dscampaign.db import bulk, queries
from dscampaign.db.ingest.attempt import GpuSpool
from dscampaign.db.ingest.metrics import MetricSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.db.records import SUBMITTING, CampaignRow, NewAttempt, NewRun, RunRow
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison, compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.results import Results, results_of
from dscampaign.orchestrator.report.measure.flags import remarks_of
from dscampaign.orchestrator.report.measure.load import read_runs
from dscampaign.orchestrator.report.measure.run import MeasuredRun

SEQ_LEN = 128
GLOBAL_BATCH = 8
START_S = 1_700_000_000.0
MODEL = {"parameters": 124_439_808, "layers": 12, "width": 768}
MFU_S = 0.04
"""MFU of a step times its seconds: the peak of the planted GPU follows from it."""
SOFTWARE = {"device": "NVIDIA H100", "driver": "570.124.06", "cuda": "12.8", "torch": "2.11.0", "deepspeed": "0.19.8"}

MACHINE: Final = {
    "cpu": "Intel Xeon Platinum 8480+",
    "cores": 208,
    "usable": 104,
    "system": "Debian GNU/Linux 12",
    "kernel": "6.1.0",
}
"""Every node of a planted run."""

_ENDED = {
    **dict.fromkeys(("", "completed", "completed_early", "stopped"), AttemptState.COMPLETED),
    "cancelled": AttemptState.CANCELLED,
}


@dataclass(frozen=True)
class Try:
    """One attempt of a planted run.

    Attributes:
        first, last: steps that it made; none where they are equal.
        ended: its failure class, None while it runs; `cancelled` is a state, too.
        exclude: nodes that it was to do without.
        sampled: whether its GPU is, where the condition names one.
        queued_s, setup_s, after_s: time in the queue, before its first step, and after its last one.
    """

    first: int = 0
    last: int = 100
    ended: str | None = "completed"
    micro_batch: int = 4
    changes: str = ""
    exclude: tuple[str, ...] = ()
    sampled: bool = True
    queued_s: float = 5.0
    setup_s: float = 10.0
    after_s: float = 0.0


@dataclass(frozen=True)
class Planted:
    """One condition.

    Attributes:
        step_s: median time of a step, of each repeat.
        held_out: of each repeat, in nats.
        evaluated: held-out losses before that, by step.
        train: more fields of its configuration.
        config: more sections of it.
        tries: attempts of its first repeat; the others have one.
        drop: steps whose lines are lost.
        nan_from: step from which the loss is not a number.
        host_limits_gb: of the nodes that an attempt was on, 0 for no limit.
        gpu: name of the GPU that is sampled; none is without it.
        device: what the trainer calls it.
        software: versions that the trainer reports beside the usual ones.
        printed: a script of one's own prints steps and losses, and nothing else is known of them.
    """

    name: str
    step_s: Sequence[float] = (0.1, 0.1, 0.1)
    held_out: Sequence[float | None] = (3.0, 3.0, 3.0)
    params: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    tries: Sequence[Try] = (Try(),)
    reserved_gb: float = 10.0
    usable_gb: float = 80.0
    floor: float = 2.0
    drop: frozenset[int] = frozenset()
    nan_from: int | None = None
    evaluated: Mapping[int, float] = field(default_factory=dict)
    speed: Mapping[str, float] = field(default_factory=dict)
    steps: int = 100
    ranks: int = 2
    host_limits_gb: Mapping[str, float] = field(default_factory=lambda: {"n0": 64.0})
    gpu: str = ""
    device: str = SOFTWARE["device"]
    software: Mapping[str, str] = field(default_factory=dict)
    printed: bool = False
    state: RunState = RunState.COMPLETED
    reason: str = ""


def plant(store: Store, folder: Path, conditions: Sequence[Planted], name: str = "sweep") -> CampaignRow:
    """Writes a campaign with these conditions; all repeats of a condition, then the next."""
    with store.write() as conn:
        campaign_id = queries.insert_campaign(
            conn, name=name, spec="name: sweep\n", spec_hash="s", dir=str(folder), executor="slurm"
        )
        bulk.insert_runs(conn, campaign_id, list(_runs(conditions)))
        runs = {run.name: run for run in queries.runs(conn, campaign_id)}
    for condition in conditions:
        for repeat in range(len(condition.step_s)):
            plant_run(store, folder, condition, runs[_name(condition, repeat)])
    with store.read() as conn:
        found = queries.campaign_by_name(conn, name)
    assert found
    return found


def results_at(url: str, name: str = "sweep") -> Results:
    """The results of a campaign in a store."""
    store = Store.open(url)
    with store.read() as conn:
        campaign = queries.campaign_by_name(conn, name)
    assert campaign
    found = results_of(campaign, read_runs(store, campaign))
    store.close()
    return found


def _runs(conditions: Sequence[Planted]) -> Iterator[NewRun]:
    for ordinal, condition in enumerate(conditions):
        train = {"model": "gpt2", "seq_len": SEQ_LEN, "global_batch": GLOBAL_BATCH, "micro_batch": 4, "zero_stage": 1}
        trained = {**train, "steps": condition.steps, "engine": "deepspeed", **condition.train}
        own = {"command": ["train.py"]} if condition.printed else {}
        config = {"train": trained, "ranks_per_node": condition.ranks, **own, **condition.config}
        for repeat in range(len(condition.step_s)):
            yield NewRun(
                name=_name(condition, repeat),
                params={"label": condition.name, **condition.params},
                config=config,
                config_hash="h1",
                ordinal=ordinal * 10 + repeat,
                repeat=repeat,
                target_step=condition.steps,
                state=condition.state,
                reason=condition.reason,
            )


def _name(condition: Planted, repeat: int) -> str:
    return f"{condition.name}-r{repeat}" if repeat else condition.name


def plant_run(store: Store, folder: Path, condition: Planted, run: RunRow) -> None:
    """Writes the attempts of one repeat."""
    asked = run.config["train"].get("micro_batch")
    as_asked = Try(last=condition.steps, micro_batch=asked if isinstance(asked, int) else 4)
    tries = condition.tries if run.repeat == 0 else (as_asked,)
    now_s = START_S
    for generation, one in enumerate(tries, 1):
        now_s = _plant_attempt(store, folder, condition, run, generation, one, now_s)
    with store.write() as conn:
        queries.update_run(conn, run.id, generation=len(tries), state=condition.state)


def _plant_attempt(
    store: Store, folder: Path, condition: Planted, run: RunRow, generation: int, one: Try, now_s: float
) -> float:
    new = NewAttempt(
        run_id=run.id,
        generation=generation,
        token=f"t{run.id}-{generation}",
        config_hash=run.config_hash,
        micro_batch=one.micro_batch,
        accumulation=max(1, GLOBAL_BATCH // one.micro_batch // condition.ranks),
        world_size=condition.ranks,
        nodes=1,
        executor="slurm",
        spool_path="metrics.jsonl",
        start_step=one.first,
        changes=one.changes,
    )
    with store.write() as conn:
        attempt_id = bulk.insert_attempts(conn, [new])[0].id
        data = {"exclude": one.exclude} if one.exclude else None
        queries.add_event(conn, run.campaign_id, SUBMITTING, "why", run_id=run.id, attempt_id=attempt_id, data=data)
    lines = list(_lines(condition, run, one, now_s + one.queued_s + one.setup_s))
    spool = folder / f"{run.id}-{generation}.jsonl"
    spool.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ingest(store, MetricSpool(attempt_id, spool))
    if condition.gpu and one.sampled:
        _plant_gpu(store, folder, condition, attempt_id, float(lines[0]["ts"]), float(lines[-1]["ts"]))
    end_s = float(lines[-1]["ts"]) + one.after_s
    failed = _ENDED.get(one.ended or "") != AttemptState.COMPLETED
    with store.write() as conn:
        queries.update_attempt(
            conn,
            attempt_id,
            state=_ENDED.get(one.ended or "", AttemptState.FAILED),
            failure_class=one.ended,
            submit_time_s=now_s,
            started_s=now_s + one.queued_s,
            ended_s=end_s,
            gpu_seconds=condition.ranks * (end_s - now_s - one.queued_s),
            evidence={
                "reason": f"it ended {one.ended}" if failed else "",
                "nodes": [
                    {
                        "host": host,
                        "memory_peak_bytes": 12_000_000_000,
                        "memory_peak_of": "processes",
                        "memory_limit_bytes": int(limit_gb * 1e9) or None,
                        "machine": MACHINE,
                    }
                    for host, limit_gb in condition.host_limits_gb.items()
                ],
            },
        )
    return end_s


def _plant_gpu(store: Store, folder: Path, condition: Planted, attempt_id: int, first_s: float, last_s: float) -> None:
    """A sample a second; 300 W, now and then 400 W, warming up by a degree a second to 60."""
    spool = folder / f"gpus-{attempt_id}.jsonl"
    seconds = range(int(last_s - first_s) + 1)
    device = {"gpu": 0, "name": condition.gpu, "uuid": "GPU-0", "mem_total_gb": 80.0, "power_limit_w": 700.0}
    lines: list[dict[str, Any]] = [{"devices": [device], "node": "n0"}]
    lines += [
        {
            "ts": first_s + second,
            "span_s": 1.0,
            "gpu": [0],
            "util_pct": [90],
            "power_w": [400.0 if second % 5 == 0 else 300.0],
            "power_avg_w": [320.0],
            "temperature_c": [min(60, 30 + second)],
            "mem_used_gb": [condition.reserved_gb + 1],
            "energy_j": [320.0 * second],
        }
        for second in seconds
    ]
    spool.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ingest(store, GpuSpool(attempt_id, spool, 0))


def _lines(condition: Planted, run: RunRow, one: Try, start_s: float) -> Iterator[dict[str, Any]]:
    noise = random.Random(f"{condition.name} {run.repeat}")
    step_s = condition.step_s[run.repeat]
    tokens = run.config["train"]["global_batch"] * run.config["train"]["seq_len"]
    if condition.printed:
        source = {"message": "they are read from what it prints", "source": "printed", "within_s": 0.25}
        yield {"event": "metrics_source", "ts": start_s, **source}
    yield {"event": "start", "ts": start_s, "step": one.first, **_start(condition)}
    yield {"event": "memory", "ts": start_s, "micro_batch": one.micro_batch, "usable_gb": condition.usable_gb}
    ts_s = start_s
    for step in range(one.first + 1, one.last + 1):
        took_s = step_s * (30 if step == one.first + 1 else 3 if step - one.first <= 10 else noise.uniform(0.99, 1.01))
        ts_s += took_s
        if step in condition.drop:
            continue
        held_out = {**condition.evaluated, condition.steps: condition.held_out[run.repeat]}.get(step)
        loss = condition.floor + 4.0 / step**0.5 + noise.uniform(-0.05, 0.05)
        if condition.printed:
            yield {"step": step, "ts": ts_s, "loss": condition.floor + 4.0 / step**0.5}
            continue
        yield {
            "step": step,
            "ts": ts_s,
            "loss": float("nan") if condition.nan_from and step >= condition.nan_from else loss,
            "step_time": took_s,
            "tokens_per_s": tokens / took_s,
            "mfu": MFU_S / took_s,
            "mem_allocated": condition.reserved_gb - 1,
            "mem_reserved": condition.reserved_gb,
            **({} if held_out is None else {"eval_loss": held_out}),
        }
    flops = 6 * MODEL["parameters"] + 12 * MODEL["layers"] * MODEL["width"] * run.config["train"]["seq_len"]
    peak = tokens / condition.ranks * flops / MFU_S
    work = {"flops_per_token": flops, "peak_flops": peak, "device": condition.device}
    yield {"event": "speed", "ts": ts_s, "tokens_per_s": tokens / step_s, **work, **condition.speed}


def _start(condition: Planted) -> dict[str, Any]:
    return {**MODEL, **SOFTWARE, "device": condition.device, **condition.software}


PlantStore = Callable[..., str]
Plant = Callable[..., list[MeasuredRun]]


@pytest.fixture
def planted_url(tmp_path: Path) -> Iterator[PlantStore]:
    """Plants conditions as a campaign in one store and returns its address."""
    url = f"sqlite:///{tmp_path}/campaign.db"
    store = Store.open(url, create=True)

    def make(*conditions: Planted, name: str = "sweep") -> str:
        plant(store, tmp_path, conditions, name)
        return url

    yield make
    store.close()


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Plant]:
    """Plants conditions and reads them back as facts."""
    store = Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)

    def facts(*conditions: Planted) -> list[MeasuredRun]:
        return read_runs(store, plant(store, tmp_path, conditions))

    yield facts
    store.close()


def beside_first(runs: Sequence[MeasuredRun]) -> list[BaselineComparison]:
    """The conditions of these runs, each compared with the first."""
    conditions = conditions_of(runs)
    return compare_to_baseline(conditions, conditions[0])


def flags_of(run: MeasuredRun) -> list[str]:
    """Return the remarks on a run's figures, a sentence each."""
    return list(remarks_of(run).values())
