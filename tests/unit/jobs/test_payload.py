"""What the reconciler hands to the agents."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from dscampaign.jobs.shared.layout import CampaignPaths, payload_file
from dscampaign.jobs.shared.payload import Payload
from dscampaign.tests.support.attempt import make_payload


def test_a_payload_is_read_as_it_was_written(tmp_path: Path) -> None:
    payload = make_payload(tmp_path, env={"A": "1"}, train={"steps": 3}, nodes=2)
    payload.write(payload_file(tmp_path, 4))
    assert Payload.read(tmp_path / "4.json") == payload
    assert payload.world_size == 4
    assert stat.S_IMODE((tmp_path / "4.json").stat().st_mode) == 0o600


def test_a_payload_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.json"
    make_payload(tmp_path).write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    with pytest.raises(ValueError, match=r"unknown fields \['later'\]; written by another version of dscampaign"):
        Payload.read(path)


def test_a_missing_payload_is_an_error_of_the_file_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Payload.read(tmp_path / "0.json")


def test_where_everything_lies() -> None:
    paths = CampaignPaths(Path("/shared"), "c")
    attempt = paths.run("r").attempt(12)
    assert str(attempt.metrics) == "/shared/c/runs/r/g0012/metrics.jsonl"
    assert str(paths.run("r").checkpoints("ab12")) == "/shared/c/runs/r/checkpoints/ab12"
    assert str(payload_file(paths.batch("abc"), 3)) == "/shared/c/batches/abc/3.json"
    assert str(paths.data) == "/shared/data"


def test_smaller_pieces_of_the_same_step(tmp_path: Path) -> None:
    sizes = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    payload = make_payload(
        tmp_path, ds_config={**sizes, "bf16": {}}, train={"micro_batch": 2, "accumulation": 2, "lr": 1}
    )
    smaller = payload.resized(1, 4)
    assert (smaller.micro_batch, smaller.accumulation, smaller.global_batch) == (1, 4, 8)
    assert smaller.train == {"micro_batch": 1, "accumulation": 4, "lr": 1}
    expected = {**sizes, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "bf16": {}}
    assert smaller.ds_config == expected
    assert payload.ds_config["train_micro_batch_size_per_gpu"] == 2


@pytest.mark.parametrize("sizes", [(1, 2), (4, 1), (0, 4), (-1, -4)])
def test_pieces_that_are_another_step_are_refused(tmp_path: Path, sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="instead of 2 x 2"):
        make_payload(tmp_path).resized(*sizes)


def test_a_script_with_batches_of_its_own_is_not_resized(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="manages its own"):
        make_payload(tmp_path, micro_batch=None, accumulation=None).resized(1, 1)
