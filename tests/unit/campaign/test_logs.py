"""The end of a log, whatever it holds."""

from __future__ import annotations

import io
import os
import tracemalloc
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscampaign.orchestrator.campaign import logs


@given(
    text=st.lists(st.sampled_from([b"\n", b"a", b"bc\r", b"def\n", b"\xff"]), max_size=30).map(b"".join),
    lines=st.integers(0, 12),
    block=st.integers(1, 9),
)
def test_the_last_lines_are_those_of_tail(
    text: bytes, lines: int, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log, out = tmp_path_factory.getbasetemp() / "rank.log", io.BytesIO()
    log.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_BLOCK", block)
        assert logs.print_log(log, lines, out) == len(text)
    assert out.getvalue() == b"".join(deque(io.BytesIO(text), lines))


def test_the_end_of_a_long_log_is_found_from_its_end(tmp_path: Path) -> None:
    log, out = tmp_path / "rank.log", io.BytesIO()
    log.write_bytes(b"")
    os.truncate(log, 64 * 2**20)  # a line without end, in a hole that costs no disk
    with log.open("ab") as file:
        file.write(b"\nlast but one\nlast\n")
    tracemalloc.start()
    try:
        logs.print_log(log, 2, out)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert out.getvalue() == b"last but one\nlast\n"
