"""First on a PYTHONPATH, it notes where every Python process wants to connect to, or which name it looks up.

One line each is added to the file that NETWORK_RECORD names: the program, and the address. Addresses of this machine
are none of its concern, nor are sockets of the file system.
"""

import ipaddress
import os
import socket
import sys
from pathlib import Path

_OWN = {"localhost", socket.gethostname(), "", "0.0.0.0", "::"}
_RECORD = os.environ.get("NETWORK_RECORD", os.devnull)


def _is_own(host: str) -> bool:
    try:
        return host in _OWN or ipaddress.ip_address(host).is_loopback or host in _own_addresses()
    except ValueError:
        return host == socket.getfqdn()


def _own_addresses() -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return set()


def _note(event: str, args: tuple[object, ...]) -> None:
    if event == "socket.connect" and isinstance(args[1], tuple):
        host = args[1][0]
    elif event in {"socket.getaddrinfo", "socket.gethostbyname"}:
        host = args[0] or ""
    else:
        return
    host = host.decode() if isinstance(host, bytes) else str(host)
    if not _is_own(host):
        with Path(_RECORD).open("a") as record:
            record.write(f"{sys.orig_argv!r:.200} -> {event} {host}\n")


sys.addaudithook(_note)
