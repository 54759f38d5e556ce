"""TensorBoard's event files, read without TensorBoard."""

from __future__ import annotations

import base64
import struct
import time
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


def record(step: int, summary: bytes) -> bytes:
    """An event of now."""
    event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step % 2**64) + b"\x2a" + _sized(summary)
    return framed(event)


def framed(event: bytes) -> bytes:
    """Bytes as a record; nobody asks for its checksums."""
    return struct.pack("<QI", len(event), 0) + event + bytes(4)


def scalar(tag: str, value: float) -> bytes:
    """A summary of one number."""
    return b"\x0a" + _sized(b"\x0a" + _sized(tag.encode()) + b"\x15" + struct.pack("<f", value))


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80]) + _varint(number >> 7) if number > 0x7F else bytes([number])


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_a_file_that_grows_is_read_once(tmp_path: Path, piece: int) -> None:
    path, found = tmp_path / "events", []
    path.touch()
    file = EventFile(path)
    for end in range(piece, len(WRITTEN_BY_TENSORBOARD) + piece, piece):
        path.write_bytes(WRITTEN_BY_TENSORBOARD[:end])
        found += file.read(1 << 20)[0]
    assert found == SCALARS
    assert file.read(1 << 20) == ([], False)


@pytest.mark.parametrize("end", [bytes(40), b"\x05", b"\xff" * 40])
def test_what_is_not_written_yet_hides_nothing(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "events"
    path.write_bytes(WRITTEN_BY_TENSORBOARD + end)
    assert EventFile(path).read(1 << 20)[0] == SCALARS
