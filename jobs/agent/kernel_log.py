"""Read the kernel's messages about GPUs, memory and storage on this node while an attempt ran.

/dev/kmsg is opened when the attempt begins and read when it ends, so that only its own time is seen. If it cannot be
opened (``kernel.dmesg_restrict``), there are no lines.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dscampaign.jobs.shared.documents import Time

KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192
RECORD_LIMIT = 20_000
LINE_LIMIT = 40
TEXT_LIMIT = 300

INTERESTING = re.compile(
    r"NVRM|nvidia.*(?:Xid|fallen off)|Out of memory|oom-kill|Killed process|I/O error|nfs: server|Remounting filesystem"
    r"|LustreError|lost connection|Machine check|mce: .*Hardware Error|segfault at|AER: .*[Ff]atal",
)


@dataclass(frozen=True)
class KernelLine:
    """A line of the kernel's log; ``ts`` by this node's clock, about a second true."""

    ts: Time
    text: str


class KernelLog:
    """The kernel's log from now on."""

    def __init__(self, device: Path = KMSG) -> None:
        self._file: int | None = None
        try:
            self._file = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self.close()

    def lines(self) -> tuple[KernelLine, ...]:
        """Return the interesting lines since this was opened, the newest of too many; close the log."""
        lines = tuple(_records(self._file)) if self._file is not None else ()
        self.close()
        return lines[-LINE_LIMIT:]

    def close(self) -> None:
        """Close the device."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _parse_kmsg(record: str) -> KernelLine | None:
    """Read a record of /dev/kmsg, ``priority,sequence,microseconds,flags;text``, if it is interesting."""
    head, separator, body = record.partition(";")
    text = body.split("\n", 1)[0]
    if not separator or not INTERESTING.search(text):
        return None
    try:
        boot_s = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
        return KernelLine(boot_s + int(head.split(",")[2]) / 1e6, text[:TEXT_LIMIT])
    except (IndexError, ValueError):
        return None


def _records(file: int) -> Iterator[KernelLine]:
    for _ in range(RECORD_LIMIT):
        try:
            record = os.read(file, RECORD_BYTES)
        except BrokenPipeError:
            continue  # overwritten before we came; the next read goes on with the oldest that is left
        except OSError:
            return  # nothing more
        if not record:
            return
        if line := _parse_kmsg(record.decode(errors="replace")):
            yield line
