"""TensorBoard's event files, read without TensorBoard."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from dscampaign.jobs.collect.event_files import EventFile, Scalar

WRITTEN_BY_TENSORBOARD = base64.b64decode(
    "SAAAAAAAAAD+kkidCe9OUCTqwNpBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2ZW50X2ZpbGVfd3JpdGVy"
    "nh5s1jwAAAAAAAAAyLejUgkAAAAAAEyPQBABKi8KEQoKdHJhaW4vbG9zcxUAACBAChoKE3RyYWluL2xlYXJuaW5nX3JhdGUVAACAPqzsdZQlAAAA"
    "AAAAAOq8NvMJAAAAAABUj0AQAioYChYKCnRyYWluL2xvc3NCCAgBIgQAAMA/a7gy9zsAAAAAAAAAGiOsXAkAAAAAAFKUQBCsAiotChgKCExvc3Mv"
    "dmFsQgwIAjIIAAAAAAAA9D8KEQoEdGV4dEIJCAdCBWhlbGxvgaF4gzQAAAAAAAAAXjMXXAkAAAAAAFaUQBCtAiomChMKA3R3b0IMCAEqCAAAgD8A"
    "AABACg8KA29uZUIICAEqBAAAQEDA1s77"
)
"""By its EventFileWriter: numbers as simple values, and as tensors of each kind, between text and a list of two."""

SCALARS = [
    Scalar(1001.5, 1, "train/loss", 2.5),
    Scalar(1001.5, 1, "train/learning_rate", 0.25),
    Scalar(1002.5, 2, "train/loss", 1.5),
    Scalar(1300.5, 300, "Loss/val", 1.25),
    Scalar(1301.5, 301, "one", 3.0),
]


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_a_file_that_grows_is_read_once(tmp_path: Path, piece: int) -> None:
    path, found = tmp_path / "events", []
    path.touch()
    file = EventFile(path)
    for end in range(piece, len(WRITTEN_BY_TENSORBOARD) + piece, piece):
        path.write_bytes(WRITTEN_BY_TENSORBOARD[:end])
        found += file.read(1 << 20)
    assert found == SCALARS
    assert file.read(1 << 20) == []


def test_a_record_that_is_too_large_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(WRITTEN_BY_TENSORBOARD)
    file = EventFile(path)
    read = [scalar for _ in range(10) for scalar in file.read(60)]
    assert read == [SCALARS[2]]


def test_a_damaged_record_costs_only_itself(tmp_path: Path) -> None:
    path, at = tmp_path / "events", 72 + 16 + 12
    path.write_bytes(WRITTEN_BY_TENSORBOARD[:at] + b"\xff" * 60 + WRITTEN_BY_TENSORBOARD[at + 60 :])
    assert EventFile(path).read(1 << 20) == SCALARS[2:]


def test_what_is_no_event_file_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(bytes(range(256)) * 20)
    assert EventFile(path).read(1 << 20) == []
