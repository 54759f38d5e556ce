"""What is said of a checkpoint that cannot be loaded, and what is left of one that cannot be written."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any
from zipfile import BadZipFile

import pytest
import torch

from dscampaign.jobs.shared import checkpoint
from dscampaign.jobs.shared.checkpoint import CheckpointError, Manifest
from dscampaign.jobs.trainer import saving
from dscampaign.jobs.trainer.config import Job
from dscampaign.jobs.trainer.saving import restore, save
from dscampaign.jobs.trainer.torch_engine import _alone
from dscampaign.tests.integration.trainer.attempts import Attempt, train_config

pytestmark = pytest.mark.training

SHARD = "zero_pp_rank_0_mp_rank_00_optim_states.pt"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A complete checkpoint of one file."""
    draft = checkpoint.begin(tmp_path, 1, 3)
    (draft / SHARD).write_bytes(b"state")
    files = checkpoint.seal(draft, [draft / SHARD])
    return checkpoint.commit(draft, Manifest(3, "h", 1, 1, 1, 24, files)).path


def engine(load: Callable[..., Any]) -> Any:
    return SimpleNamespace(load_checkpoint=load)


def resuming(saved: Path) -> Any:
    return SimpleNamespace(resume=saved)


def failing(error: Exception) -> Any:
    def load(*_: object, **__: object) -> None:
        raise error

    return engine(load)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("PytorchStreamReader failed reading zip archive: failed finding central directory"),
        BadZipFile("File is not a zip file"),
        EOFError("Ran out of input"),
    ],
)
def test_a_file_that_proves_damaged_marks_the_checkpoint(error: Exception, saved: Path) -> None:
    with pytest.raises(CheckpointError, match="later attempts begin at the checkpoint before it"):
        restore(failing(error), resuming(saved))
    assert (saved / checkpoint.UNUSABLE).exists()


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"sta")])
def test_a_file_that_differs_from_the_manifest_marks_it_whatever_was_raised(
    damage: Callable[[Path], object], saved: Path
) -> None:
    def load(*_: object, **__: object) -> None:
        damage(saved / SHARD)
        raise KeyError("optimizer_state_dict")

    with pytest.raises(CheckpointError):
        restore(engine(load), resuming(saved))
    assert (saved / checkpoint.UNUSABLE).exists()


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "libcudart.so"),
        AttributeError("'NoneType' object has no attribute 'loss_scaler'"),
        KeyError("ds_version"),
        UnpicklingError("Weights only load failed. This file can still be loaded"),
        ModuleNotFoundError("No module named 'deepspeed.runtime.fp16'"),
        RuntimeError("Error(s) in loading state_dict for GPT2LMHeadModel: size mismatch for wte.weight"),
        RuntimeError("CUDA error: invalid argument (shape)"),
        torch.OutOfMemoryError("CUDA out of memory"),
        OSError(errno.ESTALE, "Stale file handle"),
    ],
)
def test_an_error_of_the_environment_leaves_the_checkpoint_usable(error: Exception, saved: Path) -> None:
    with pytest.raises(type(error)) as raised:
        restore(failing(error), resuming(saved))
    assert raised.value is error
    assert checkpoint.verify(saved)


def test_where_nothing_is_found_in_a_whole_checkpoint_it_stays_usable(saved: Path) -> None:
    nothing = engine(lambda *_, **__: (None, None))
    with pytest.raises(RuntimeError, match="found nothing to load"):
        restore(nothing, resuming(saved))
    assert checkpoint.verify(saved)


@pytest.mark.parametrize(
    ("rank", "left"),
    [("0", ["zero_pp_rank_1_mp_rank_00_optim_states.pt"]), ("1", [SHARD, "mp_rank_00_model_states.pt"])],
)
def test_a_rank_that_cannot_write_leaves_the_others_their_folder(
    rank: str, left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that found it gone would say so first, and hide the full disk."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
    job = Job.from_environment({**Attempt(tmp_path).prepare(tmp_path), **ranks})

    def write(_engine: object, _job: Job, draft: Path, *_: object) -> None:
        (draft / saving.TAG).mkdir(parents=True)
        for name in (SHARD, SHARD.replace("rank_0_", "rank_1_"), "mp_rank_00_model_states.pt"):
            (draft / saving.TAG / name).touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saving, "_require_room", lambda *_: None)
    monkeypatch.setattr(saving, "_write", write)
    with pytest.raises(OSError, match="No space left on device"):
        save(engine(lambda: None), train_config(), job, 3, {})
    [draft] = job.checkpoint_dir.iterdir()
    assert sorted(path.name for path in (draft / saving.TAG).iterdir()) == sorted(left)


def test_what_is_saved_of_a_larger_storage_is_a_copy() -> None:
    whole = torch.arange(8)
    part = whole[:4]
    assert _alone(whole) is whole
    assert _alone(part).tolist() == part.tolist()
    assert _alone(part).untyped_storage().nbytes() == part.nbytes


def test_each_file_is_one_rank_s_also_where_ranks_share_layers(tmp_path: Path) -> None:
    """Two parts of the layers, each with two shards: consecutive ranks have different parts."""
    shards = [f"zero_pp_rank_{shard}_mp_rank_{part:02d}_optim_states.pt" for shard in (0, 1) for part in (0, 1)]
    written = [[shards[0], "mp_rank_00_model_states.pt", "zero_to_fp32.py"], [shards[1], "mp_rank_01_model_states.pt"]]
    written += [[shards[2]], [shards[3]]]
    (tmp_path / saving.TAG).mkdir()
    for name in chain(*written):
        (tmp_path / saving.TAG / name).touch()
    found = [sorted(file.name for file in saving._written_by(rank, 2, tmp_path)) for rank in range(4)]
    assert found == [sorted(names) for names in written]
