"""The samples of each optimizer step, and this rank's micro-batches, copied ahead of the computation.

Step t consumes the samples [(t-1) G, t G) of an endless sequence in which every epoch is a permutation of all samples,
by the seed alone. So a run resumes by sample, and a smaller micro-batch only groups the same samples otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor

from .config import Job, TrainerConfig
from .data import Indices, Samples
from .fused_loss import IGNORED_TARGET

MicroBatch = tuple[Tensor, Tensor]
"""Inputs and targets, each (micro_batch, seq_len); of samples that ranks share, this rank's stretch of the tokens."""


def step_samples(step: int, global_batch: int, sample_count: int, seed: int) -> Indices:
    """Indices of the ``global_batch`` samples of optimizer step ``step`` (1 is the first)."""
    positions = np.arange((step - 1) * global_batch, step * global_batch)
    epochs, offsets = np.divmod(positions, sample_count)
    indices = [_epoch(int(e), sample_count, seed)[offsets[epochs == e]] for e in np.unique(epochs)]
    return np.concatenate(indices)


def rank_micro_batches(samples: Indices, rank: int, world_size: int, micro_batch: int) -> Indices:
    """Return a rank's share of a step's samples, shape (accumulation, micro_batch)."""
    share: Indices = samples.reshape(world_size, -1)[rank]
    return share.reshape(-1, micro_batch)


@lru_cache(maxsize=2)
def _epoch(epoch: int, sample_count: int, seed: int) -> Indices:
    # The legacy generator: NumPy guarantees its stream for ever, so an upgrade never changes a running experiment.
    return np.random.RandomState([seed % 2**32, epoch]).permutation(sample_count).astype(np.int64)


def training_batches(
    samples: Samples, config: TrainerConfig, job: Job, steps: range, device: torch.device
) -> Iterator[MicroBatch]:
    """This rank's micro-batches of the given optimizer steps, ``accumulation`` for each."""
    group, groups, part = _place(config, job)
    return _one_ahead(
        _load(samples, indices, device, part)
        for step in steps
        for indices in rank_micro_batches(
            step_samples(step, config.global_batch, len(samples), config.seed), group, groups, config.micro_batch
        )
    )


def evaluation_batches(samples: Samples, config: TrainerConfig, job: Job, device: torch.device) -> Iterator[MicroBatch]:
    """Yield this rank's micro-batches of the held-out text, the same number on every rank.

    Ignored targets fill up the last batch. The text does not depend on the micro-batch.
    """
    limit = len(samples) if config.eval_batches is None else config.eval_batches * config.global_batch
    count = min(len(samples), limit)
    group, groups, part = _place(config, job)
    stride = config.micro_batch * groups
    begins = range(group * config.micro_batch, -(-count // stride) * stride, stride)
    return _one_ahead(_load(samples, np.arange(b, b + config.micro_batch), device, part, count) for b in begins)


def _place(config: TrainerConfig, job: Job) -> tuple[int, int, slice]:
    group, member = divmod(job.rank, config.ranks_per_sample)
    first = member % config.sequence_parallel * config.part_len
    return group, job.world_size // config.ranks_per_sample, slice(first, first + config.part_len)


def _load(
    samples: Samples, indices: Indices, device: torch.device, part: slice, count: int | None = None
) -> MicroBatch:
    """Args: count: samples from this index on are filling."""
    filling = np.zeros(len(indices), dtype=bool) if count is None else indices >= count
    tokens = torch.from_numpy(samples.read(np.where(filling, 0, indices)))
    targets = tokens[:, 1:].masked_fill(torch.from_numpy(filling)[:, None], IGNORED_TARGET)
    if samples.padded:
        targets[:, -1] = IGNORED_TARGET
    return to_device(tokens[:, :-1][:, part].contiguous(), device), to_device(targets[:, part].contiguous(), device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Queues the copy to a GPU, and waits for none."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _one_ahead(batches: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
    """Start the copy of the next batch before yielding the present batch."""
    return (batch for batch, _ in pairwise(chain(batches, [None])) if batch is not None)
