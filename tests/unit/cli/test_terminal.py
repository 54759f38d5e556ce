"""What a script prints, or names, never commands a terminal."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscampaign.db import queries
from dscampaign.orchestrator.cli.console import TerminalLog
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.formatting import printable
from dscampaign.tests.support.cli_world import World

HOSTILE = {
    "clear": "\x1b[2J",
    "up": "\x1b[1A\x1b[G",
    "private": "\x1b[?1049h",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJm\x1b\\",
    "link": "\x1b]8;;http://evil\x1b\\",
    "device": "\x1bP$q\x1b\\",
    "reset": "\x1bc",
    "charset": "\x1b(0",
    "8 bit": "\x9b2J\x9d0;owned\x9c",
    "bell": "\a\b\x7f",
    "bidi": "\u202e\u2066\u200f",
}


class Screen(io.TextIOWrapper):
    """A terminal that keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def sent(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    made = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PAGER", "")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_sequence_but_colours_is_printable(kind: str) -> None:
    said = f"a{HOSTILE[kind]}b \x1b[1;31mred\x1b[0m\n\tc"
    assert printable(said, colours=True) == "ab \x1b[1;31mred\x1b[0m\n\tc"
    assert printable(said) == "ab red\n\tc"


@given(st.text(st.sampled_from("\x1b[]mJ01;\x07\\\r\n a\u202e\x9b\x9d")))
def test_only_text_and_colours_are_left_whatever_it_was(text: str) -> None:
    left = printable(text, colours=True)
    assert not re.search(r"[^\n\t -~]", re.sub(r"\x1b\[[0-9;:]*m", "", left))
    assert printable(left, colours=True) == left


class Terminal(io.StringIO):
    """A terminal that keeps what it is sent."""

    def isatty(self) -> bool:
        return True


def log_of(*chunks: bytes) -> str:
    stream = Terminal()
    log = TerminalLog(stream)
    for chunk in chunks:
        log.write(chunk)
    log.flush()
    return stream.getvalue()


def test_a_log_keeps_its_progress_bars_and_its_colours_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert log_of(b"begin\r\n\r 10%|# |", b"\r100%|###|\nend\n") == "begin\r\n\r 10%|# |\r100%|###|\nend\n\x1b[0m"
    assert log_of(b"\x1b[31mred\n") == "\x1b[31mred\n\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert log_of(b"\x1b[31mred\n") == "red\n"


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_sequence_of_a_log_reaches_the_terminal_however_it_is_cut(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    line = f"a{HOSTILE[kind]}b\n".encode()
    assert log_of(line) == "ab\n"
    for cut in range(len(line)):
        assert not re.search(r"[^\n -~\ufffd]", log_of(line[:cut], line[cut:]))


@pytest.mark.parametrize(
    "command",
    [["status"], ["explain", "sweep", "bad"], ["describe"], ["export", "--what", "events"], ["logs", "sweep", "bad"]],
)
def test_no_page_passes_a_sequence_to_a_terminal(world: World, screen: Screen, command: list[str]) -> None:
    bad = "".join(HOSTILE.values())
    (world.attempt_paths("bad").logs / "2026_rank0.log").write_text(f"{bad}\x1b[32mgreen\x1b[0m\r\n")
    with world.store.write() as conn:
        queries.update_run(conn, world.run_id("bad"), reason=f"failed {bad}")
        queries.add_event(
            conn, world.campaign_id, f"script.x{bad[:9]}", bad, run_id=world.run_id("bad"), data={bad: bad}
        )
        evidence = {"reason": bad, "hint": bad, "rule": bad, "line": {"file": bad, "number": 1, "text": bad}}
        queries.update_attempt(conn, 4, evidence=evidence)
    with redirect_stdout(screen):
        assert main(command) == 0
    assert screen.sent
    assert printable(screen.sent, colours=True) == screen.sent.replace("\r\n", "\n")
