"""A private PostgreSQL server for tests: own data, own port, own account; it can crash and come back."""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Literal, Self

from dscampaign.tests.support.daemon import Daemon, free_ports
from dscampaign.tests.support.waiting import HANGS_S

StopMode = Literal["smart", "fast", "immediate"]
_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class PostgresServer:
    """One server, with as many empty databases as tests ask for. Durable, as PostgreSQL is by default."""

    def __init__(self) -> None:
        # Not pytest's temporary folder: only root may enter that one, and PostgreSQL refuses to run as root.
        self.dir = Path(tempfile.mkdtemp(prefix="dscampaign-pg-", dir="/tmp"))
        self.port = free_ports(1)[0]
        self._user = "postgres" if os.geteuid() == 0 else None
        self._names = (f"test_{number}" for number in itertools.count(1))
        self._bin = _newest_bin()
        self._daemon = self._make_daemon()

    def up(self) -> None:
        """Creates the data folder and starts the server."""
        if self._user:
            shutil.chown(self.dir, self._user, self._user)
        as_user = ["runuser", "-u", self._user, "--"] if self._user else []
        options = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        command = [*as_user, str(self._bin / "initdb"), f"--pgdata={self.dir}/data", *options]
        subprocess.run(command, cwd="/", check=True, capture_output=True, text=True)
        self.start()

    def down(self) -> None:
        """Stops the server and removes all that it wrote."""
        self.stop("immediate")
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self) -> Self:
        """A server for the length of a block."""
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def start(self) -> None:
        """Starts the server and waits until it answers; after an immediate stop it recovers first."""
        self._daemon.start(ready=self._answers)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stops the server as `pg_ctl stop -m MODE` does; `immediate` is a crash."""
        self._daemon.stop_signal = _SIGNALS[mode]
        self._daemon.stop(HANGS_S)  # killed, it would leave its children

    def url(self, database: str = "postgres") -> str:
        """The address of one database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Create an empty database; return its address. It is hundreds of files, which take time to remove."""
        import psycopg  # here, so that tests which need no server need no driver either

        name = next(self._names)
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"create database {name}")
        return self.url(name)

    def empty(self, url: str) -> None:
        """Remove all rows of a store's database, and end what is still connected to it."""
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            tables = connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
            names = ", ".join(name for (name,) in tables if name != "alembic_version")
            connection.execute(f"truncate {names} restart identity cascade")

    def _make_daemon(self) -> Daemon:
        # Servers are killed here, machines are not: what was written is there. To wait for the disk, which other tests
        # keep busy, would take a restart minutes.
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.dir,
            "fsync": "off",
            "full_page_writes": "off",
            "autovacuum": "off",
        }
        flags = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        argv = [str(self._bin / "postgres"), "-D", f"{self.dir}/data", *flags]
        return Daemon("postgres", argv, self.dir, user=self._user, stop_signal=signal.SIGQUIT)

    def _answers(self) -> bool:
        probe = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(probe, check=False).returncode == 0


def _newest_bin() -> Path:
    """The folder with initdb, which Debian keeps off PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    found = str(versions[-1]) if versions else shutil.which("initdb")
    if found is None:
        raise RuntimeError("PostgreSQL is not installed: scripts/test_dependencies.sh says what to install")
    return Path(found).parent
