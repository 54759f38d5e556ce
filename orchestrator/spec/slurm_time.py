"""Slurm's syntax of a time; separate from its section, so that `campaign status` can read them without pydantic."""

from __future__ import annotations

import re
from math import ceil
from typing import Final

MINUTES_SECONDS: Final = re.compile(r"(?P<minutes>\d+):(?P<seconds>\d+)")
"""A form that people take for hours and minutes."""
_TIME_FORMS = (
    re.compile(r"(?P<minutes>\d+)(:(?P<seconds>\d+))?"),
    re.compile(r"(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)"),
    re.compile(r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>\d+)(:(?P<seconds>\d+))?)?"),
)


def slurm_minutes(text: str) -> int:
    """Return the minutes of a Slurm time, rounded up; 0 for other text."""
    match = next((found for form in _TIME_FORMS if (found := form.fullmatch(text))), None)
    parts = {unit: int(value or 0) for unit, value in match.groupdict().items()} if match else {}
    minutes = parts.get("days", 0) * 1440 + parts.get("hours", 0) * 60 + parts.get("minutes", 0)
    return minutes + ceil(parts.get("seconds", 0) / 60)
