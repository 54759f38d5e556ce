"""Real out-of-memory on one GPU: five siblings that start too big, and what the memory ledger predicts of their memory.

    python benchmarks/oom [--out FILE] [--work FOLDER] [--parts siblings,repeats,sizes] [--gpu-memory 78G] [--tiny]

GPT-2 with 124 million random weights on the text in examples/data, one rank, ZeRO 1, bf16. Three parts:

siblings  five seeds, parallel 1, each with its whole share of the batch as micro-batch: it does not fit
repeats   runs that nothing disturbs, at the micro-batch at which the siblings settled: the noise of seeds
sizes     short runs at other micro-batches, each with an empty ledger: which fit, and what they really take

Every part has a time limit of its own, and what is known is written after each. `--gpu-memory` makes the GPU smaller.
`--tiny` does the same with a tiny model on a CPU: it shows that the script works, and measures nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dscampaign.benchmarks.shared.results import commit_id, write_json
from dscampaign.orchestrator.memory.prediction import Ledger
from dscampaign.orchestrator.spec.batch_size import divisors

from .campaigns import Campaign, run_campaign
from .figures import figures, noise, report, run_document, size_document
from .plan import Plan, gpu_plan, tiny_plan

PARTS = ("siblings", "repeats", "sizes")


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
        document["noise"] = noise(document)
        _write(out, plan, document)
    if "sizes" in parts:
        ledger = Campaign("siblings", work / "siblings").ledger()
        document["sizes"] = sizes(plan, work, left_s("sizes"), settled, ledger)
    _write(out, plan, document)
    return document


def siblings(plan: Plan, work: Path, limit_s: float) -> dict[str, Any]:
    """Runs that start too big, one after another."""
    began_s = time.monotonic()
    whole = {"micro_batch": plan.batch}
    campaign = run_campaign(plan, work, "siblings", plan.seeds, limit_s, **whole)
    runs = [run_document(*row) for row in campaign.rows()]
    attempts = [attempt for run in runs for attempt in run["attempts"]]
    line = campaign.ledger().line
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


def facts(device: str, plan: Plan, commit: str | None) -> dict[str, Any]:
    """Where and with what it was measured."""
    versions = {name: version(name) for name in ("torch", "deepspeed", "transformers")}
    versions["python"] = sys.version.split()[0]
    limit = plan.local.get("gpu_mem_per_process") or plan.local.get("mem_per_process")
    return {
        "device": device,
        "limit": limit,
        "versions": versions,
        "commit": commit or commit_id(),
        "train": dict(plan.train),
    }


def _gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _write(out: Path | None, plan: Plan, document: dict[str, Any]) -> None:
    document["figures"] = figures(plan, document)
    write_json(out, document)
