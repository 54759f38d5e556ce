"""Remarks on the quality of a run's figures: a kind, and a sentence. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from dscampaign.db.records import STEPS_RESTARTED
from dscampaign.orchestrator.failures.exits import alone_in_words
from dscampaign.orchestrator.formatting import count, words

from .hardware import LEAST_SAMPLES
from .run import MeasuredRun
from .timing import LEAST_S, LEAST_STEPS

GAPS: Final = 0.01
SLOWED: Final = 0.01
WAITED: Final = 0.05
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


def flags_of(run: MeasuredRun) -> list[str]:
    """Return the remarks on a run's figures, a sentence each."""
    return list(remarks_of(run).values())


def remarks_of(run: MeasuredRun) -> dict[str, str]:
    """Return the remarks on a run's figures by their kind."""
    return dict([*_configuration(run), *_points(run), *_timing(run), *_loss_and_gpus(run)])


def clock_remark(run: MeasuredRun) -> str:
    """Return a remark on step times that the script does not report; "" if it reports them."""
    if run.timing is None:
        return UNTIMED if run.step is not None and STEPS_RESTARTED not in run.not_taken else ""
    if not run.timing.by_clock:
        return ""
    within = f", to within {run.timing.clock_error:.1%}" if run.timing.clock_error else ""
    return f"step times are the time between two lines{within}: the script does not report step_time"


def _configuration(run: MeasuredRun) -> Iterator[tuple[str, str]]:
    if run.early:
        yield "completed early", f"completed early: {run.reason}"
    if alone := alone_in_words(run.group, run.world_size):
        yield "ranks that trained alone", alone
    if run.micro_batch != run.first_micro_batch:
        smaller = f"micro-batch {run.micro_batch} instead of {run.first_micro_batch}, global batch kept"
        yield "micro-batch changed by a retry", smaller
    if run.changes:
        yield "configuration changed by a retry", f"a retry changed the configuration: {run.changes}"
    if "→" in run.code:
        yield "different code", f"its attempts ran different code: {run.code}"


def _points(run: MeasuredRun) -> Iterator[tuple[str, str]]:
    quality = run.quality
    if run.metrics_source:
        yield "metrics read from output", run.metrics_source
    yield from ((words(kind), text) for kind, text in run.not_taken.items())
    if quality.kept_every > 1:
        yield "thinned", f"thinned: one step in {quality.kept_every} is left, and stands for the others"
    if quality.expected and quality.received < quality.expected * (1 - GAPS):
        yield "missing steps", f"{quality.received:,} of {quality.expected:,} steps reported"
    if quality.non_finite:
        yield "losses not finite", f"{quality.non_finite:,} losses are not finite"
    if quality.skipped_steps:
        yield "skipped steps", f"{quality.skipped_steps:,} optimizer steps skipped because gradients overflowed"
    if quality.alloc_retries:
        yield "allocator retries", f"{quality.alloc_retries:,} retries of the GPU's allocator: memory was nearly full"


def _timing(run: MeasuredRun) -> Iterator[tuple[str, str]]:
    timing, quality = run.timing, run.quality
    if timing and timing.short:
        missed = {count(timing.steps, "step"): f"{LEAST_STEPS} steps"} if timing.steps < LEAST_STEPS else {}
        missed |= {f"{timing.window_s:,.1f} s": f"{LEAST_S:.0f} s"} if timing.window_s < LEAST_S else {}
        limits = f"at least {' and '.join(missed.values())} are recommended"
        yield "few steps timed", f"only {' and '.join(missed)} timed; {limits}"
    if timing and timing.mfu is not None and timing.mfu > 1.0:
        wrong = "the peak of the device, the number of parameters or the tokens of a step are wrong"
        yield "impossible MFU", f"an MFU of {timing.mfu:.0%} is impossible: {wrong}"
    if remark := clock_remark(run):
        yield "step times from the clock" if run.timing else "no step times", remark
    if quality.data_wait is not None and quality.data_wait > WAITED:
        yield "waited for data", f"{quality.data_wait:.0%} of the time waited for data"


def _loss_and_gpus(run: MeasuredRun) -> Iterator[tuple[str, str]]:
    final, held_out = run.loss.final, run.loss.held_out
    if held_out is not None and not math.isfinite(held_out):
        yield "held-out loss not finite", "its newest held-out loss, or the training loss after that, is not finite"
    if (
        not run.own_loss
        and final is not None
        and final < PADDED_NATS
        and (held_out is None or held_out - final > PADDED_NATS)
    ):
        yield "loss of padding", f"a training loss of {final:.2f} nats is what padding or memorised text gives"
    if run.timing and run.gpus.few:
        few = f"{count(run.gpus.samples, 'sample')} of a GPU in the timed window, fewer than {LEAST_SAMPLES}"
        yield "few GPU samples", few
    if (share := run.gpus.slowed or 0.0) > SLOWED:
        yield "slowed GPU clocks", f"GPU clocks were held down by heat or hardware for {share:.0%} of the time"
    if run.gpus.ecc_errors:
        yield "GPU memory errors", f"{run.gpus.ecc_errors:,} uncorrected memory errors of a GPU"
