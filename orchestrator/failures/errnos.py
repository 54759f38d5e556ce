"""Errnos of Linux (`asm-generic/errno.h`): whose fault each is, and how to find them in a text. Pure."""

from __future__ import annotations

import os
import re
from enum import Enum


class Fault(Enum):
    """The party at fault when a system call fails."""

    STORAGE = "the file system or its device"
    MEMORY = "the host's memory"
    NETWORK = "a connection or the other end of it"
    LIMIT = "a limit of processes, files or locks that others use too"
    REQUEST = "the request: a path, a right, an argument"


FAULTS = {
    number: fault
    for fault, numbers in {
        Fault.STORAGE: "5 6 19 27 28 30 31 37 61 67 70 71 74 107 108 112 116 117 121 122 123 124 126 127 128 129 131",
        Fault.MEMORY: "12",
        Fault.NETWORK: "32 98 99 100 101 102 103 104 110 111 113",
        Fault.LIMIT: "4 10 11 16 23 24 26 35 39 62 105",
        Fault.REQUEST: "1 2 7 8 13 17 18 20 21 22 36 38 40 95",
    }.items()
    for number in map(int, numbers.split())
}
"""errno → whose fault it is; other numbers prove nothing."""
_OF_THE_KERNEL = 512
"""From here on, numbers that a kernel keeps to itself (`linux/errno.h`): a file system that lets one out is broken."""

WORDS = {number: os.strerror(number) for number in FAULTS}
"""errno → the C library's message."""

OF_SOCKETS = frozenset({67, 70, 71, 107, 110, 112})
OF_FILES = OF_SOCKETS | {6, 19, 61, 74}
"""Errnos of sockets or devices too: about storage only if a file was in use."""

_SAID = re.compile(r"\b[Ee]rrno:?(?: ?= ?| )(\d{1,3})\b|\(os error (\d{1,3})\)|\bcode: (\d{1,3}), kind: ")
_NUMBERS = {text: number for number, text in WORDS.items()}
_WORDS = re.compile("|".join(map(re.escape, sorted(_NUMBERS, reverse=True))))


def fault(number: int, about_files: bool) -> Fault | None:
    """Return whose fault an errno is, depending on whether a file was in use; None if it proves nothing."""
    if number in OF_FILES and not about_files:
        return Fault.NETWORK if number in OF_SOCKETS else None
    if number in OF_FILES or (about_files and number >= _OF_THE_KERNEL):
        return Fault.STORAGE
    return FAULTS.get(number)


def find(text: str) -> int | None:
    """Return the errno that an error's text names, by number or description; None if it names none."""
    if numbers := [next(group for group in groups if group) for groups in _SAID.findall(text)]:
        return int(numbers[-1])  # a library that wraps an errno in another quotes the first one's
    words = _WORDS.search(text)
    return _NUMBERS[words[0]] if words else None
