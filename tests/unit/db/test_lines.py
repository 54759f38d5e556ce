"""What a spool's bytes mean."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscampaign.db.ingest.lines import MetricBatch, _take, parse, take_lines


def test_lines_of_one_step_merge_and_the_first_value_counts() -> None:
    batch = parse(b'{"step":3,"loss":2.5}\n{"step":3,"loss":9,"eval_loss":2.0}\n', 0)
    assert batch.steps == {3: {"step": 3.0, "loss": 2.5, "eval_loss": 2.0}}


def test_a_torn_last_line_waits() -> None:
    batch = parse(b'{"step":1,"loss":1}\n{"step":2,"lo', 0)
    assert (batch.lines, batch.length, list(batch.steps), batch.bad) == (1, 20, [1], [])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"step":1}{"step":2}', "not JSON"),
        (b'{"step":1},{"step":2}', "not JSON"),
        (b'{"loss":1}', "no step"),
        (b'{"step":1.5}', "no step"),
        (b'{"step":-1}', "no step"),
        (b'{"step":true}', "no step"),
        (b'{"step":1e30}', "no step"),
        (b'{"step":NaN}', "no step"),
        (b'{"event":7}', "an event without a name"),
        (b'{"event":7,"step":3}', "an event without a name"),
        (b'\xff{"step":1}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_is_set_aside_where_it_lies(line: bytes, why: str) -> None:
    first = '{"step":1,"größe":1}\n'.encode()
    batch = parse(first + line + b'\n{"step":2,"loss":1}\n', 1000)
    [bad] = batch.bad
    assert (bad.offset, bad.length, bad.why) == (1000 + len(first), len(line) + 1, why)
    assert bad.prefix == line.decode(errors="replace")[:200]
    assert (list(batch.steps), batch.lines) == ([1, 2], 3)


def test_two_halves_never_make_one_line() -> None:
    """Joined by a comma these would be good JSON, and even as many objects as lines."""
    batch = parse(b'{"step":1,"a":2\n"b":3}\n{"step":4},{"step":5}\n', 0)
    assert (batch.steps, len(batch.bad)) == ({}, 3)
    batch = parse(b'{"step":1,"a}\n{b":3}\n{"step":4},{"step":5}\n', 0)
    assert (batch.steps, len(batch.bad)) == ({}, 3)


_NUMBERS = st.one_of(st.floats(), st.integers(), st.none(), st.booleans(), st.text(max_size=3))
_OBJECTS = st.dictionaries(st.sampled_from(["step", "loss", "x", "event", "\0"]), _NUMBERS, max_size=4)
_LINES = st.one_of(
    st.builds(lambda values: json.dumps(values).encode(), _OBJECTS),
    st.builds(lambda step, loss: json.dumps({"step": step, "loss": loss}).encode(), st.integers(0, 9), st.floats()),
    st.sampled_from([b'{"step":1', b'"a":1}', b'{"step":1},{"step":2}', b'{"a}', b'{b":1,"step":2}', b"}", b"{"]),
)


@given(st.lists(_LINES, min_size=1, max_size=6))
def test_reading_by_the_block_is_reading_by_the_line(lines: list[bytes]) -> None:
    block = b"".join(line + b"\n" for line in lines)
    slow = MetricBatch()
    take_lines(block, 7, slow, _take)
    assert repr(parse(block, 7)) == repr(slow)  # repr: NaN is not equal to itself
