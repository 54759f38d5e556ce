"""A rule of the user's own; apart from the table of rules, whose patterns take a while to compile."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...jobs.shared.user_pattern import UserPattern


@dataclass(frozen=True)
class UserRule:
    """A rule of the user's own, tried before those of the table.

    Attributes:
        action: "stop", "retry", "exclude_node" or "smaller".
    """

    pattern: UserPattern | re.Pattern[str]
    action: str
    hint: str = ""
