"""Which samples each optimizer step sees. Pure: of seed and step alone, not of micro-batch or ranks.

Step t consumes the samples [(t-1) G, t G) of an endless sequence in which every epoch is a permutation of all samples.
So a run resumes by sample, and a smaller micro-batch changes nothing but the grouping of the same samples.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def step_samples(step: int, global_batch: int, sample_count: int, seed: int) -> Indices:
    """Indices of the ``global_batch`` samples of optimizer step ``step`` (1 is the first)."""
    positions = np.arange((step - 1) * global_batch, step * global_batch)
    epochs, offsets = np.divmod(positions, sample_count)
    indices = [_epoch(int(e), sample_count, seed)[offsets[epochs == e]] for e in np.unique(epochs)]
    return np.concatenate(indices)


def rank_micro_batches(samples: Indices, rank: int, world_size: int, micro_batch: int) -> Indices:
    """The share of one rank of a step's samples, shape (accumulation, micro_batch)."""
    share: Indices = samples.reshape(world_size, -1)[rank]
    return share.reshape(-1, micro_batch)


@lru_cache(maxsize=2)
def _epoch(epoch: int, sample_count: int, seed: int) -> Indices:
    # The legacy generator: NumPy guarantees its stream for ever, so an upgrade never changes a running experiment.
    return np.random.RandomState([seed % 2**32, epoch]).permutation(sample_count).astype(np.int64)
