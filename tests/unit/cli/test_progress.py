"""How far long work is, as a terminal sees it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator

import pytest

from dscampaign.orchestrator.cli.console import progress_shown
from dscampaign.orchestrator.commands import counted, in_pieces


class Terminal(io.StringIO):
    """Keeps what it is sent."""

    def isatty(self) -> bool:
        return True


Shown = Callable[..., str]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Works through items that take so many seconds each; returns what the terminal was sent."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    def work(items: Iterable[object], each_s: float, stream: io.StringIO | None = None, *, quiet: bool = False) -> str:
        stream, now_s = stream or Terminal(), 0.0
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setattr("time.monotonic", lambda: now_s)
        with progress_shown(quiet=quiet):
            for _ in items:
                now_s += each_s
        return stream.getvalue()

    return work


def test_a_terminal_shows_one_line_which_is_gone_at_the_end(shown: Shown) -> None:
    *lines, last = shown(counted_later("runs", range(10)), 0.5).split("\r\x1b[2K")[1:]
    assert lines[1] == "2 of 10 runs"
    assert last == ""
    assert not any("\n" in line for line in lines)


def counted_later(noun: str, items: Iterable[int]) -> Iterator[int]:
    yield from counted(noun, items)


def test_nothing_is_shown_of_quick_work_of_a_log_or_for_a_program(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not shown(counted_later("runs", range(40)), 0.01)
    assert not shown(counted_later("runs", range(10)), 2.0, io.StringIO())
    assert not shown(counted_later("runs", range(10)), 2.0, quiet=True)
    monkeypatch.setenv("TERM", "dumb")
    assert not shown(counted_later("runs", range(10)), 2.0)


def test_a_line_is_drawn_a_few_times_a_second_however_fast_the_work_is(shown: Shown) -> None:
    assert len(shown(counted_later("runs", range(20_000)), 0.0001).split("\r")) <= 6


def test_a_line_is_gone_when_the_work_breaks_off(shown: Shown) -> None:
    stream = Terminal()

    def broken() -> Iterable[int]:
        yield from range(10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shown(counted_later("runs", broken()), 1.0, stream)
    assert stream.getvalue().endswith("\r\x1b[2K")


def test_items_without_a_length_are_counted_alone(shown: Shown) -> None:
    lines = shown(counted_later("rows", iter(range(2000))), 0.5).split("\r\x1b[2K")[1:]
    assert lines[-2] == "2,000 rows"


def test_items_come_through_in_order_and_in_pieces_shown_or_not() -> None:
    assert list(counted("runs", [1, 2])) == [1, 2]
    with progress_shown(quiet=True):
        assert [len(some) for some in in_pieces("runs", range(2500))] == [1000, 1000, 500]
