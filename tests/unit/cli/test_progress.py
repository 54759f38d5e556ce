"""How far long work is, as a terminal sees it."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterable

import pytest

from dscampaign.orchestrator.cli import progress
from dscampaign.orchestrator.cli.progress import Progress, progress_shown, progress_text
from dscampaign.orchestrator.progress import counted, in_pieces, shown_by


class Terminal(io.StringIO):
    """Keeps what it is sent."""

    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, items: Iterable[int], each_s: float) -> str:
    """What is written where each item takes so many seconds."""
    now_s = 0.0
    bar = Progress(stream, lambda: now_s)
    for _ in bar.through(items, "runs"):
        now_s += each_s
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def test_every_item_comes_through_once_and_in_order() -> None:
    for quiet in (False, True):
        with progress_shown(quiet=quiet):
            assert list(counted("runs", range(5))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "log"])
def test_nothing_is_shown_of_what_is_soon_done(stream: io.StringIO) -> None:
    assert not shown(stream, range(90), 0.01)


def test_a_terminal_shows_one_bar_which_is_gone_at_the_end() -> None:
    *lines, last = shown(Terminal(), range(10), 0.5).split("\r\x1b[2K")[1:]
    assert lines[0] == "2 of 10 runs, 2/s, 4 s left"
    assert last == ""
    assert not any("\n" in line for line in lines)


def test_a_bar_is_drawn_a_few_times_a_second_however_fast_the_work_is() -> None:
    assert len(shown(Terminal(), range(20_000), 0.0001).split("\r")) <= 8


def test_a_log_and_a_dumb_terminal_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not shown(io.StringIO(), range(10), 2.0)
    monkeypatch.setenv("TERM", "dumb")
    assert not shown(Terminal(), range(10), 2.0)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_program_that_reads_the_output_gets_none(monkeypatch: pytest.MonkeyPatch, quiet: bool) -> None:
    stream, now_s = Terminal(), 0.0
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress, "Progress", lambda stream: Progress(stream, lambda: now_s))
    with progress_shown(quiet=quiet):
        for _ in counted("runs", range(10)):
            now_s += 2.0
    assert bool(stream.getvalue()) is not quiet


def test_a_bar_is_gone_when_the_work_breaks_off() -> None:
    stream = Terminal()

    def broken() -> Iterable[int]:
        yield from range(10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shown(stream, broken(), 1.0)
    assert stream.getvalue().endswith("\r\x1b[2K")


class Unread(Terminal):
    """A pipe whose reader has left, or a terminal that is gone."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.tries = error, 0

    def write(self, _text: str, /) -> int:
        self.tries += 1
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error"), ValueError()])
def test_work_goes_on_where_nobody_reads_how_far_it_is(error: Exception) -> None:
    stream = Unread(error)
    shown(stream, range(10), 3.0)
    assert stream.tries == 1


def test_what_has_no_length_has_a_rate_alone() -> None:
    assert progress_text("rows", 1_200_000, None, 5.0) == "1,200,000 rows, 240k/s"


def test_without_anybody_who_shows_it_what_is_counted_comes_through() -> None:
    assert list(counted("runs", [1, 2])) == [1, 2]
    assert [len(some) for some in in_pieces("runs", range(2500))] == [1000, 1000, 500]


def test_what_is_counted_deep_below_is_shown_one_work_after_the_other() -> None:
    now_s, stream = 0.0, Terminal()
    with shown_by(Progress(stream, lambda: now_s)):
        for _ in counted("runs read", range(4)):
            now_s += 0.2
        for _ in in_pieces("runs recorded", range(4000)):
            now_s += 2.0
    first, *_, last = stream.getvalue().split("\r\x1b[2K")[1:]
    assert (first, last) == ("1,000 of 4,000 runs recorded, 500/s, 6 s left", "")
    assert list(counted("runs", [1])) == [1]


def test_a_bar_is_gone_when_its_work_is_done_and_when_it_is_left() -> None:
    now_s, stream = 0.0, Terminal()
    bar = Progress(stream, lambda: now_s)
    for _ in bar.through(range(5), "runs"):
        now_s += 1.0
    assert stream.getvalue().endswith("\r\x1b[2K")
    work = bar.through(range(5), "runs")
    for number in work:
        now_s += 1.0
        if number == 3:
            break
    assert isinstance(work, Generator)
    work.close()
    assert stream.getvalue().endswith("\r\x1b[2K")
