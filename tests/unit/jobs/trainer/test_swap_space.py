"""The folder of ZeRO-Infinity's files on a node's disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.trainer.config import Job
from dscampaign.jobs.trainer.swap_space import apart, clear, in_use, with_room


def job(tmp_path: Path, run: str, generation: int, local_rank: int = 0) -> Job:
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps(rendered(tmp_path)))
    nothing = Path()
    return Job(
        rank=local_rank,
        local_rank=local_rank,
        world_size=2,
        local_world=2,
        generation=generation,
        config_hash="h",
        train_config=nothing,
        ds_config=config,
        data_dir=nothing,
        checkpoint_dir=tmp_path / run / "checkpoints",
        attempt_dir=nothing,
    )


def rendered(tmp_path: Path) -> dict[str, Any]:
    disk = {"device": "nvme", "nvme_path": str(tmp_path / "disk")}
    return {"zero_optimization": {"stage": 3, "offload_optimizer": dict(disk), "offload_param": dict(disk)}}


def folder(config: dict[str, Any]) -> Path:
    zero = config["zero_optimization"]
    assert zero["offload_optimizer"]["nvme_path"] == zero["offload_param"]["nvme_path"]
    return Path(zero["offload_param"]["nvme_path"])


def test_every_attempt_has_a_folder_of_its_own_that_its_ranks_share(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "a", 1), job(tmp_path, "a", 2), job(tmp_path, "b", 1)]
    folders = {folder(apart(rendered(tmp_path), one)) for one in jobs}
    assert len(folders) == 3
    for one in jobs:
        assert folder(apart(rendered(tmp_path), replace(one, rank=1, local_rank=1))) in folders


def test_a_path_beside_states_in_memory_asks_for_no_disk(tmp_path: Path) -> None:
    config = rendered(tmp_path)
    for name in ("offload_optimizer", "offload_param"):
        config["zero_optimization"][name]["device"] = "cpu"
    assert not in_use(config)
    assert apart(config, job(tmp_path, "a", 1)) == config
    assert not (tmp_path / "disk").exists()


def test_what_killed_attempts_left_is_removed_and_nobody_else_s(tmp_path: Path) -> None:
    killed, other = (folder(apart(rendered(tmp_path), job(tmp_path, run, 1))) for run in ("a", "b"))
    for left in (killed, other):
        (left / "rank0").mkdir(parents=True)
    second = job(tmp_path, "a", 2)
    mine = folder(apart(rendered(tmp_path), second))
    mine.mkdir(exist_ok=True)
    assert (killed.exists(), other.exists()) == (False, True)
    clear(replace(second, local_rank=1))
    assert mine.exists()
    clear(second)
    assert (mine.exists(), other.exists()) == (False, True)


def test_a_folder_that_somebody_else_made_first_is_not_used(tmp_path: Path) -> None:
    one = job(tmp_path, "a", 1)
    mine = folder(apart(rendered(tmp_path), one))
    mine.chmod(0o777)
    with pytest.raises(ValueError, match=f"train.nvme_path: .*others can write to {mine}"):
        apart(rendered(tmp_path), one)


def test_weights_have_buffers_of_their_own_size(tmp_path: Path) -> None:
    config = rendered(tmp_path)
    zero = with_room(config, largest=1001, ranks=2)["zero_optimization"]
    assert zero["offload_param"]["buffer_size"] == 501
    assert "buffer_size" not in zero["offload_optimizer"], "DeepSpeed refuses it there"
    assert config == rendered(tmp_path)
