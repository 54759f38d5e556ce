"""Reads torch's out-of-memory message: whose memory filled the GPU. Pure.

Three formats: torch 2.1 and later ("GPU 0 has a total capacity of ..."), the one before ("GPU 0; 11.17 GiB total
capacity; ..."), and either with the limit that a process may have set itself ("allowed"). Sizes are in GiB.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from .policy import FailureClass

FOREIGN_SHARE = 0.1
"""Share of a GPU's memory. Less may be drivers, CUDA contexts and rounding."""

FRAGMENT_SHARE = 0.05
"""Likewise. Any allocator holds a smaller rest, even if only 20 MiB did not fit."""

SAME_SHARE = 0.005
"""Sizes that differ by less are the same: the allocator's pieces are not placed alike in each attempt."""

_UNITS = {"bytes": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 2.0**10}
_SIZE = r"([\d.]+) (bytes|[KMGT]iB)"
_TRIED = re.compile(rf"Tried to allocate {_SIZE}")
_TRIED_ANY = re.compile(r"tried to allocate [\d.]+ \w+", re.IGNORECASE)
_TOTAL = re.compile(rf"total capac?i?ty of {_SIZE}|{_SIZE} total capacity")  # torch 2.1 wrote "capacty"
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free")
_ALLOWED = re.compile(rf"{_SIZE} allowed")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_OURS = re.compile(rf"this process has {_SIZE} memory in use")
_ALLOCATED = re.compile(rf"{_SIZE} (?:is allocated by PyTorch|already allocated)")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"{_SIZE} (?:reserved in total|cached)")


@dataclass(frozen=True)
class CudaMemory:
    """The sizes in the message, in GiB.

    Attributes:
        ours: Memory of this process, with its CUDA context if the message has it.
        unallocated: Reserved by torch, in pieces that did not fit.
        allowed: The process's own limit.
        others: Process id and size of each other process.
    """

    tried: float
    total: float
    free: float
    ours: float
    unallocated: float
    allowed: float | None
    others: tuple[tuple[int, float], ...]

    def foreign(self, siblings: Collection[int] = ()) -> float:
        """Memory of processes outside of this run, whose own process ids are ``siblings``."""
        family = sum(size for pid, size in self.others if pid in siblings)
        return max(0.0, self.total - self.free - self.ours - family)

    def kind(self, siblings: Collection[int] = ()) -> FailureClass:
        """The cause."""
        foreign = self.foreign(siblings)
        limited = self.allowed is not None and self.ours + self.tried > self.allowed
        if not limited and foreign > FOREIGN_SHARE * self.total and self.free + foreign >= self.tried:
            return FailureClass.FOREIGN_OOM
        if self.unallocated >= max(self.tried, FRAGMENT_SHARE * self.total):
            return FailureClass.FRAGMENTATION
        return FailureClass.OOM


def read(text: str) -> CudaMemory | None:
    """Return the sizes in torch's message, or None if it has none."""
    tried, total, free = (_size(pattern, text) for pattern in (_TRIED, _TOTAL, _FREE))
    if tried is None or total is None or free is None:
        return None
    ours, allocated = _size(_OURS, text), _size(_ALLOCATED, text)
    if ours is None and allocated is None:
        return None  # cut off
    allocated = allocated or 0.0
    unallocated = _size(_UNALLOCATED, text)
    if unallocated is None:
        unallocated = max(0.0, (_size(_RESERVED, text) or allocated) - allocated)
    # in a container the driver may not know our own process: the message then has 17179869184.00 GiB
    if ours is None or ours > total:
        ours = allocated + unallocated
    others = tuple((int(pid), float(size) * _UNITS[unit]) for pid, size, unit in _OTHER.findall(text))
    believable = tuple((pid, size) for pid, size in others if size <= total)
    return CudaMemory(tried, total, free, ours, unallocated, _size(_ALLOWED, text), believable)


def same_memory(text: str, other: str) -> bool:
    """Return whether two messages are about the same allocation, by processes that held the same; False if unknown."""
    if not _TRIED_ANY.search(text):
        return False
    first, two = read(text), read(other)
    if first is None or two is None:
        return text == other
    return _alike(first.tried, two.tried) and _alike(first.ours, two.ours)


def _alike(first: float, two: float) -> bool:
    return abs(first - two) <= SAME_SHARE * max(first, two)


def _size(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    if not match:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    return float(number) * _UNITS[unit]
