"""Nothing of a user's is deleted, changed or given away, wherever it lies in a campaign's `dir`."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.db.errors import StoreError
from dscampaign.db.prune import Retention, prune
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign import desired, retention
from dscampaign.orchestrator.campaign.retention import collect, find_garbage
from dscampaign.orchestrator.campaign.sharing import share, unshare
from dscampaign.orchestrator.errors import UserError
from dscampaign.tests.support.mounts import may_mount
from dscampaign.tests.support.world_on_disk import World
from dscampaign.tests.unit.jobs.test_checkpoint import make as save_checkpoint

HISTORIES = int(os.environ.get("OURS_HISTORIES", "15"))
"""What `make test-all` sets to 100."""
SEED = int(os.environ.get("OURS_SEED", "1"))

NAMES = (
    *("thesis", ".env", "notes.txt", "model.pt", "lock", "a b", "ü", "-f", "data", "core", "latest", ".git", "x.tmp"),
    *("0123456789abcdef", "fedcba9876543210.json", "campaign.json.bak", "campaign.db.bak", "train.json.old", "g0001"),
    *("g0001-step", "reserve-me", "checkpoints", ".a.b.12345678", "runs2", "depth-3", "by-hand"),
)
IN_CAMPAIGN = ("", "/runs", "/batches", "/searches", "/tensorboard", "/runs/*", "/runs/*/g0001")
FOLDERS = ("code", "code/*", "data", *(f"c{place}" for place in IN_CAMPAIGN))
ACTIONS = ("submit", "pass", "jobs", "save", "cancel", "retry", "gc", "rm", "share", "unshare", "prune", "age", "plant")
GROUP = "54321" if os.geteuid() == 0 else str(os.getegid())


class History:
    """A campaign among files of its user, and a sequence of commands.

    Attributes:
        theirs: every place of the user's, with what it must stay.
    """

    def __init__(self, folder: Path, template: Path, chance: random.Random, *, mounts: bool) -> None:
        self.chance, self.outside, self.mounts, self.done = chance, folder / "outside", mounts, list[str]()
        self.mounted: list[Path] = []
        self.theirs: dict[Path, tuple[object, ...]] = {}
        dir = folder / "campaign"
        for made in (self.outside, dir):
            made.mkdir(parents=True)
            made.chmod(chance.choice((0o700, 0o755)))
        shutil.copy(template, dir / "campaign.db")
        self.world = World(dir, Store.open(f"sqlite:///{dir}/campaign.db"))
        self.keep(self.file(self.outside / "valued"))

    def close(self) -> None:
        self.world.store.close()
        for place in reversed(self.mounted):
            subprocess.run(["umount", "-l", str(place)], check=True)

    def file(self, place: Path) -> Path:
        place.write_text(str(self.chance.random()))
        place.chmod(self.chance.choice((0o600, 0o644, 0o664, 0o400, 0o755)))
        return place

    def keep(self, place: Path) -> None:
        for path in [place, *(place.rglob("*") if place.is_dir() and not place.is_symlink() else ())]:
            self.theirs[path] = state(path)
            if self.chance.random() < 0.7:
                os.utime(path, (1e9, 1e9), follow_symlinks=False)

    def check(self) -> None:
        for place, before in self.theirs.items():
            assert state(place) == before, (place, self.done)

    def act(self) -> None:
        with self.world.store.read() as conn:
            known = bool(queries.list_campaigns(conn))
        name = self.chance.choice(ACTIONS if known else ("submit", "plant", "plant", "gc"))
        self.done.append(name)
        with suppress(UserError, StoreError):
            getattr(self, name)()
        self.check()

    def submit(self) -> None:
        self.world.record(matrix={"depth": self.chance.choice(([1], [1, 2]))})

    def save(self) -> None:
        """Checkpoints of the built-in trainer, which writes them while a run has no command of its own."""
        for run in self.world.runs().values():
            folder = self.world.paths.run(run.name).checkpoints(run.config_hash)
            if folder.parents[1].is_dir() and not self.world.paths.runs.is_symlink():
                folder.mkdir(parents=True, exist_ok=True)
                for step in (1, 2, 3):
                    if not (folder / f"g0001-step{step:08d}").exists():
                        save_checkpoint(folder, step)
                config = {key: value for key, value in run.config.items() if key != "command"}
                with self.world.store.write() as conn:
                    queries.update_run(conn, run.id, config=config)

    def plant(self) -> None:
        places = [place for below in FOLDERS for place in self.world.folder.glob(below) if place.is_dir()]
        places.append(self.world.folder)
        folder = self.chance.choice([place for place in places if not self.is_theirs(place)])
        if self.chance.random() < 0.1 and not folder.is_relative_to(self.world.paths.dir):
            folder = self.world.folder / self.chance.choice(("code", "data", "c"))
            if os.path.lexists(folder):
                return
            folder.mkdir()
        place = folder / self.chance.choice(NAMES)
        if os.path.lexists(place) or (folder.parent.name == "runs" and place.name in ("g0001", "checkpoints")):
            return  # the name of something of the campaign's that is there, or is about to be
        kind = self.chance.choice(("file", "folder", "folder", "link", "link", "moved", "mount"))
        self.done.append(f"{kind} {place.relative_to(self.world.folder)}")
        if kind == "file":
            self.keep(self.file(place))
        elif kind == "folder":
            (place / "src").mkdir(parents=True)
            self.file(place / "src" / "model.py")
            self.keep(place)
        elif kind == "link":
            inside = self.world.folder / self.chance.choice(("campaign.db", "c", "c/runs", "nothing"))
            place.symlink_to(self.chance.choice((self.outside, self.outside / "valued", inside)))
            self.keep(place)
        elif kind == "moved":
            self.move()
        elif self.mounts:
            self.mount(folder)

    def is_theirs(self, place: Path) -> bool:
        real = place.resolve()
        return place.is_symlink() or any(path.resolve() in (real, *real.parents) for path in self.theirs)

    def move(self) -> None:
        """A folder of the campaign goes to a larger disk, on which other things lie, and a link takes its place."""
        folder = self.chance.choice((self.world.paths.dir, self.world.paths.runs, self.world.paths.code("x").parent))
        target = self.outside / f"disk-{len(self.theirs)}"
        if not folder.is_dir() or folder.is_symlink() or any(place.is_relative_to(folder) for place in self.theirs):
            return
        shutil.move(folder, target)
        folder.symlink_to(target)
        (target / "other").mkdir()
        self.file(target / "other" / "weights")
        self.keep(target / "other")

    def mount(self, folder: Path) -> None:
        place, disk = folder / f"disk-{len(self.theirs)}", self.outside / f"mounted-{len(self.theirs)}"
        place.mkdir()
        disk.mkdir()
        self.file(disk / "weights")
        subprocess.run(["mount", "--bind", str(disk), str(place)], check=True)
        self.mounted.append(place)
        self.keep(place)

    def age(self) -> None:
        for place in self.world.folder.rglob("*"):
            if place not in self.theirs:
                os.utime(place, (1e9, 1e9), follow_symlinks=False)

    def jobs(self) -> None:
        with suppress(OSError):  # of a folder that cannot be made
            self.world.run_jobs(state=self.chance.choice(("COMPLETED", "FAILED")))

    def cancel(self) -> None:
        desired.cancel(self.world.store, self.world.campaign, None)

    def retry(self) -> None:
        desired.retry(self.world.store, self.world.campaign, None)

    def gc(self) -> None:
        with self.world.store.read() as conn:
            campaigns = queries.list_campaigns(conn)
        found = find_garbage(self.world.store, campaigns)
        collect(self.world.store, found, campaigns)

    def rm(self) -> None:
        if self.chance.random() < 0.7:  # else it is refused, unless everything is over
            self.cancel()
            self.world.run_pass()
            self.jobs()
            self.world.run_pass()
            self.world.run_pass()
        retention.remove(self.world.store, self.world.campaign)

    def share(self) -> None:
        share(self.world.store, self.world.campaign, GROUP, checkpoints=self.chance.random() < 0.5)

    def unshare(self) -> None:
        unshare(self.world.store, self.world.campaign)

    def prune(self) -> None:
        prune(self.world.store, self.world.campaign.id, Retention(10, 0.0))


setattr(History, "pass", lambda self: self.world.run_pass())


def state(place: Path) -> tuple[object, ...]:
    """All of a place that must stay."""
    try:
        info = place.lstat()
    except FileNotFoundError:
        return ("gone",)
    kind, content = stat.S_IFMT(info.st_mode), b""
    if kind == stat.S_IFREG:
        content = place.read_bytes()
    elif kind == stat.S_IFLNK:
        content = os.fsencode(place.readlink())
    elif kind == stat.S_IFDIR:
        content = b"/".join(sorted(map(os.fsencode, place.iterdir())))
    return kind, stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, info.st_ino, content


@pytest.mark.filterwarnings("ignore")
def test_foreign_files_survive_every_command(tmp_path: Path) -> None:
    Store.open(f"sqlite:///{tmp_path}/template.db", create=True).close()
    mounts = may_mount()
    for number in range(HISTORIES):
        folder = tmp_path / str(number)
        history = History(folder, tmp_path / "template.db", random.Random(SEED * 1_000_003 + number), mounts=mounts)
        try:
            for _ in range(history.chance.randint(6, 30)):
                history.act()
        finally:
            history.close()
        shutil.rmtree(folder)
