"""Read the scalars of a growing TensorBoard event file without TensorBoard, which few compute nodes have.

The file is a sequence of records: length, checksum, a protobuf message `Event`, checksum.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from dscampaign.files.private_files import open_regular

_HEADER: Final = 12
_FOOTER: Final = 4
_VARINT, _BYTES = 0, 2
_SIZES: Final = {1: 8, 5: 4}  # bytes of the wire types of fixed size
_FLOAT, _DOUBLE = 1, 2  # of TensorFlow's data types
_VARINT_BYTES: Final = 10  # of 64 bits


class Scalar(NamedTuple):
    """A value: time of writing in seconds since 1970, step and tag."""

    ts_s: float
    step: int
    tag: str
    value: float


class EventFile:
    """Read on in an event file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self, max_bytes: int) -> tuple[list[Scalar], bool]:
        """Return the scalars of the next complete records, and whether there were records: images have no scalars.

        A record larger than `max_bytes`, as of a large image, is skipped. Raises OSError if the file cannot be read.
        """
        with open_regular(self.path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(self._offset)
            chunk = file.read(max_bytes) or b""
        result: list[Scalar] = []
        at = 0
        while at + _HEADER <= len(chunk):
            (length,) = struct.unpack_from("<Q", chunk, at)
            if not length:  # room that is not written yet
                break
            end = at + _HEADER + length + _FOOTER
            if end > len(chunk):
                if not at and end > max_bytes and self._offset + end <= size:
                    at = end
                break
            result += _scalars(chunk[at + _HEADER : end - _FOOTER])
            at = end
        self._offset += at
        return result, at > 0


def _scalars(event: bytes) -> list[Scalar]:
    """Return the scalars of an event; none of a record that is no event."""
    try:
        fields = dict(_fields(event))
        (ts_s,) = struct.unpack("<d", fields[1])
        step = fields.get(2, 0)
        step -= 2**64 if step >= 2**63 else 0
        values = [_value(summary) for field, summary in _fields(fields.get(5, b"")) if field == 1]
        return [Scalar(ts_s, step, *value) for value in values if value]
    except (struct.error, TypeError, ValueError, KeyError, IndexError):
        return []


def _value(summary: bytes) -> tuple[str, float] | None:
    """Return tag and number of a `Summary.Value`: a float, or a `TensorProto` of one number; None of any other."""
    fields = dict(_fields(summary))
    if 2 in fields:
        forms = [("<f", fields[2])]
    else:
        tensor = dict(_fields(fields.get(8, b"")))
        content = {_FLOAT: "<f", _DOUBLE: "<d"}.get(tensor.get(1, 0), "")
        forms = [(form, tensor[field]) for form, field in ((content, 4), ("<f", 5), ("<d", 6)) if field in tensor]
    for form, number in forms:
        if form and len(number) == struct.calcsize(form):
            return fields[1].decode(errors="replace"), float(struct.unpack(form, number)[0])
    return None


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and content of each field of a protobuf message: a number, or bytes that the caller can read."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"wire type {kind}")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[at : at + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value % 2**64, at + place + 1
    raise ValueError("a number without end")
