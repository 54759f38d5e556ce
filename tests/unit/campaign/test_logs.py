"""The end of a log, whatever it holds."""

from __future__ import annotations

import io
from collections import deque

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
