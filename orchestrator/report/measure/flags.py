"""Remarks on the quality of a run's figures: a kind, and a sentence. Pure."""

from __future__ import annotations

import math
from typing import Final

from dscampaign.db.records import STEPS_RESTARTED
from dscampaign.orchestrator.failures.exits import alone_in_words
from dscampaign.orchestrator.formatting import count, words

from .hardware import LEAST_SAMPLES
from .run import MeasuredRun
from .timing import LEAST_S, LEAST_STEPS, Timing

REASONS: Final = frozenset(
    (
        "completed early",
        "micro-batch changed by a retry",
        "configuration changed by a retry",
        "skipped steps",
        "allocator retries",
    )
)
"""Kinds of remarks that are also reasons against a condition."""
UNTIMED: Final = (
    "step times are not known: the lines that were read have no times, or times too close together; "
    "let the script report step_time"
)
PADDED_NATS: Final = 1.0
"""A language model on text that it has not seen often does not come below; one that predicts padding does."""


def remarks_of(run: MeasuredRun) -> dict[str, str]:
    """Return the remarks on a run's figures by their kind."""
    quality, timing, loss, slowed = run.quality, run.timing, run.loss, run.gpus.slowed or 0.0
    is_padding = loss.final is not None and not run.own_loss and loss.final < PADDED_NATS
    is_padding &= loss.held_out is None or loss.held_out - (loss.final or 0.0) > PADDED_NATS
    remarks = {
        "completed early": run.early and f"completed early: {run.reason}",
        "ranks that trained alone": alone_in_words(run.group, run.world_size),
        "micro-batch changed by a retry": run.micro_batch != run.first_micro_batch
        and f"micro-batch {run.micro_batch} instead of {run.first_micro_batch}, global batch kept",
        "configuration changed by a retry": run.changes and f"a retry changed the configuration: {run.changes}",
        "different code": "→" in run.code and f"its attempts ran different code: {run.code}",
        "metrics read from output": run.metrics_source,
        **{words(kind): text for kind, text in run.not_taken.items()},
        "thinned": quality.kept_every > 1
        and f"thinned: one step in {quality.kept_every} is left, and stands for the others",
        "missing steps": quality.expected
        and quality.received < quality.expected * 0.99
        and f"{quality.received:,} of {quality.expected:,} steps reported",
        "losses not finite": quality.non_finite and f"{quality.non_finite:,} losses are not finite",
        "skipped steps": quality.skipped_steps
        and f"{quality.skipped_steps:,} optimizer steps skipped because gradients overflowed",
        "allocator retries": quality.alloc_retries
        and f"{quality.alloc_retries:,} retries of the GPU's allocator: memory was nearly full",
        "few steps timed": timing and timing.short and _few_steps(timing),
        "impossible MFU": timing
        and (timing.mfu or 0.0) > 1.0
        and f"an MFU of {timing.mfu:.0%} is impossible: "
        "the peak of the device, the number of parameters or the tokens of a step are wrong",
        "step times from the clock" if timing else "no step times": clock_remark(run),
        "waited for data": (quality.data_wait or 0.0) > 0.05 and f"{quality.data_wait:.0%} of the time waited for data",
        "held-out loss not finite": math.isnan(loss.held_out or 0.0)
        and "its newest held-out loss, or the training loss after that, is not finite",
        "loss of padding": is_padding
        and f"a training loss of {loss.final:.2f} nats is what padding or memorised text gives",
        "few GPU samples": timing
        and run.gpus.few
        and f"{count(run.gpus.samples, 'sample')} of a GPU in the timed window, fewer than {LEAST_SAMPLES}",
        "slowed GPU clocks": slowed > 0.01
        and f"GPU clocks were held down by heat or hardware for {slowed:.0%} of the time",
        "GPU memory errors": run.gpus.ecc_errors and f"{run.gpus.ecc_errors:,} uncorrected memory errors of a GPU",
    }
    return {kind: text for kind, text in remarks.items() if isinstance(text, str) and text}


def clock_remark(run: MeasuredRun) -> str:
    """Return a remark on step times that the script does not report; "" if it reports them."""
    if run.timing is None:
        return UNTIMED if run.step is not None and STEPS_RESTARTED not in run.not_taken else ""
    if not run.timing.by_clock:
        return ""
    within = f", to within {run.timing.clock_error:.1%}" if run.timing.clock_error else ""
    return f"step times are the time between two lines{within}: the script does not report step_time"


def _few_steps(timing: Timing) -> str:
    missed = {count(timing.steps, "step"): f"{LEAST_STEPS} steps"} if timing.steps < LEAST_STEPS else {}
    missed |= {f"{timing.window_s:,.1f} s": f"{LEAST_S:.0f} s"} if timing.window_s < LEAST_S else {}
    return f"only {' and '.join(missed)} timed; at least {' and '.join(missed.values())} are recommended"
