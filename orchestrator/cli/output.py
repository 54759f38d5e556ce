"""Prints text, JSON documents, messages, progress and logs, as the terminal can show them."""

from __future__ import annotations

import codecs
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

import click

from dscampaign.orchestrator.commands import shown_by
from dscampaign.orchestrator.formatting import duration, printable, short_number, shorten

from .pages.text import Page, Style, fold

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.logs import LogStream

CLEAR_LINE: Final = "\r\x1b[2K"
"""Of a terminal: clears the line that the cursor is in."""


def page_for(stream: IO[str]) -> Page:
    """The abilities of a stream, by NO_COLOR, FORCE_COLOR and TERM=dumb."""
    terminal = stream.isatty()
    if os.environ.get("NO_COLOR"):
        colour = False
    elif os.environ.get("FORCE_COLOR", "") not in ("", "0"):
        colour = True
    else:
        colour = terminal and os.environ.get("TERM") != "dumb"
    return Page(colour, terminal_size(stream).columns if terminal else None)


def terminal_size(stream: IO[str]) -> os.terminal_size:
    """Columns and lines of the stream's terminal; COLUMNS and LINES are respected."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        columns, lines = 0, 0
    return shutil.get_terminal_size((columns or 120, lines or 24))


def screen_height(stream: IO[str]) -> int | None:
    """Lines that a page may have to stay in sight above the shell's prompt; None for a file or a pipe."""
    return terminal_size(stream).lines - 1 if stream.isatty() else None


def echo(text: str) -> None:
    """Print data, unbuffered, so that it stays in order with stderr; a terminal gets nothing to obey but colours."""
    sys.stdout.write(f"{printable(text, colours=True) if sys.stdout.isatty() else text}\n")
    sys.stdout.flush()


def echo_page(text: str) -> None:
    """Print text for people: folded between words on a terminal."""
    echo(_for_terminal(text))


def _for_terminal(text: str) -> str:
    return fold(printable(text, colours=True), page_for(sys.stdout).width)


def echo_screen(text: str) -> None:
    """Print text, through `$PAGER` if it is longer than the terminal."""
    text = _for_terminal(text)
    if not sys.stdout.isatty() or len(text.splitlines()) < terminal_size(sys.stdout).lines:
        echo(text)
    else:
        os.environ.setdefault("LESS", "FRX")
        click.echo_via_pager(text, color=True)


def echo_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document with the version of its schema, indented on a terminal."""
    from dscampaign.orchestrator.campaign.documents import SCHEMA_VERSION

    indent = 2 if sys.stdout.isatty() else None
    echo(_dumps({"schema_version": SCHEMA_VERSION, **document}, indent))


def _dumps(value: object, indent: int | None) -> str:
    try:
        return json.dumps(value, default=_plain, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(_finite(value), default=_plain, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    from dscampaign.orchestrator.campaign.documents import finite

    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else finite(value)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, Sequence) else str(value)


def echo_either(as_json: bool, document: Callable[[], Mapping[str, Any]], text: Callable[[Page], str]) -> None:
    """Print one JSON document with `--json`, else text."""
    if as_json:
        echo_json(document())
    else:
        echo_page(text(page_for(sys.stdout)))


def echo_err(text: str) -> None:
    """Print a message: folded between words on a terminal."""
    sys.stderr.write(f"{fold(printable(text, colours=True), page_for(sys.stderr).width)}\n")
    sys.stderr.flush()


def echo_error(message: str, hint: str | None) -> None:
    """Print an error and its hint."""
    page = page_for(sys.stderr)
    echo_err(f"{page.paint('error:', Style.RED)} {message}")
    if hint:
        echo_err(f"{page.paint('hint:', Style.CYAN)} {hint}")


def echo_next(text: str) -> None:
    """Print the next command, in a single piece."""
    echo_err(page_for(sys.stderr).paint(f"next: {text}", Style.CYAN))


_EVERY_S: Final = 0.5


@contextmanager
def progress_shown(*, quiet: bool = False) -> Iterator[None]:
    """Show on a terminal the progress of long work inside, unless the output is for a program (`quiet`)."""
    on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    with shown_by(_with_progress if on_terminal and not quiet else None):
        yield


def _with_progress(items: Iterable[Any], noun: str, size: Callable[[Any], int] | None) -> Iterator[Any]:
    total = (sum(map(size, items)) if size else len(items)) if isinstance(items, Sized) else None
    began_s = next_s = time.monotonic()
    done, shown = 0, False
    try:
        for item in items:
            yield item
            done += size(item) if size else 1
            if (now_s := time.monotonic()) >= next_s + _EVERY_S and done != total:
                next_s, shown = now_s, True
                text = progress_text(noun, done, total, now_s - began_s)
                click.echo(f"{CLEAR_LINE}{shorten(text, terminal_size(sys.stderr).columns - 1)}", err=True, nl=False)
    finally:
        if shown:
            click.echo(CLEAR_LINE, err=True, nl=False)


def progress_text(noun: str, done: int, total: int | None, took_s: float) -> str:
    """`412 of 1,000 runs, 95/s, 6 s left`; without a total `1,200,000 rows, 240k/s`."""
    rate = f"{short_number(done / took_s)}/s"
    if total is None:
        return f"{done:,} {noun}, {rate}"
    return f"{done:,} of {total:,} {noun}, {rate}, {duration(took_s / done * (total - done))} left"


class TerminalLog:
    """Shows bytes of a log on a terminal, which obeys no escape sequences of the log but colours."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._colours = stream, page_for(stream).colour
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: bytes) -> None:
        """Show the next bytes; the carriage returns of progress bars stay."""
        parts = self._decoder.decode(data).split("\r")
        self._stream.write("\r".join(printable(part, colours=self._colours) for part in parts))

    def flush(self) -> None:
        """End colours that the log left on."""
        self._stream.write("\x1b[0m" if self._colours else "")
        self._stream.flush()


def log_stream() -> LogStream:
    """Return the destination of `campaign logs`: a file or a pipe gets the bytes as they are."""
    return TerminalLog(sys.stdout) if sys.stdout.isatty() else sys.stdout.buffer
