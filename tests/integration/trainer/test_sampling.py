"""Sample order and learning rate: of seed and step alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dscampaign.jobs.trainer.data import Samples
from dscampaign.jobs.trainer.fused_loss import IGNORED_TARGET
from dscampaign.jobs.trainer.sampling import _load, rank_micro_batches, step_samples
from dscampaign.jobs.trainer.train import learning_rate
from dscampaign.tests.integration.trainer.attempts import train_config


def test_an_epoch_sees_every_sample_once() -> None:
    epoch = np.concatenate([step_samples(step, 4, 20, seed=1) for step in range(1, 6)])
    assert sorted(epoch.tolist()) == list(range(20))
    assert epoch.tolist() != list(range(20))


def test_epochs_differ_and_a_step_may_span_two() -> None:
    two_epochs = np.concatenate([step_samples(step, 4, 10, seed=1) for step in range(1, 6)])
    assert sorted(two_epochs[:10].tolist()) == sorted(two_epochs[10:].tolist()) == list(range(10))
    assert two_epochs[:10].tolist() != two_epochs[10:].tolist()


def test_of_a_padded_sample_the_last_input_has_no_target() -> None:
    padded = Samples(np.arange(12), 4, padded=True)
    inputs, targets = _load(padded, np.array([1, 2]), torch.device("cpu"), slice(0, 4))
    assert inputs.tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert targets.tolist() == [[5, 6, 7, IGNORED_TARGET], [9, 10, 11, IGNORED_TARGET]]


def test_a_batch_may_be_larger_than_the_data() -> None:
    assert np.bincount(step_samples(1, 9, 3, seed=0)).tolist() == [3, 3, 3]


def test_seeds_differ() -> None:
    assert step_samples(1, 50, 100, seed=1).tolist() != step_samples(1, 50, 100, seed=2).tolist()


def test_the_order_stays_what_it_is() -> None:
    """A run must be able to resume after any upgrade."""
    assert step_samples(3, 4, 10, seed=42).tolist() == [8, 9, 3, 1]


@pytest.mark.parametrize(("world_size", "micro_batch"), [(1, 1), (1, 8), (2, 2), (4, 1), (8, 1)])
def test_micro_batches_of_all_ranks_are_the_step(world_size: int, micro_batch: int) -> None:
    samples = step_samples(1, 8, 100, seed=3)
    shares = [rank_micro_batches(samples, rank, world_size, micro_batch) for rank in range(world_size)]
    assert shares[0].shape == (8 // (world_size * micro_batch), micro_batch)
    assert np.concatenate([share.ravel() for share in shares]).tolist() == samples.tolist()


def rates(steps: int, **changes: Any) -> list[float]:
    config = train_config(**{"lr": 1.0, "warmup_steps": 0, "min_lr_ratio": 0.0, **changes})
    return [learning_rate(config, step, steps) for step in range(1, steps + 1)]


def test_warmup_ends_at_the_full_rate() -> None:
    assert rates(6, schedule="constant", warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_is_half_way_in_the_middle() -> None:
    found = rates(10, schedule="cosine")
    assert found[0] == 1.0
    assert found[5] == pytest.approx(0.5)
    assert found == sorted(found, reverse=True)


def test_floor() -> None:
    assert rates(4, schedule="linear", min_lr_ratio=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4])
