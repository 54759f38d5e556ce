"""A thousand agents that push into one PostgreSQL: rows a second, connections, who waits; with a pooler and without.

    python -m dscampaign.benchmarks.agents [--agents 1000] [--lines 1000] [--processes 4] [--json FILE]

Each agent is the pusher that a node's agent runs, on a spool that lies there whole: it pushes after 4 to
6 s, and again every 4 to 6 s until the store has all its lines. On one machine they are threads of a few processes,
which share its cores with the server: rows a second are those of both together. On a cluster each agent has a node of
its own, so the processor time of either is told apart, and with it how many rows one core of the server takes in a
second. The pooler is pgbouncer in transaction mode with 20 connections to the server; without it the agents' role may
have 60.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing.queues import Queue
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import make_url, text

from dscampaign.benchmarks.shared.results import commit_id, write_json
from dscampaign.benchmarks.store import insert_attempts, write_spool
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.jobs.agent.push import Pusher
from dscampaign.tests.support.attempt import make_payload
from dscampaign.tests.support.pgbouncer import PgBouncer
from dscampaign.tests.support.postgres import PostgresServer

POOL, ROLE_LIMIT = 20, 60
HANGS_S = 240.0
SAMPLE_S = 0.1
TOKEN = "t"  # noqa: S105


class Agent(Pusher):
    """Notes when each push began and ended, and whether the store took it; stops at the first that it took."""

    pushes: list[tuple[float, float, bool]]

    def _push(self) -> None:
        if self._stop.is_set():
            return
        began_s = time.time()
        super()._push()
        self.pushes.append((began_s, time.time(), not self._said))
        if not self._said:
            self._stop.set()

    def _say(self, text: str) -> None:
        self._said = text

    def _loop(self) -> None:
        self.pushes = []
        super()._loop()

    def wait(self) -> list[tuple[float, float, bool]]:
        """Its pushes, once the store has taken one."""
        self._thread.join(HANGS_S)
        return self.pushes


def main() -> None:
    """Prints a line a figure; writes them as JSON too if asked."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--agents", type=int, default=1000)
    options.add_argument("--lines", type=int, default=1000)
    options.add_argument("--processes", type=int, default=4)
    options.add_argument("--json", type=Path, help="file to write")
    given = options.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="agents-") as name, PostgresServer() as server:
        for way in ("direct", "pgbouncer"):
            found[way] = _measure(server, way, Path(name) / way, given)
            for key, value in found[way].items():
                print(f"{way:10} {key:32} {value}", flush=True)
    facts = {"agents": given.agents, "lines": given.lines, "processes": given.processes, "commit": commit_id()}
    write_json(given.json, {**facts, "cores": os.cpu_count(), **found})


def _measure(server: PostgresServer, way: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    url = server.new_database()
    store = Store.open(url, check_schema=False)
    upgrade(store)
    attempts = insert_attempts(store, given.agents, str(folder))
    _write_spools(folder, attempts, given.lines)
    if way == "pgbouncer":
        with PgBouncer(url, POOL) as pooler:
            return _push_all(server, store, pooler.url, folder, attempts, given.processes)
    with store.write() as conn:
        conn.execute(text(f"CREATE ROLE agents LOGIN CONNECTION LIMIT {ROLE_LIMIT} IN ROLE pg_write_all_data"))
        conn.execute(text("GRANT pg_read_all_data TO agents"))
    as_agents = make_url(url).set(username="agents").render_as_string(hide_password=False)
    return _push_all(server, store, as_agents, folder, attempts, given.processes)


def _push_all(
    server: PostgresServer, store: Store, url: str, folder: Path, attempts: list[int], processes: int
) -> dict[str, Any]:
    fork = multiprocessing.get_context("fork")
    results: Queue[tuple[list[list[tuple[float, float, bool]]], float]] = fork.Queue()
    parts = [attempts[number::processes] for number in range(processes)]
    workers = [fork.Process(target=_play, args=(url, folder, part, results)) for part in parts]
    done, most = threading.Event(), [0]
    watcher = threading.Thread(target=_count_connections, args=(store, done, most))
    watcher.start()
    began_s = _server_cpu_s(server)
    for worker in workers:
        worker.start()
    found = [results.get(timeout=2 * HANGS_S) for _ in workers]
    server_s = _server_cpu_s(server) - began_s
    played = [pushes for each, _ in found for pushes in each]
    for worker in workers:
        worker.join()
    done.set()
    watcher.join()
    with store.read() as conn:
        rows = conn.execute(text("SELECT count(*) FROM step_metric")).scalar_one()
    store.close()
    cpu = {
        "server_cpu_s": round(server_s, 1),
        "agents_cpu_s": round(sum(cpu_s for _, cpu_s in found), 1),
        "rows_per_s_of_a_server_core": round(rows / server_s),
    }
    return {"rows": rows, "connections_at_most": most[0], **_summed(played, rows), **cpu}


def _server_cpu_s(server: PostgresServer) -> float:
    """Processor time of the server until now: of its first process, of those that ended, and of those that live."""
    main = (server.dir / "data" / "postmaster.pid").read_text().split()[0]
    ticks = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parent, times = _process(status)
            ticks += sum(times) if status.parent.name == main else sum(times[:2]) * (parent == main)
    return ticks / os.sysconf("SC_CLK_TCK")


def _process(status: Path) -> tuple[str, list[int]]:
    """Its parent's id, and its own time in ticks, as a user and in the system, then that of children that ended."""
    fields = status.read_text().rpartition(")")[2].split()
    return fields[1], [int(ticks) for ticks in fields[11:15]]


def _summed(played: list[list[tuple[float, float, bool]]], rows: int) -> dict[str, Any]:
    pushes = [push for each in played for push in each]
    took_s = sorted(end_s - began_s for began_s, end_s, _ in pushes)
    first_s, last_s = min(push[0] for push in pushes), max(push[1] for push in pushes)
    return {
        "agents_that_pushed_all": sum(each[-1][2] for each in played),
        "rows_per_s": round(rows / (last_s - first_s)),
        "seconds": round(last_s - first_s, 1),
        "pushes": len(pushes),
        "pushes_that_were_refused": sum(not taken for _, _, taken in pushes),
        "most_refusals_of_one_agent": max(sum(not taken for _, _, taken in each) for each in played),
        "push_s_median": round(median(took_s), 2),
        "push_s_p99": round(took_s[int(0.99 * (len(took_s) - 1))], 2),
    }


def _play(url: str, folder: Path, attempts: list[int], results: Queue[Any]) -> None:
    agents, began_s = [], time.process_time()
    for attempt in attempts:
        spool = folder / str(attempt) / "metrics.jsonl"
        agents.append(Agent(make_payload(spool.parent, attempt_id=attempt, token=TOKEN), spool, url))
    for agent in agents:
        agent.start()
    pushes = [agent.wait() for agent in agents]
    results.put((pushes, time.process_time() - began_s))


def _count_connections(store: Store, done: threading.Event, most: list[int]) -> None:
    """The most that agents had at once; not those of this process."""
    mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    while not done.wait(SAMPLE_S):
        with store.read() as conn:
            most[0] = max(most[0], conn.execute(text(mine)).scalar_one())


def _write_spools(folder: Path, attempts: list[int], lines: int) -> None:
    folder.mkdir()
    spool = write_spool(folder, lines)
    for attempt in attempts:
        (folder / str(attempt)).mkdir()
        shutil.copy(spool, folder / str(attempt))


if __name__ == "__main__":
    main()
