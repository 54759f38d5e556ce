"""All spools of an attempt at once, as the node's agent and the reconciler take them into the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..store import Store
from .forwards import Forwards
from .gpus import NodeGpus
from .metrics import Metrics
from .spool import Spool, drain


@dataclass(frozen=True)
class AttemptSpools:
    """Where the spools of an attempt are; those that do not exist count as empty.

    Attributes:
        gpus: One for each node.
    """

    attempt_id: int
    metrics: Path
    forwards: Path
    gpus: Sequence[Path]

    def __iter__(self) -> Iterator[Spool[Any]]:
        """The least that can be missed comes last."""
        yield Metrics(self.attempt_id, self.metrics)
        yield Forwards(self.attempt_id, self.forwards)
        for node_rank, path in enumerate(self.gpus):
            yield NodeGpus(self.attempt_id, path, node_rank)


def drain_attempt(store: Store, spools: AttemptSpools, held: Mapping[int, int] | None = None) -> None:
    """Takes into the store what it does not hold yet of an attempt's spools.

    Args:
        store: The store.
        spools: The spools.
        held: Bytes that the store holds of each spool, by `Spool.number`; one that has just that size is left
            alone. The store is asked where this is not given.

    Raises:
        StoreUnreachable: The store did not answer; what was not taken is not lost.
        LookupError: There is no such attempt.
        OSError: A spool cannot be read.
    """
    for spool in spools:
        drain(store, spool, None if held is None else held.get(spool.number, 0))
