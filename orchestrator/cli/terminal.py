"""Logs and tables on a terminal: the output of a script must not command it."""

from __future__ import annotations

import codecs
import sys
from typing import IO, TYPE_CHECKING, Final

from dscampaign.orchestrator.formatting import printable, shorten

from .output import CLEAR_LINE, page_for, terminal_size

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.logs import LogStream

_LONGEST: Final = 1 << 16
"""Characters of a line that are held back for its end."""


class TerminalLog:
    """Shows bytes of a log on a terminal, line by line; a line without an end is replaced as it grows.

    Of a line with carriage returns, such as a progress bar, it shows the last state.

    Args:
        stream: of the terminal.
        colours: let those of the log pass.
        width: columns of the terminal.
    """

    def __init__(self, stream: IO[str], *, colours: bool, width: int) -> None:
        self._stream, self._colours, self._width = stream, colours, width
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._line, self._shown = "", ""

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        *lines, self._line = (self._line + self._decoder.decode(data)).split("\n")
        if len(self._line) > _LONGEST:
            lines, self._line = [*lines, self._line], ""
        for line in lines:
            text = printable(_last_state(line), colours=self._colours)
            reset = "\x1b[0m" if "\x1b" in text else ""
            self._stream.write(f"{CLEAR_LINE if self._shown else ''}{text}{reset}\n")
            self._shown = ""

    def flush(self) -> None:
        """Show the beginning of an unfinished line."""
        now = shorten(printable(_last_state(self._line)).replace("\t", " "), self._width - 1)
        if now != self._shown:
            self._stream.write(f"{CLEAR_LINE if self._shown else ''}{now}")
            self._shown = now
        self._stream.flush()


def log_stream() -> LogStream:
    """Where `campaign logs` prints: to a file or a pipe as the bytes that they are."""
    if not sys.stdout.isatty():
        return sys.stdout.buffer
    return TerminalLog(sys.stdout, colours=page_for(sys.stdout).colour, width=terminal_size(sys.stdout).columns)


def _last_state(line: str) -> str:
    """The line as it ends up after it has overwritten itself."""
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")
