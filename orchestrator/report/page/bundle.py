"""The JavaScript that draws the charts in a browser: Vega-Embed, Vega-Lite and Vega in one."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import vl_convert

from dscampaign.orchestrator.output_files import whole_file


def vega_bundle() -> str:
    """Return the bundle; bundling takes seconds, so that the user's cache keeps it."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "dscampaign"
    file = folder / f"vega-{version('vl-convert-python')}.js"
    try:
        if file.lstat().st_uid == os.geteuid():
            return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg] # the stub requires an optional argument
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with whole_file(file) as stream:
            stream.write(bundle)
    except OSError:  # it is bundled again next time
        pass
    return bundle
