"""The scalars of a TensorBoard event file that still grows. Needs no TensorBoard, which few compute nodes have.

The file is a sequence of records: length, checksum, a protobuf message `Event`, checksum. A record whose content does
not have its checksum is passed over. Nothing is read beyond a length that does not have its own, as long as that is so.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from dscampaign.files.regular_files import open_regular

_HEADER: Final = 12
_FOOTER: Final = 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT, _DOUBLE = 1, 2  # of TensorFlow's data types
_VARINT_BYTES: Final = 10  # of 64 bits
_CASTAGNOLI: Final = 0x82F63B78
_MASK: Final = 0xA282EAD8


@dataclass(frozen=True)
class Scalar:
    """One value: when it was written, in seconds since 1970, at which step, under which tag."""

    ts_s: float
    step: int
    tag: str
    value: float


class EventFile:
    """Reads on in one event file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self, max_bytes: int) -> tuple[list[Scalar], bool]:
        """Return the scalars of the next complete records, and whether there were records: images have no scalars.

        A record that is larger, as of a large image, is passed over.

        Raises:
            OSError: the file cannot be read.
        """
        with open_regular(self.path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(self._offset)
            chunk = file.read(max_bytes) or b""
        found: list[Scalar] = []
        at = 0
        while at + _HEADER <= len(chunk):
            length, checksum = struct.unpack_from("<QI", chunk, at)
            if checksum != masked_crc(chunk[at : at + 8]):
                break
            end = at + _HEADER + length + _FOOTER
            if end > len(chunk):
                if not at and end > max_bytes and self._offset + end <= size:
                    at = end
                break
            event = chunk[at + _HEADER : end - _FOOTER]
            scalars = _scalars(event)
            if scalars and struct.unpack_from("<I", chunk, end - _FOOTER) == (masked_crc(event),):
                found += scalars
            at = end
        self._offset += at
        return found, at > 0


def masked_crc(data: bytes) -> int:
    """Return the checksum that these files have of some bytes: CRC-32C, rotated, plus a constant."""
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


@lru_cache
def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0) for crc in table]
    return table


def _scalars(event: bytes) -> list[Scalar]:
    """Those of one event; none of a record that is none."""
    try:
        fields = dict(_fields(event))
        summary, wall_time = fields.get(5, b""), fields.get(1, b"")
        if not (isinstance(summary, bytes) and isinstance(wall_time, bytes)):
            return []
        ts_s, step = _unpacked("<d", wall_time), fields.get(2, 0)
        if isinstance(step, int) and step >= 2**63:
            step -= 2**64
        values = (_value(value) for field, value in _fields(summary) if field == 1 and isinstance(value, bytes))
        known = [value for value in values if value]
    except (ValueError, IndexError):
        return []
    return [Scalar(ts_s, step, *value) for value in known] if ts_s is not None and isinstance(step, int) else []


def _value(data: bytes) -> tuple[str, float] | None:
    """Tag and number of a `Summary.Value`; None for what is no scalar."""
    fields = dict(_fields(data))
    tag, simple, tensor = fields.get(1), fields.get(2), fields.get(8)
    number = None
    if isinstance(simple, bytes):
        number = _unpacked("<f", simple)
    elif isinstance(tensor, bytes):
        number = _of_tensor(dict(_fields(tensor)))
    return (tag.decode(errors="replace"), number) if isinstance(tag, bytes) and number is not None else None


def _of_tensor(fields: dict[int, int | bytes]) -> float | None:
    """The number of a `TensorProto` that holds only one: as bytes, or as a list of one."""
    content = {_FLOAT: ("<f", fields.get(4)), _DOUBLE: ("<d", fields.get(4))}.get(int(fields.get(1) or 0), ("", None))
    for form, data in (content, ("<f", fields.get(5)), ("<d", fields.get(6))):
        if isinstance(data, bytes):
            return _unpacked(form, data)
    return None


def _unpacked(form: str, data: bytes) -> float | None:
    return float(struct.unpack(form, data)[0]) if len(data) == struct.calcsize(form) else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and content of each field of a protobuf message: a number, or bytes that the caller knows to read.

    Raises:
        IndexError, ValueError: it is none.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        if kind not in (_FIXED64, _BYTES, _FIXED32):
            raise ValueError(f"wire type {kind}")
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if size is None:
            size, at = _varint(message, at)
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[at : at + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value % 2**64, at + place + 1
    raise ValueError("a number without end")
