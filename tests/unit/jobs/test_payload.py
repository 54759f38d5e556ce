"""What the reconciler hands to the agents."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from dscampaign.files.private_files import open_regular
from dscampaign.jobs.shared.job_array import read_payload, write_payloads
from dscampaign.jobs.shared.layout import payloads_file
from dscampaign.jobs.shared.payload import Payload
from dscampaign.tests.support.attempt import make_payload


def read(path: Path, index: int) -> Payload:
    return read_payload(open_regular(path), path, index)


def test_each_task_reads_its_own_payload(tmp_path: Path) -> None:
    path = payloads_file(tmp_path)
    made = [
        make_payload(tmp_path, run=f"r\u00fc{index}", env={"A": "\n" * index}, train={"steps": 3}, nodes=2, seed=index)
        for index in range(12)
    ]
    write_payloads(path, made)
    assert [read(path, index) for index in range(12)] == made
    assert made[0].world_size == 4
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_all_have_in_common_is_written_once(tmp_path: Path) -> None:
    path, one = payloads_file(tmp_path), make_payload(tmp_path, ds_config={"note": "x" * 10_000})
    write_payloads(path, [replace(one, run=f"r{index}", seed=index) for index in range(100)])
    assert path.stat().st_size < 20_000
    assert read(path, 99) == replace(one, run="r99", seed=99)


def test_a_payload_of_another_version_is_refused(tmp_path: Path) -> None:
    path = payloads_file(tmp_path)
    write_payloads(path, [make_payload(tmp_path)])
    common, own = path.read_text().splitlines()
    path.write_text("\n".join([common, json.dumps({**json.loads(own), "later": 1})]))
    with pytest.raises(ValueError, match="later: Unexpected keyword argument; written by another version"):
        read(path, 0)


@pytest.mark.parametrize("content", ["", "{}", "[]", "\xff", '{"run": 1}\n{}\n', "{}\n[0]\n", "{}\n{}\n{"])
def test_what_is_no_payload_is_refused_with_its_place(tmp_path: Path, content: str) -> None:
    path = payloads_file(tmp_path)
    path.write_text(content)
    for index in (0, 1, 2):
        with pytest.raises(ValueError, match=r"payloads\.jsonl: "):
            read(path, index)


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
