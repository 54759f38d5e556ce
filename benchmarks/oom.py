"""Real out-of-memory on one GPU: five siblings that start too big, and what the batch ledger predicts of their memory.

    python benchmarks/oom.py [--out FILE] [--work FOLDER] [--parts siblings,repeats,sizes] [--gpu-memory 78G] [--tiny]

GPT-2 with 124 million random weights on the text in examples/data, one rank, ZeRO 1, bf16. Three parts:

siblings  five seeds, parallel 1, each with its whole share of the batch as micro-batch: it does not fit
repeats   runs that nothing disturbs, at the micro-batch at which the siblings settled: the noise of seeds
sizes     short runs at other micro-batches, each with an empty ledger: which fit, and what they really take

Every part has a time limit of its own, and what is known is written after each. `--gpu-memory` makes the GPU smaller.
`--tiny` does the same with a tiny model on a CPU: it shows that the script works, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dscampaign.db import queries
from dscampaign.db.records import AttemptRow, MemoryObservation, RunRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.batching import divisors
from dscampaign.orchestrator.ledgers import ledgers_of
from dscampaign.orchestrator.memory import Ledger

REPOSITORY = Path(__file__).resolve().parents[1]
PARTS = ("siblings", "repeats", "sizes")
STUDENT_99 = (63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17)
"""Two-sided 99 % points of Student's distribution, from one degree of freedom on."""


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long at most.

    Attributes:
        sizes: micro-batches of the last part, beside the divisor above the settled one.
        limits_s: of each part.
        total_s: of all parts.
    """

    train: Mapping[str, Any]
    local: Mapping[str, Any]
    env: Mapping[str, str]
    seeds: tuple[int, ...]
    other_seeds: tuple[int, ...]
    sizes: tuple[int, ...]
    limits_s: Mapping[str, float]
    total_s: float

    @property
    def batch(self) -> int:
        """Samples of one step, and of the only rank."""
        return int(self.train["global_batch"])


def gpu_plan(gpu_memory: str) -> Plan:
    """GPT-2 124M, 1,024 tokens a sample, 240 samples a step: a number with many divisors."""
    model = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50304}
    train = {"model": model, "seq_len": 1024, "global_batch": 240, "steps": 25, "warmup_steps": 5, "lr": 6e-4}
    return Plan(
        train={**train, "precision": "bf16", "zero_stage": 1, "eval_batches": 1},
        local={"parallel": 1, "gpu_mem_per_process": gpu_memory},
        env={},
        seeds=(42, 43, 44, 45, 46),
        other_seeds=(1043, 1044, 1045),
        sizes=(8, 24, 48),
        limits_s={"siblings": 330.0, "repeats": 220.0, "sizes": 140.0},
        total_s=565.0,
    )


def tiny_plan() -> Plan:
    """The same on a CPU in a minute or two; what a rank may use is a limit on its address space."""
    model = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 1, "n_positions": 64, "vocab_size": 8192}
    train = {"model": model, "seq_len": 64, "global_batch": 240, "steps": 3, "lr": 1e-3}
    return Plan(
        train={**train, "precision": "fp32", "zero_stage": 0, "eval_batches": 1},
        local={"parallel": 1, "mem_per_process": "2200M"},
        # threads have stacks and pools of their own, which would count
        env={"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
        seeds=(42, 43),
        other_seeds=(),
        sizes=(),
        limits_s={"siblings": 600.0, "repeats": 300.0, "sizes": 300.0},
        total_s=1200.0,
    )


# -- campaigns -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Campaign:
    """A campaign that was run, with the store of its own that it left."""

    name: str
    folder: Path

    def rows(self) -> Iterator[tuple[RunRow, list[AttemptRow], list[MemoryObservation], list[float]]]:
        """Each run with its attempts, what they said of their memory, and its losses."""
        store = self.store()
        with store.read() as conn:
            campaign = queries.campaign_by_name(conn, self.name)
            for run in queries.runs(conn, campaign.id) if campaign else ():
                losses = [row.loss for row in queries.metrics(conn, run.id) if row.loss is not None]
                attempts = queries.attempts(conn, run.campaign_id, run.id)
                yield run, attempts, queries.memory_of_run(conn, run.id), losses
        store.close()

    def ledger(self) -> Ledger:
        """What its runs have measured, under the memory key of which the most is known."""
        store = self.store()
        with store.read() as conn:
            campaign = queries.campaign_by_name(conn, self.name)
            keys = {row.memory_key for row in queries.attempts(conn, campaign.id)} if campaign else set()
            found = ledgers_of(conn, (key for key in keys if key))
        store.close()
        return max(found.values(), key=lambda ledger: len(ledger.observations), default=Ledger())

    def store(self) -> Store:
        """Its store, to be closed."""
        return Store.open(f"sqlite:///{self.folder}/campaign.db")


def run_campaign(plan: Plan, work: Path, name: str, seeds: Sequence[int], limit_s: float, **train: Any) -> Campaign:
    """Runs one campaign to its end, or cancels it when its time is up. Its folder, and so its ledger, are its own."""
    folder = work / name
    folder.mkdir(parents=True)
    spec = {
        "name": name,
        "executor": "local",
        "local": dict(plan.local),
        "ranks_per_node": 1,
        "env": dict(plan.env),
        "retry": {"backoff_s": 0, "crash": 0, "infra": 0, **({"oom": 0} if name.startswith("size") else {})},
        "train": {
            "tokenizer": str(REPOSITORY / "examples/data/tokenizer"),
            "dataset": str(REPOSITORY / "examples/data/wikitext.txt"),
            **plan.train,
            **train,
        },
        "matrix": {"seed": list(seeds)},
    }
    path = folder / "spec.yaml"  # JSON is YAML
    path.write_text(json.dumps(spec, indent=1))
    campaign = [sys.executable, "-m", "dscampaign.orchestrator.cli"]
    words = ["submit", str(path), "--yes", "--watch", "--dir", str(folder)]
    process = subprocess.Popen([*campaign, *words])
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        print(f"{name}: cancelled after {limit_s:.0f} s", flush=True)
        process.terminate()
        process.wait()
        subprocess.run([*campaign, "cancel", name, "--all", "--dir", str(folder)], check=False)
        with suppress(subprocess.TimeoutExpired):
            watch = ["reconcile", name, "--watch", "--dir", str(folder)]
            subprocess.run([*campaign, *watch], check=False, timeout=60)
    return Campaign(name, folder)


# -- the parts -------------------------------------------------------------------------------------------------


def siblings(plan: Plan, work: Path, limit_s: float) -> dict[str, Any]:
    """Runs that start too big, one after another."""
    began_s = time.monotonic()
    whole = {"micro_batch": plan.batch}
    campaign = run_campaign(plan, work, "siblings", plan.seeds, limit_s, **whole)
    runs = [run_document(*row) for row in campaign.rows()]
    attempts = [attempt for run in runs for attempt in run["attempts"]]
    line = campaign.ledger().fit()
    return {
        "seconds": time.monotonic() - began_s,
        "completed": sum(run["state"] == "completed" for run in runs),
        "ooms": sum(attempt["failure_class"] in ("oom", "fragmentation") for attempt in attempts),
        "micro_batches": [run["attempts"][-1]["micro_batch"] for run in runs if run["attempts"]],
        "line_gb": line and {"base": line[0], "per_sample": line[1]},
        "runs": runs,
    }


def repeats(plan: Plan, work: Path, limit_s: float, settled: int) -> dict[str, Any]:
    """Runs that nothing disturbs: the first sibling's seed again, and others."""
    began_s = time.monotonic()
    seeds = (plan.seeds[0], *plan.other_seeds)
    campaign = run_campaign(plan, work, "repeats", seeds, limit_s, micro_batch=settled)
    return {"seconds": time.monotonic() - began_s, "runs": [run_document(*row) for row in campaign.rows()]}


def sizes(plan: Plan, work: Path, limit_s: float, settled: int, ledger: Ledger) -> dict[str, Any]:
    """Short runs at other micro-batches. Each has a ledger of its own, or a size that does not fit would be refused."""
    began_s = time.monotonic()
    above = [size for size in divisors(plan.batch) if size > settled]
    rows = []
    for size in (*above[:1], *plan.sizes):
        left_s = limit_s - (time.monotonic() - began_s)
        if left_s < 20:
            break
        short = {"micro_batch": size, "global_batch": 2 * size, "steps": 3, "warmup_steps": 0}
        campaign = run_campaign(plan, work, f"size-{size}", plan.seeds[:1], left_s, **short)
        rows += [size_document(run_document(*row), size, ledger) for row in campaign.rows()]
    return {"seconds": time.monotonic() - began_s, "rows": rows}


def run_document(
    run: RunRow, attempts: Sequence[AttemptRow], seen: Sequence[MemoryObservation], losses: Sequence[float]
) -> dict[str, Any]:
    """A run with its attempts: predicted and measured peak of each."""
    told = {row.attempt_id: row for row in seen if not row.oom}
    documents = [attempt_document(row, told.get(row.id)) for row in attempts]
    seed = run.config["train"]["seed"]
    return {"seed": seed, "state": run.state, "reason": run.reason, "losses": losses, "attempts": documents}


def attempt_document(row: AttemptRow, seen: MemoryObservation | None) -> dict[str, Any]:
    """Predicted before it was submitted, expected by its own ranks before the first step, and measured; all in GB."""
    own_gb = measured_gb = None
    if seen:
        measured_gb = seen.peak_gb
        if seen.after_init_gb and seen.per_sample_gb and row.micro_batch:
            own_gb = seen.after_init_gb + seen.per_sample_gb * row.micro_batch
    return {
        "micro_batch": row.micro_batch,
        "accumulation": row.accumulation,
        "failure_class": row.failure_class,
        "predicted_gb": row.predicted_gb,
        "own_prediction_gb": own_gb,
        "measured_gb": measured_gb,
        "held_gb": seen.peak_reserved_gb if seen else None,
        "usable_gb": seen.usable_gb if seen else None,
        "after_init_gb": seen.after_init_gb if seen else None,
        "per_sample_gb": seen.per_sample_gb if seen else None,
        "error": relative_error(row.predicted_gb, measured_gb),
        "own_error": relative_error(own_gb, measured_gb),
        "seconds": row.ended_s - row.started_s if row.started_s and row.ended_s else None,
    }


def size_document(run: Mapping[str, Any], size: int, ledger: Ledger) -> dict[str, Any]:
    """What one size took, beside what the siblings' ledger says of it."""
    attempt = run["attempts"][-1] if run["attempts"] else {}
    predicted_gb = ledger.predict_gb(size)
    return {
        **attempt,
        "micro_batch": size,
        "fits": run["state"] == "completed",
        "predicted_to_fit": ledger.fits(size),
        "predicted_gb": predicted_gb,
        "error": relative_error(predicted_gb, attempt.get("measured_gb")),
    }


def relative_error(predicted: float | None, measured: float | None) -> float | None:
    """How far a prediction is off, as a part of what was measured."""
    return predicted / measured - 1 if predicted and measured else None


# -- what came out ---------------------------------------------------------------------------------------------


def noise_check(resubmitted: Mapping[str, Any], undisturbed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the loss of a run that was resubmitted lies where the next seed's would, step by step.

    The band is the 99 % prediction interval of one more run, from runs with other seeds that nothing disturbed. A run
    with the same seed should be closer still.
    """
    others = [run["losses"] for run in undisturbed if run["seed"] != resubmitted["seed"] and run["losses"]]
    twins = [run["losses"] for run in undisturbed if run["seed"] == resubmitted["seed"] and run["losses"]]
    rows = []
    if len(others) >= 2:
        width = STUDENT_99[min(len(others) - 1, len(STUDENT_99)) - 1] * math.sqrt(1 + 1 / len(others))
        for step, (loss, *at_step) in enumerate(zip(resubmitted["losses"], *others, strict=False), 1):
            mean, sd = statistics.fmean(at_step), statistics.stdev(at_step)
            rows.append({"step": step, "loss": loss, "mean": mean, "sd": sd, "half_width": width * sd})
    inside = [abs(row["loss"] - row["mean"]) <= row["half_width"] for row in rows]
    differences = [abs(a - b) for twin in twins for a, b in zip(resubmitted["losses"], twin, strict=False)]
    return {
        "seed": resubmitted["seed"],
        "undisturbed_seeds": len(others),
        "steps": len(rows),
        "steps_inside": sum(inside),
        "inside": all(inside) if inside else None,
        "largest_deviation_in_sd": max((abs(r["loss"] - r["mean"]) / r["sd"] for r in rows if r["sd"]), default=None),
        "largest_difference_to_same_seed": max(differences, default=None),
        "band": rows,
    }


def figures(plan: Plan, document: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that the experiment is about."""
    found = document["siblings"]
    settled = [run["attempts"][-1] for run in found["runs"] if run["attempts"]]
    rows = document.get("sizes", {}).get("rows", [])
    fitting = [row["micro_batch"] for row in rows if row["fits"]] + [
        a["micro_batch"] for a in settled if a["measured_gb"]
    ]
    largest = max((size for size in fitting if size in divisors(plan.batch)), default=None)
    place = {size: index for index, size in enumerate(divisors(plan.batch))}
    off = [place[largest] - place[size] for size in found["micro_batches"] if largest and size in place]
    attempts = [a for run in (*found["runs"], *document.get("repeats", {}).get("runs", [])) for a in run["attempts"]]
    return {
        "siblings_completed": found["completed"],
        "ooms": found["ooms"],
        "micro_batches": found["micro_batches"],
        "largest_fitting_divisor": largest,
        "not_fitting": sorted(row["micro_batch"] for row in rows if row["failure_class"] in ("oom", "fragmentation")),
        "divisors_below_the_largest": off,
        "largest_error_of_a_submission": largest_error(attempts, "error"),
        "largest_error_of_the_siblings_line": largest_error(rows, "error"),
        "largest_error_before_the_first_step": largest_error([*attempts, *rows], "own_error"),
        "loss_inside_band": (document.get("noise") or {}).get("inside"),
    }


def largest_error(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The largest of some relative errors, whatever their sign."""
    return max((abs(row[name]) for row in rows if row.get(name) is not None), default=None)


def report(document: Mapping[str, Any]) -> None:
    """Prints the figures, and a line for each attempt and size."""
    print("\nMICRO-BATCH  PREDICTED  OWN PREDICTION  MEASURED     HELD  ERROR  OWN ERROR  END")
    attempts = [
        a for part in ("siblings", "repeats") for run in document.get(part, {}).get("runs", []) for a in run["attempts"]
    ]
    for row in (*attempts, *document.get("sizes", {}).get("rows", [])):
        gb = [_gb(row.get(name)) for name in ("predicted_gb", "own_prediction_gb", "measured_gb", "held_gb")]
        errors = ["" if row.get(n) is None else f"{100 * row[n]:+.1f} %" for n in ("error", "own_error")]
        sizes_gb = f"{gb[0]:>9}  {gb[1]:>14}  {gb[2]:>8} {gb[3]:>8}"
        end = row.get("failure_class") or ""
        print(f"{row['micro_batch']:>11}  {sizes_gb}  {errors[0]:>6}  {errors[1]:>8}  {end}")
    for name, value in document["figures"].items():
        shown = f"{100 * value:.2f} %" if isinstance(value, float) else value
        print(f"{name:40} {shown}")


def _gb(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# -- main ------------------------------------------------------------------------------------------------------


def main() -> int:
    """Runs the parts, writes what is known after each, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    parser.add_argument("--work", type=Path, help="folder of the campaigns; kept. Default: a temporary one")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to do; siblings are always done")
    parser.add_argument("--gpu-memory", default="78G", metavar="SIZE", help="what a rank may use: an H100's 80 GB")
    parser.add_argument("--commit", help="what is measured, where git cannot say it")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on a CPU, to test this script")
    options = parser.parse_args()
    device = "cpu" if options.tiny else _gpu()
    if device is None:
        print("no GPU here; --tiny shows on a CPU that the script works")
        return 0
    plan = tiny_plan() if options.tiny else gpu_plan(options.gpu_memory)
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        document = measure(
            plan, work.resolve(), options.parts.split(","), options.out, facts(device, plan, options.commit)
        )
    report(document)
    return 0


def measure(plan: Plan, work: Path, parts: Sequence[str], out: Path | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """All that was measured."""
    end_s = time.monotonic() + plan.total_s

    def left_s(part: str) -> float:
        return max(1.0, min(plan.limits_s[part], end_s - time.monotonic()))

    document: dict[str, Any] = {**known, "siblings": siblings(plan, work, left_s("siblings"))}
    _write(out, plan, document)
    settled = min(document["siblings"]["micro_batches"], default=1)
    if "repeats" in parts:
        document["repeats"] = repeats(plan, work, left_s("repeats"), settled)
        document["noise"] = _noise(document)
        _write(out, plan, document)
    if "sizes" in parts:
        ledger = Campaign("siblings", work / "siblings").ledger()
        document["sizes"] = sizes(plan, work, left_s("sizes"), settled, ledger)
    _write(out, plan, document)
    return document


def _noise(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The check of the first run that was resubmitted; siblings that began with what fits are undisturbed too."""
    done = [run for run in document["siblings"]["runs"] if run["state"] == "completed"]
    again = [run for run in done if len(run["attempts"]) > 1]
    undisturbed = [run for run in done if len(run["attempts"]) == 1]
    return noise_check(again[0], [*undisturbed, *document["repeats"]["runs"]]) if again else None


def facts(device: str, plan: Plan, commit: str | None) -> dict[str, Any]:
    """Where and with what it was measured."""
    versions = {name: version(name) for name in ("torch", "deepspeed", "transformers")}
    versions["python"] = sys.version.split()[0]
    limit = plan.local.get("gpu_mem_per_process") or plan.local.get("mem_per_process")
    return {
        "device": device,
        "limit": limit,
        "versions": versions,
        "commit": commit or _commit(),
        "train": dict(plan.train),
    }


def _commit() -> str | None:
    git = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _write(out: Path | None, plan: Plan, document: dict[str, Any]) -> None:
    document["figures"] = figures(plan, document)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
