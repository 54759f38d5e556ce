"""A private, real Slurm cluster on this machine, for tests and for trying things by hand.

Munge, MariaDB, slurmdbd, slurmctld and one slurmd a node run as root from one folder. Every port, socket, key and state
file is the cluster's own, so several clusters run side by side.

By hand, in the repository's root:
    python -m tests.support.slurm_cluster up DIR     # prints the SLURM_CONF to export
    python -m tests.support.slurm_cluster down DIR
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from dscampaign.tests.support import slurm_config as config
from dscampaign.tests.support.daemon import Daemon, free_ports, listens
from dscampaign.tests.support.waiting import HANGS_S, wait_until

_SOCKET_PATH_MAX = 107
_FOLDERS = ("dev", "etc", "log", "munge", "run", "spool", "state")
ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"}
)


class SlurmCluster:
    """The cluster: bring it up, run Slurm's commands on it, break its parts one by one, take it down.

    Attributes:
        dir: Its folder; logs lie in `log/` and `run/`.
        nodes: Names of the nodes, each with 8 H100s that exist only on paper.
        env: Environment in which Slurm's commands talk to this cluster.
        daemons: Each server by name: munged, mariadbd, slurmdbd, slurmctld, and each node's slurmd by the node's name.
    """

    def __init__(self, dir: Path, nodes: int = 4, tied: bool = True, accounting: bool = True) -> None:
        """Describes a cluster, which `up` starts; `dir` is short, because a socket lies in it.

        `tied`: its servers end with this process. `accounting`: it has slurmdbd, and so remembers jobs.
        """
        self.dir = dir.resolve()
        self._layout = _layout(self.dir, nodes)
        if len(str(self._layout.munge_socket)) > _SOCKET_PATH_MAX:
            raise ValueError(f"{self.dir}: path too long for a socket")
        self.nodes = tuple(self._layout.node_ports)
        self.accounting = accounting
        self.env = _clean_environment() | {"SLURM_CONF": str(self._layout.slurm_conf)}
        self.daemons = {daemon.name: daemon for daemon in self._make_daemons(tied)}

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> None:
        """Starts every server and waits until all nodes are idle. Safe to repeat."""
        self._write_files()
        self._start_all()
        wait_until(self.idle, f"all nodes idle; see {self.dir}/log")

    def down(self) -> None:
        """Ends everything that belongs to this cluster, jobs included, and frees the space of the databases."""
        for name in (*self.nodes, "slurmctld"):
            self.daemons[name].stop(timeout_s=3)
        self._kill_jobs()
        for name in ("slurmdbd", "mariadbd", "munged"):
            if name in self.daemons:
                self.daemons[name].stop(timeout_s=5)
        for name in ("sql", "state", "spool"):
            shutil.rmtree(self.dir / name, ignore_errors=True)

    def run(self, *command: str, timeout_s: float = HANGS_S) -> str:
        """Runs a command on this cluster; returns its stripped output. An error has a note with its stderr."""
        done = subprocess.run(command, check=False, env=self.env, capture_output=True, text=True, timeout=timeout_s)
        if done.returncode != 0:
            error = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
            error.add_note(done.stderr)
            raise error
        return done.stdout.strip()

    def sbatch(self, script: str, *options: str) -> str:
        """Submits a bash script; returns the job id."""
        log = f"--output={self.dir}/log/job-%j.out"
        return self.run("sbatch", "--parsable", log, *options, f"--wrap={script}")

    def job_state(self, job_id: str) -> str:
        """The state of the newest record of a job in the accounting, such as `RUNNING`; empty while it has none."""
        fields = ["-X", "--noheader", "--parsable2", "--starttime=now-7days", "--format=State"]
        lines = self.run("sacct", "-j", job_id, *fields).splitlines()
        return lines[-1].split()[0] if lines else ""

    def wait_job(self, job_id: str, *states: str) -> str:
        """Waits until the accounting shows one of these states (default: any end) and returns it."""
        wanted = frozenset(states) or ENDED
        seen = ""

        def reached() -> bool:
            nonlocal seen
            seen = self.job_state(job_id)
            return seen in wanted

        wait_until(reached, f"job {job_id} {'/'.join(sorted(wanted))}")
        return seen

    def idle(self) -> bool:
        """Whether every node is idle and answers."""
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
            lines = self.run("sinfo", "-h", "-N", "-p", "h100", "-o", "%T", timeout_s=5).split()
            return lines == ["idle"] * len(self.nodes)
        return False

    def start(self, name: str) -> None:
        """Starts one server where it does not run, and waits until it listens."""
        port = self._port(name)
        self.daemons[name].start(ready=lambda: listens(port))

    def kill(self, name: str) -> None:
        """Ends one server as SIGKILL does; a node's jobs go on without their slurmd."""
        self.daemons[name].kill()

    def pause(self, name: str) -> None:
        """Stops one server in its tracks: it holds its connections and answers nothing."""
        self.daemons[name].send(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Lets a paused server go on."""
        self.daemons[name].send(signal.SIGCONT)

    def lose_state(self) -> None:
        """Restarts slurmctld with an empty state directory: jobs are forgotten and job ids start again.

        The accounting then has two jobs of one id, so do this to a cluster that no other test uses.
        """
        self.kill("slurmctld")
        shutil.rmtree(self.dir / "state")
        (self.dir / "state").mkdir()
        self.start("slurmctld")

    def reset(self) -> None:
        """Brings back what a test broke: every server runs, no job is left, every node is idle."""
        for name in self.daemons:
            self.resume(name)
        self._start_all()
        self._kill_jobs()
        self.run("scancel", "--user=root")
        self.undrain()
        wait_until(self.idle, f"all nodes idle again; see {self.dir}/log")

    def undrain(self) -> None:
        """Gives back the nodes that Slurm has taken out of service, as an administrator would."""
        if unfit := self.run("sinfo", "-h", "-p", "h100", "-t", "drain,fail", "-o", "%N"):
            self.run("scontrol", "update", f"NodeName={unfit}", "State=RESUME")

    def job_pids(self) -> list[int]:
        """Every process of a job of this cluster, slurmstepd included, whoever its parent is by now."""
        return [pid for pid in _all_pids() if self._is_of_job(pid)]

    def _start_all(self) -> None:
        self.daemons["munged"].start(ready=self._layout.munge_socket.is_socket)
        for name in ("mariadbd", "slurmdbd", "slurmctld", *self.nodes):
            if name in self.daemons:
                self.start(name)

    def _kill_jobs(self) -> None:
        for pid in self.job_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is_of_job(self, pid: int) -> bool:
        try:
            env = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ProcessLookupError):
            return False
        ours = f"SLURM_CONF={self._layout.slurm_conf}".encode() in env
        return ours and (command == "slurmstepd" or any(entry.startswith(b"SLURM_JOB_ID=") for entry in env))

    def _port(self, name: str) -> int:
        layout = self._layout
        ports = {"mariadbd": layout.sql_port, "slurmdbd": layout.dbd_port, "slurmctld": layout.ctl_port}
        return (ports | dict(layout.node_ports))[name]

    def _write_files(self) -> None:
        layout = self._layout
        for folder in (*_FOLDERS, *(f"spool/{node}" for node in self.nodes)):
            (self.dir / folder).mkdir(parents=True, exist_ok=True)
        if (self.dir / ("sql" if self.accounting else "etc/slurm.conf")).exists():
            return
        (self.dir / "munge").chmod(0o700)
        _write(self.dir / "munge/key", os.urandom(1024))
        _write(self.dir / "etc/slurmdbd.conf", config.slurmdbd_conf(layout).encode())
        _write(self.dir / "etc/init.sql", config.SQL_INIT.encode())
        layout.slurm_conf.write_text(config.slurm_conf(layout, self.accounting))
        (self.dir / "etc/gres.conf").write_text(config.gres_conf(layout))
        for path in config.gpu_files(layout):
            path.symlink_to("/dev/null")
        if self.accounting:
            self._install_sql()

    def _install_sql(self) -> None:
        command = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={self.dir}/sql", "--skip-test-db"]
        small = [self._sql_temporary(), "--innodb-log-file-size=8M", "--auth-root-authentication-method=normal"]
        with (self.dir / "log/sql-install.log").open("wb") as log:
            subprocess.run([*command, *small], stdout=log, stderr=log, check=True)

    def _sql_temporary(self) -> str:
        """A server that starts removes temporary tables from this folder, those of another server too."""
        return f"--tmpdir={self.dir}"

    def _make_daemons(self, tied: bool) -> list[Daemon]:
        books = {"mariadbd": self._mariadbd(), "slurmdbd": ["slurmdbd", "-D"]}
        commands = {
            "munged": self._munged(),
            **(books if self.accounting else {}),
            "slurmctld": ["slurmctld", "-D"],
            **{node: ["slurmd", "-D", "-N", node] for node in self.nodes},
        }
        return [Daemon(name, argv, self.dir / "run", self.env, tied=tied) for name, argv in commands.items()]

    def _munged(self) -> list[str]:
        files = {"key-file": "key", "log-file": "munged.log", "seed-file": "seed", "pid-file": "pid"}
        options = [f"--{option}={self.dir}/munge/{name}" for option, name in files.items()]
        return ["munged", "--foreground", "--force", f"--socket={self._layout.munge_socket}", *options]

    def _mariadbd(self) -> list[str]:
        paths = [
            f"--datadir={self.dir}/sql",
            f"--socket={self.dir}/run/sql.sock",
            f"--init-file={self.dir}/etc/init.sql",
            self._sql_temporary(),
        ]
        address = [f"--port={self._layout.sql_port}", "--bind-address=127.0.0.1"]
        # A test's accounting need not outlive a power cut.
        fast = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0"]
        return ["mariadbd", "--no-defaults", "--user=root", *paths, *address, *fast]


def _layout(dir: Path, nodes: int) -> config.Layout:
    """Chooses ports, or reads those that an earlier process chose for this folder."""
    file = dir / "ports.json"
    ports = json.loads(file.read_text()) if file.exists() else free_ports(nodes + 3)
    dir.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(ports))
    ctl, dbd, sql, *node_ports = ports
    names = {f"gpu{number:03d}": port for number, port in enumerate(node_ports, start=1)}
    return config.Layout(dir, socket.gethostname().split(".")[0], names, ctl, dbd, sql)


def _clean_environment() -> dict[str, str]:
    """This process's environment without what a surrounding Slurm job put into it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}


def _write(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read, as munge and slurmdbd demand."""
    path.touch(mode=0o600)
    path.write_bytes(content)


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def main() -> None:
    """Brings a cluster up or down by hand."""
    parser = argparse.ArgumentParser(description="A private Slurm cluster on this machine.")
    parser.add_argument("verb", choices=("up", "down"))
    parser.add_argument("dir", type=Path)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--without-accounting", action="store_true")
    options = parser.parse_args()
    cluster = SlurmCluster(options.dir, options.nodes, tied=False, accounting=not options.without_accounting)
    if options.verb == "down":
        cluster.down()
    else:
        cluster.up()
        print(f"export SLURM_CONF={cluster.env['SLURM_CONF']}")


if __name__ == "__main__":
    main()
