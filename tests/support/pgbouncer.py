"""A private pgbouncer in transaction mode in front of a test's PostgreSQL, with its settings as installed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from sqlalchemy import make_url

from dscampaign.tests.support.daemon import Daemon, free_ports, listens
from dscampaign.tests.support.waiting import HANGS_S

SETTINGS = """\
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 5000
"""


class PgBouncer:
    """One pooler of few connections to the server at an address."""

    def __init__(self, url: str, connections: int = 20) -> None:
        self._url = make_url(url)
        self.dir = Path(tempfile.mkdtemp(prefix="dscampaign-pgbouncer-", dir="/tmp"))
        self.port = free_ports(1)[0]
        user = "postgres" if os.geteuid() == 0 else None
        settings = self.dir / "pgbouncer.ini"
        settings.write_text(
            SETTINGS.format(server=self._url.port, port=self.port, folder=self.dir, connections=connections)
        )
        (self.dir / "users").write_text('"postgres" ""\n')
        if user:
            for path in (self.dir, settings, self.dir / "users"):
                shutil.chown(path, user, user)
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        self._daemon = Daemon("pgbouncer", [program, str(settings)], self.dir, user=user)

    def __enter__(self) -> Self:
        """A pooler for the length of a block."""
        self._daemon.start(ready=lambda: listens(self.port))
        return self

    def __exit__(self, *_: object) -> None:
        self._daemon.stop(HANGS_S)
        shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def url(self) -> str:
        """The same database, through the pooler."""
        return self._url.set(port=self.port).render_as_string(hide_password=False)
