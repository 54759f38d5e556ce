"""Remarks on the quality of a run's figures, a sentence each. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from dscampaign.db.records import STEPS_RESTARTED
from dscampaign.orchestrator.failures.finish import alone_in_words
from dscampaign.orchestrator.formatting import count

from .hardware import LEAST_SAMPLES
from .run import MeasuredRun
from .timing import LEAST_S, LEAST_STEPS

GAPS: Final = 0.01
SLOWED: Final = 0.01
WAITED: Final = 0.05
UNTIMED: Final = (
    "step times are not known: the lines that were read have no times, or times too close together; "
    "let the script report step_time"
)
PADDED_NATS: Final = 1.0
"""A language model on text that it has not seen often does not come below; one that predicts padding does."""


def flags_of(run: MeasuredRun) -> list[str]:
    """Yield the remarks on a run's figures, a sentence each."""
    return [*_configuration(run), *_points(run), *_timing(run), *_loss(run), *_gpus(run)]


def clock_remark(run: MeasuredRun) -> str:
    """Return a remark on step times that the script does not report; "" if it reports them."""
    if run.timing is None:
        return UNTIMED if run.step is not None and STEPS_RESTARTED not in run.not_taken else ""
    if not run.timing.by_clock:
        return ""
    within = f", to within {run.timing.clock_error:.1%}" if run.timing.clock_error else ""
    return f"step times are the time between two lines{within}: the script does not report step_time"


def _configuration(run: MeasuredRun) -> Iterator[str]:
    if run.early:
        yield f"completed early: {run.reason}"
    if alone := alone_in_words(run.group, run.world_size):
        yield alone
    if run.micro_batch != run.first_micro_batch:
        yield f"a retry changed the micro-batch from {run.first_micro_batch} to {run.micro_batch}, global batch kept"
    if run.changes:
        yield f"a retry changed the configuration: {run.changes}"
    if "→" in run.code:
        yield f"its attempts ran different code: {run.code}"


def _points(run: MeasuredRun) -> Iterator[str]:
    quality = run.quality
    if run.metrics_source:
        yield run.metrics_source
    yield from run.not_taken.values()
    if quality.kept_every > 1:
        yield f"thinned: one step in {quality.kept_every} is left, and stands for the others"
    if quality.expected and quality.received < quality.expected * (1 - GAPS):
        yield f"{quality.received:,} of {quality.expected:,} steps reported"
    if quality.non_finite:
        yield f"{quality.non_finite:,} losses are not finite"
    if quality.skipped_steps:
        yield f"{quality.skipped_steps:,} optimizer steps skipped because gradients overflowed"
    if quality.alloc_retries:
        yield f"{quality.alloc_retries:,} retries of the GPU's allocator: memory was nearly full"


def _timing(run: MeasuredRun) -> Iterator[str]:
    timing, quality = run.timing, run.quality
    if timing and timing.short:
        limits = f"at least {LEAST_STEPS} steps and {LEAST_S:.0f} s are recommended"
        yield f"only {count(timing.steps, 'step')} ({timing.window_s:,.1f} s) timed; {limits}"
    if timing and timing.mfu is not None and timing.mfu > 1.0:
        yield (
            f"an MFU of {timing.mfu:.0%} is impossible: the peak of the device, the number of parameters or the tokens "
            "of a step are not what they are taken for"
        )
    if remark := clock_remark(run):
        yield remark
    if quality.data_wait is not None and quality.data_wait > WAITED:
        yield f"{quality.data_wait:.0%} of the time waited for data"


def _loss(run: MeasuredRun) -> Iterator[str]:
    final, held_out = run.loss.final, run.loss.held_out
    if held_out is not None and not math.isfinite(held_out):
        yield "its newest held-out loss, or the training loss after that, is not finite"
    if (
        not run.own_loss
        and final is not None
        and final < PADDED_NATS
        and (held_out is None or held_out - final > PADDED_NATS)
    ):
        yield f"a training loss of {final:.2f} nats is what padding or memorised text gives"


def _gpus(run: MeasuredRun) -> Iterator[str]:
    if run.timing and run.gpus.few:
        yield f"{count(run.gpus.samples, 'sample')} of a GPU in the timed window, fewer than {LEAST_SAMPLES}"
    if run.gpus.slowed is not None and run.gpus.slowed > SLOWED:
        yield f"GPU clocks were held down by heat or hardware for {run.gpus.slowed:.0%} of the time"
    if run.gpus.ecc_errors:
        yield f"{run.gpus.ecc_errors:,} uncorrected memory errors of a GPU"
