"""Several `campaign reconcile --all-campaigns --watch` on one PostgreSQL, one killed: does every campaign settle once?

    python -m dscampaign.benchmarks.reconcilers [--campaigns 30] [--processes 3] [--json FILE]

Each campaign has one run of a script, on this machine. The first process is killed with SIGKILL in the midst of a pass,
as soon as attempts of a third of the campaigns exist; it never comes back. Exits with 1 if a campaign did not complete
or a script ran twice.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

from dscampaign.benchmarks.shared.results import commit_id, write_json
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.orchestrator.campaign.desired import record
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.reconcile.lease import LeaseHolder
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.spec_files import load_spec

SCRIPT = "import os\nopen(os.environ['CAMPAIGN_RUN_DIR'] + '/began', 'a').write('once\\n')\n"
INTERVAL_S = 2.0
"""Between two passes. A lease that lasts for longer is that of a pass."""

HANGS_S = 500.0


def main() -> int:
    """Prints the figures; writes them as JSON too if asked."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--campaigns", type=int, default=30)
    options.add_argument("--processes", type=int, default=3)
    options.add_argument("--json", type=Path, help="file to write")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="reconcilers-") as name, PostgresServer() as server:
        store = Store.open(server.new_database(), check_schema=False)
        upgrade(store)
        found = _measure(store, Path(name), given.campaigns, given.processes)
        store.close()
    for key, value in found.items():
        print(f"{key:28} {value}")
    facts = {"campaigns": given.campaigns, "processes": given.processes, "commit": commit_id()}
    write_json(given.json, {**facts, "cores": os.cpu_count(), **found})
    whole = found["completed"] == found["scripts_run"] == given.campaigns
    return 0 if whole and not found["scripts_run_twice"] else 1


def _measure(store: Store, folder: Path, campaigns: int, processes: int) -> dict[str, Any]:
    for number in range(campaigns):
        _record(store, folder, f"c{number:02}")
    began_s = time.monotonic()
    logs = [folder / f"log-{number}" for number in range(processes)]
    started = [_start(store, folder, log) for log in logs]
    try:
        while _one(store, "SELECT count(*) FROM attempt") < campaigns // 3 or not _holds(store, started[0].pid):
            time.sleep(0.01)
            if started[0].poll() is not None or time.monotonic() - began_s > HANGS_S:
                raise RuntimeError(f"the first process was never in the midst of a pass:\n{logs[0].read_text()}")
        started[0].send_signal(signal.SIGKILL)
        started[0].wait()
        held = _holds(store, started[0].pid)
        killed_s = time.monotonic() - began_s
        for process in started[1:]:
            process.wait(HANGS_S)
        settled_s = time.monotonic() - began_s
    finally:
        for process in started:
            process.kill()
            process.wait()
    runs = [path.read_text().count("once") for path in folder.glob("c*/runs/*/began")]
    return {
        "killed_after_s": round(killed_s, 1),
        "leases_it_left": held,
        "settled_after_s": round(settled_s, 1),
        "completed": _one(store, "SELECT count(*) FROM run WHERE state = 'completed'"),
        "attempts": _one(store, "SELECT count(*) FROM attempt"),
        "scripts_run": len(runs),
        "scripts_run_twice": sum(count > 1 for count in runs),
        "campaigns_acted_on_by_each": [_acted_on(log) for log in logs],
    }


def _record(store: Store, folder: Path, name: str) -> None:
    spec = {"name": name, "executor": "local", "command": ["train.py"], "ranks_per_node": 1, "train": {"steps": 1}}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(spec))
    (folder / "train.py").write_text(SCRIPT)
    read = load_spec(path)
    record(store, Submission(read, path.read_text(), expand(read), folder, path))


def _start(store: Store, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    words = [
        "-m",
        "dscampaign.orchestrator.cli",
        "reconcile",
        "--all-campaigns",
        "--watch",
        "--interval",
        str(INTERVAL_S),
    ]
    place = ["--dir", str(folder), "--store", store.url_without_password]
    with log.open("wb") as file:
        return subprocess.Popen([sys.executable, *words, *place], cwd=folder, stdout=file, stderr=file)


def _one(store: Store, query: str, **values: Any) -> int:
    with store.read() as conn:
        return int(conn.execute(text(query), values).scalar_one())


def _holds(store: Store, pid: int) -> int:
    """How many leases a process has for a pass."""
    with store.read() as conn:
        leases = conn.execute(text("SELECT holder, expires_s FROM lease")).all()
        now_s = store.now(conn)
    return sum(LeaseHolder.parse(who).pid == str(pid) and until_s > now_s + 2 * INTERVAL_S for who, until_s in leases)


def _acted_on(log: Path) -> int:
    """Of how many campaigns a process says that it submitted or ended something."""
    names = re.findall(r"^\S+ (c\d+): ", log.read_text(), re.MULTILINE)
    return len(set(names))


if __name__ == "__main__":
    sys.exit(main())
