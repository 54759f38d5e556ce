"""Which checkpoints stay, and whether there is room for one more."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from dscampaign.jobs.shared import checkpoint, checkpoint_retention
from dscampaign.jobs.shared.checkpoint_retention import prune, rate
from dscampaign.tests.unit.jobs.test_checkpoint import make


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    paths = [make(tmp_path, step) for step in (100, 200, 300)]
    assert prune(tmp_path, 2, 300) == paths[:1]
    prune(tmp_path, 0, 300)
    assert list(tmp_path.iterdir()) == paths[2:]


def test_scripts_of_deepspeed_in_a_checkpoint_go_with_it_and_files_of_others_keep_it(tmp_path: Path) -> None:
    old, noted, _ = (make(tmp_path, step) for step in (100, 200, 300))
    for name in ("zero_to_fp32.py", "zero_to_torch.py"):
        (old / name).write_text("DeepSpeed's")
    (noted / "notes.txt").write_text("the user's")
    assert prune(tmp_path, 1, 300) == [old]


def test_what_lies_further_ahead_takes_no_place(tmp_path: Path) -> None:
    """A damaged one, or the attempt would have begun there."""
    (ahead := make(tmp_path, 100)).joinpath("manifest.json").unlink()
    for step in (10, 20):
        mine = make(tmp_path, step)
        prune(tmp_path, 1, step)
        assert sorted(tmp_path.iterdir()) == sorted([ahead, mine])


def names(folder: Path) -> list[int]:
    """The steps of all checkpoints that are there."""
    return sorted(checkpoint.position(path.name)[0] for path in checkpoint.newest_first(folder))


def test_the_best_stays_beside_the_newest(tmp_path: Path) -> None:
    for step, loss in ((100, 3.0), (200, 2.0), (300, 2.0), (400, 2.5), (500, None), (600, 2.1)):
        make(tmp_path, step)
        if loss is not None:
            rate(tmp_path, step, loss)
        prune(tmp_path, 2, step, keep_best=True)
    assert names(tmp_path) == [300, 500, 600]
    assert checkpoint.verify(tmp_path / "g0001-step00000300").manifest.eval_loss == 2.0
    make(tmp_path, 700)
    rate(tmp_path, 700, 1.9)
    prune(tmp_path, 2, 700, keep_best=True)
    assert names(tmp_path) == [600, 700]


def test_a_checkpoint_that_cannot_be_removed_keeps_no_other_from_it(tmp_path: Path) -> None:
    stuck, *_ = [make(tmp_path, step) for step in (100, 200, 300)]
    make(tmp_path, 100, generation=2).rename(f"{stuck}.tmp")
    prune(tmp_path, 1, 300)
    assert names(tmp_path) == [100, 300]


def test_what_cannot_be_loaded_takes_no_place_and_goes_when_there_is_better(tmp_path: Path) -> None:
    bad, *good = [make(tmp_path, step) for step in (100, 200, 300)]
    checkpoint_retention.mark_unusable(bad, "why")
    assert prune(tmp_path, 2, 100) == []  # nothing else was reached: better this than nothing
    assert prune(tmp_path, 2, 300) == [bad]
    assert sorted(tmp_path.iterdir()) == good


class Usage(NamedTuple):
    """What `disk_usage` says, as far as it is asked."""

    free: float


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A disk of 10,000 bytes."""

    def usage(folder: Path) -> Usage:
        return Usage(10_000 - sum(file.stat().st_size for file in folder.rglob("*.pt")))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return tmp_path


def test_room_is_asked_for_as_much_as_the_last_one_took(disk: Path) -> None:
    make(disk, 100, world_size=4)
    checkpoint_retention.require_room(disk, 1)
    make(disk, 200, world_size=4)
    with pytest.raises(OSError, match=r"No space left on device for a checkpoint: it needs 0.00 GB") as caught:
        checkpoint_retention.require_room(disk, 1)
    assert caught.value.errno == errno.ENOSPC
