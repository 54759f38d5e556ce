"""From what the store holds to the figures of the experiment. Pure, but for what is printed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dscampaign.db.records import AttemptRow, MemoryObservation, RunRow
from dscampaign.orchestrator.memory.prediction import Ledger
from dscampaign.orchestrator.spec.batch_size import divisors

from .plan import Plan

STUDENT_99 = (63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17)
"""Two-sided 99 % points of Student's distribution, from one degree of freedom on."""


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


def noise(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The check of the first run that was resubmitted; siblings that began with what fits are undisturbed too."""
    done = [run for run in document["siblings"]["runs"] if run["state"] == "completed"]
    again = [run for run in done if len(run["attempts"]) > 1]
    undisturbed = [run for run in done if len(run["attempts"]) == 1]
    return noise_check(again[0], [*undisturbed, *document["repeats"]["runs"]]) if again else None


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
