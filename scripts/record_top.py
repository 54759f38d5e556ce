"""Records `campaign top` of a store as a picture: python scripts/record_top.py DIR FILE.svg [KEY...]."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.cli.show import view_of

SIZE = 110, 30
"""Characters and lines."""


async def record(folder: str, picture: Path, keys: list[str]) -> None:
    """Open the view, press the keys, and save the picture."""
    app = view_of(locate(PlaceOptions(folder)).open(), None)
    async with app.run_test(size=SIZE) as pilot:
        for key in (*keys, ""):
            await pilot.pause(2.5)
            if key:
                await pilot.press(key)
        picture.write_text(app.export_screenshot(title="campaign top"), encoding="utf-8")


asyncio.run(record(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
