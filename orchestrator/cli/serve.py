"""The page that follows: serve."""

from __future__ import annotations

import getpass
import math
import socket
from contextlib import suppress
from pathlib import Path

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.errors import UserError, needs_the_extra
from dscampaign.orchestrator.formatting import count

from .console import campaign_argument, echo, echo_err, store_options, verb

_LOOPBACK = ("127.0.0.1", "localhost")


@verb
@campaign_argument
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on.  [default: a free one]")
@click.option("--host", default=_LOOPBACK[0], show_default=True, help="Address to listen on: this machine's own only.")
@click.option("--export", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Write the page as files.")
@store_options
def serve(name: str | None, port: int, host: str, folder: Path | None, place: PlaceOptions) -> None:
    """Serve a page of the campaigns that follows them, until Ctrl-C.

    Shows runs, curves, explanations, configurations, logs and GPUs, and changes nothing. Only a browser on this machine
    can open the link, and it is yours alone: it has a token. From a laptop, forward the port by ssh first.

    Examples:
      campaign serve
      campaign serve sweep --export ~/public_html/sweep
    """
    ssh = f"ssh -L {port or 'PORT'}:{_LOOPBACK[0]}:{port or 'PORT'} {getpass.getuser()}@{socket.gethostname()}"
    if host not in _LOOPBACK:
        raise UserError(f"the page is not served on {host}: it is only for you", f"from a laptop: `{ssh}`")
    with needs_the_extra():
        from dscampaign.orchestrator.campaign.selection import find
        from dscampaign.orchestrator.live.model import LiveStore
        from dscampaign.orchestrator.live.server import serve as serve_store
        from dscampaign.orchestrator.live.static import export

    location = locate(place, [name])
    store = location.open()
    if location.name:
        find(store, location.name)
    if folder:
        files = export(LiveStore(store, math.inf), location.name, folder)
        echo_err(f"{files[0]}, {count(len(files), 'page')}")
        return

    def tell(link: str, port: int) -> None:
        echo(link)
        echo_err(f"From a laptop: `{ssh.replace('PORT', str(port))}`, then open the link there. Ctrl-C ends it.")

    with suppress(KeyboardInterrupt):
        serve_store(store, port, location.name, tell)
