"""Records `campaign top` of a store as a picture: python scripts/record_top.py DIR FILE.svg [KEY...]."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.live.top import view_of

SIZE = 100, 24
"""Characters and lines."""


async def record(folder: str, picture: Path, keys: list[str]) -> None:
    """Open the view, press the keys, and save the picture."""
    app = view_of(locate(PlaceOptions(folder)).open(), None)
    async with app.run_test(size=SIZE) as pilot:
        for key in (*keys, ""):
            await pilot.pause(2.5)
            if key:
                await pilot.press(key)
        drawn = app.export_screenshot(title="campaign top")
    picture.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL), encoding="utf-8")  # fonts of a server


asyncio.run(record(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
