"""Who holds a lease, as the store keeps it: `host:pid:id`."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Holder:
    """A process that reconciles.

    Attributes:
        id: tells it from another of the same number.
    """

    host: str
    pid: str
    id: str

    @classmethod
    def me(cls) -> Self:
        """This process, as one of its reconcilers."""
        return cls(socket.gethostname(), str(os.getpid()), uuid.uuid4().hex[:8])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what the store keeps."""
        host, pid, own = text.split(":")
        return cls(host, pid, own)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.id}"

    @property
    def dead(self) -> bool:
        """Whether it surely is no more: it ran on this host, and this host has no such process."""
        return self.host == socket.gethostname() and not Path("/proc", self.pid).exists()
