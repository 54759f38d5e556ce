"""Loss on held-out text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from dscampaign.jobs import report
from dscampaign.jobs.shared import checkpoint_retention

from .config import Job, TrainerConfig
from .data import Samples
from .engine import Engine
from .fused_loss import IGNORED_TARGET
from .sampling import evaluation_batches


def evaluate(engine: Engine, held_out: Samples, config: TrainerConfig, job: Job, step: int) -> None:
    """Report ``eval_loss`` (nats per token, over all ranks) and ``eval_ppl`` for ``step``; nothing without text."""
    if len(held_out):
        with report.phase("eval"):
            _evaluate(engine, held_out, config, job, step)


def _evaluate(engine: Engine, held_out: Samples, config: TrainerConfig, job: Job, step: int) -> None:
    sums = torch.zeros(2, dtype=torch.float64, device=engine.device)
    engine.eval()
    with torch.no_grad(), without_cudnn_attention():
        for inputs, targets in evaluation_batches(held_out, config, job, engine.device):
            count = (targets != IGNORED_TARGET).sum()
            loss = engine(inputs, targets).double()
            sums += torch.stack([torch.where(count > 0, loss * count, 0.0), count])
    engine.train()
    dist.all_reduce(sums)
    loss_sum, token_count = sums.tolist()
    loss = loss_sum / token_count
    report.report(step, eval_loss=loss, eval_ppl=math.exp(min(loss, 700.0)))
    if job.rank == 0 and checkpoint_retention.rate(job.checkpoint_dir, step, loss) and config.keep_best:
        checkpoint_retention.prune(job.checkpoint_dir, config.keep_checkpoints, step, keep_best=True)


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Leave attention to the other kernels.

    Without gradients cuDNN's gives no statistics, and compiled code that expects them ends with a TypeError (PyTorch
    2.11).
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
