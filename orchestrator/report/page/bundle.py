"""The JavaScript that draws the charts in a browser: Vega-Embed, Vega-Lite and Vega in one."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import version

import vl_convert

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.ownership import Distrusted, trusted_bytes
from dscampaign.files.private_files import make_private
from dscampaign.orchestrator.user_files import cache_folder


def vega_bundle() -> str:
    """Return the bundle from the user's cache if nobody else can have written it; else make it, which takes seconds."""
    file = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, ValueError, Distrusted):
        return trusted_bytes(file).decode()
    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg] # the stub requires an optional argument
    with suppress(OSError):
        make_private(file.parent)
        write_atomically(file, bundle, closed=True)
    return bundle
