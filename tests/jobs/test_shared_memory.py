"""What DeepSpeed's ranks leave in a node's shared memory."""

from __future__ import annotations

import os
from pathlib import Path

from dscampaign.jobs.shared_memory import clear


def test_only_the_attempt_s_own_buffers_go(tmp_path: Path) -> None:
    def buffer(user: int, address: str, port: int, rank: int) -> Path:
        path = tmp_path / f"deepspeed_allreduce_buffer_{user}_{address}_{port}_{rank}"
        path.write_bytes(b"0")
        return path

    me = os.getuid()
    own = [buffer(me, "10.0.0.1", 2950, rank) for rank in range(2)]
    others = [buffer(me, "10.0.0.1", 29501, 0), buffer(me, "10.0.0.2", 2950, 0), buffer(me + 1, "10.0.0.1", 2950, 0)]
    clear("10.0.0.1", 2950, tmp_path)
    assert set(tmp_path.iterdir()) == set(others)
    assert not any(path.exists() for path in own)


def test_a_node_without_shared_memory_has_nothing_to_clear(tmp_path: Path) -> None:
    clear("10.0.0.1", 2950, tmp_path / "none")
