"""Two users of one machine, made by root: what one leaves in a place that both can write, the other must not run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from .waiting import HANGS_S

# Reading alone, and access(2) told so: the interpreter may lie where only root can read it. Writing stays forbidden.
_SETPRIV = (
    "setpriv",
    "--clear-groups",
    "--securebits=+no_setuid_fixup",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
)


@dataclass(frozen=True)
class User:
    """Somebody without an account, as in a container.

    Attributes:
        uid: user, and private group.
        home: only theirs.
    """

    uid: int
    home: Path

    def command(self, *argv: str | Path) -> list[str]:
        """A command line that runs as this user."""
        return [*_SETPRIV, f"--reuid={self.uid}", f"--regid={self.uid}", *map(str, argv)]

    def python(self, *argv: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs Python as this user, to its end."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CAMPAIGN_", "XDG_"))}
        return subprocess.run(
            self.command(sys.executable, *argv),
            cwd=cwd,
            env={**kept, "HOME": str(self.home), "USER": str(self.uid), "LOGNAME": str(self.uid), **env},
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            check=False,
        )

    def campaign(self, *words: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs the command line as this user."""
        return self.python("-m", "dscampaign.orchestrator.cli", *words, cwd=cwd, **env)

    def takes(self, *places: Path) -> None:
        """Makes files and folders this user's."""
        for place in places:
            os.chown(place, self.uid, self.uid, follow_symlinks=False)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """What this process does to files meanwhile, it does as this user. It may be unable to import anything."""
        before = os.getgroups()
        os.setgroups([])
        os.setegid(self.uid)
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(before)


@dataclass(frozen=True)
class Machine:
    """A public folder with the sticky bit, as /scratch is, and two users."""

    public: Path
    victim: User
    attacker: User


@contextmanager
def two_users() -> Iterator[Machine]:
    """Leaves out a test that may not become other users, and says so."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("LEFT OUT: attacks of one user on another need root and setpriv")
    base = Path(tempfile.mkdtemp(prefix="two-users-"))
    try:
        base.chmod(0o755)
        users = []
        for uid in (54321, 54322):
            home = base / str(uid)
            home.mkdir(0o700)
            os.chown(home, uid, uid)
            users.append(User(uid, home))
        if subprocess.run(users[0].command("true"), check=False, capture_output=True).returncode:
            pytest.skip("LEFT OUT: this machine lets root become nobody else")
        public = base / "public"
        public.mkdir()
        public.chmod(0o1777)
        yield Machine(public, *users)
    finally:
        shutil.rmtree(base, ignore_errors=True)
