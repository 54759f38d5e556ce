"""How a child process is told what to measure, and tells what it measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from .work import Measured, Request


def serve(measure: Callable[[Request], Measured]) -> None:
    """Measures what the file named first says, and writes the figures into the file named second."""
    request, result = Path(sys.argv[1]), Path(sys.argv[2])
    measured = measure(Request.from_json(request.read_text()))
    draft = result.with_suffix(".part")
    draft.write_text(json.dumps(asdict(measured)))
    draft.rename(result)
