"""What commands print: text for people, JSON documents, messages; and what a terminal can show."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

from dscampaign.orchestrator.formatting import printable

from .pages.text import Page, Style, fold
from .printed_commands import located

CLEAR_LINE: Final = "\r\x1b[2K"
"""Of a terminal: clears the line that the cursor is in."""

_INDENTED_ITEMS: Final = 100
"""Of a longer list in a document each item is one line: indented, ten thousand runs were half a million lines."""


def page_for(stream: IO[str]) -> Page:
    """What a stream can show, by NO_COLOR, FORCE_COLOR and TERM=dumb."""
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
    """Prints data, unbuffered, so that it stays in order with stderr; a terminal gets nothing to obey but colours."""
    sys.stdout.write(f"{printable(text, colours=True) if sys.stdout.isatty() else text}\n")
    sys.stdout.flush()


def echo_page(text: str) -> None:
    """Prints text for people: folded between words on a terminal, its commands complete."""
    echo(for_terminal(text))


def for_terminal(text: str) -> str:
    """Text for people as standard output shows it."""
    return fold(located(printable(text, colours=True)), page_for(sys.stdout).width)


def echo_screen(text: str) -> None:
    """Prints text, through `$PAGER` where it is longer than the terminal, and somebody can press its keys."""
    text = for_terminal(text)
    lines, size = text.splitlines(), terminal_size(sys.stdout)
    pager = shlex.split(os.environ.get("PAGER", "less"))
    dumb = not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"
    if dumb or len(lines) < size.lines or not pager or not keys_may_come(sys.__stdin__):
        echo(text)
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pager's
    try:
        subprocess.run(pager, input=f"{text}\n".encode(), env={"LESS": "FRX", **os.environ}, check=False)
    except OSError:  # there is no such program
        echo(text)
    finally:
        signal.signal(signal.SIGINT, previous)


def keys_may_come(stream: IO[str] | None) -> bool:
    """Whether standard input is a terminal that has not ended: in `script` without a keyboard nobody presses a key."""
    try:
        if stream is None or not stream.isatty():
            return False
        waiting = fcntl.ioctl(stream.fileno(), termios.FIONREAD, bytes(4))
        return any(waiting) or not select.select([stream], [], [], 0)[0]  # readable, with nothing to read: it has ended
    except OSError:
        return False


def echo_json(document: Mapping[str, Any]) -> None:
    """Prints one JSON document, with the version of its schema."""
    from dscampaign.orchestrator.campaign.documents import SCHEMA_VERSION

    for piece in json_pieces({"schema_version": SCHEMA_VERSION, **document}):
        sys.stdout.write(printable(piece, colours=True) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


def json_pieces(document: Mapping[str, Any]) -> Iterator[str]:
    """The text of a document, piece by piece: indented, but of a long list each item in one line."""
    last = len(document) - 1
    yield "{\n"
    for place, (name, value) in enumerate(document.items()):
        end = "\n" if place == last else ",\n"
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) > _INDENTED_ITEMS:
            yield f"  {json.dumps(name)}: [\n"
            for number, item in enumerate(value, 1):
                line = _dumps(item)
                yield f"    {line}\n" if number == len(value) else f"    {line},\n"
            yield f"  ]{end}"
        else:
            text = _dumps({name: value}, indent=2)
            yield f"{text[2:-2]}{end}"
    yield "}\n"


def _dumps(value: object, indent: int | None = None) -> str:
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
    """What JSON has no word for, as it has."""
    return list(value) if isinstance(value, Sequence) else str(value)


def echo_either(as_json: bool, document: Callable[[], Mapping[str, Any]], text: Callable[[Page], str]) -> None:
    """Prints one JSON document where `--json` asks for it, else text."""
    if as_json:
        echo_json(document())
    else:
        echo_page(text(page_for(sys.stdout)))


def echo_err(text: str) -> None:
    """Prints a message: folded between words on a terminal, its commands complete."""
    sys.stderr.write(f"{fold(located(printable(text, colours=True)), page_for(sys.stderr).width)}\n")
    sys.stderr.flush()


def echo_error(message: str, hint: str | None) -> None:
    """Prints what is wrong and what to do about it."""
    page = page_for(sys.stderr)
    echo_err(f"{page.paint('error:', Style.RED)} {message}")
    if hint:
        echo_err(f"{page.paint('hint:', Style.CYAN)} {hint}")


def echo_next(text: str) -> None:
    """Prints what to type next."""
    echo_err(f"{page_for(sys.stderr).paint('next:', Style.CYAN)} {located(text)}")
