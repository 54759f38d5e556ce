"""The process that hands a message to apprise: its libraries may hang, and only a process can be ended.

It reads `{"url", "title", "body"}` from standard input, where no other user sees the address, and prints why it failed.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Final

FAILED: Final = 1


class _Last(logging.Handler):
    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def main() -> int:
    """Deliver the message; return the exit code."""
    content = json.load(sys.stdin)
    try:
        import apprise
    except ImportError:
        sys.stdout.write("it is not installed: pip install 'dscampaign[notify]'")
        return FAILED
    last = _Last(logging.WARNING)
    apprise.logger.addHandler(last)
    client = apprise.Apprise()
    if not client.add(content["url"]):
        sys.stdout.write("it knows no such address")
        return FAILED
    if client.notify(title=content["title"], body=content["body"]):
        return 0
    sys.stdout.write(last.text)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
