"""Where the nodes of an attempt meet."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from dscampaign.files.atomic_files import write_atomically
from dscampaign.jobs.agent.node import Node, RendezvousTimeout, Start, join
from dscampaign.jobs.agent.start import Starter
from dscampaign.jobs.shared.code_copy import CopyPaths
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.tests.support.attempt import make_payload

START = Start("7_0", "n0", "10.0.0.1", 4000, "/ck", 40, 123.0)
NODE = Node("7_0", 1, "n1", "")


def test_what_the_first_node_announces_the_others_join(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path)
    assert Start.read(paths.started) is None
    START.write(paths.started)
    assert join(paths, NODE, 1.0) == START


def test_another_job_s_announcement_is_not_joined(tmp_path: Path) -> None:
    START.write(AttemptPaths(tmp_path).started)
    with pytest.raises(RendezvousTimeout, match="node 0 of job 8_0"):
        join(AttemptPaths(tmp_path), Node("8_0", 1, "n1", ""), 0.05)


def test_as_long_as_the_first_node_lives_the_others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may verify a checkpoint of hundreds of gigabytes."""
    paths, looks = AttemptPaths(tmp_path), 0
    monkeypatch.setattr(
        "dscampaign.jobs.agent.node.time", SimpleNamespace(monotonic=lambda: 0.2 * looks, sleep=lambda _seconds: None)
    )

    def lost() -> bool:
        nonlocal looks
        looks += 1
        write_atomically(paths.heartbeat(0), json.dumps({"ts": looks}))
        if looks == 5:  # a second: three times as long as one may be silent
            START.write(paths.started)
        return False

    assert join(paths, NODE, 0.3, lost) == START
    assert looks == 5


@pytest.mark.parametrize(
    ("known", "address"),
    [
        ({"gpu1": ["10.0.0.7"], "here": ["10.0.0.8"]}, "10.0.0.7"),
        ({"gpu1": ["127.0.1.1"], "here": ["127.0.1.1", "10.0.0.8"]}, "10.0.0.8"),  # Debian's /etc/hosts
        ({"gpu1": ["fd00::7", "10.0.0.7"]}, "10.0.0.7"),
        ({"gpu1": ["127.0.1.1"]}, "here"),  # others may know the name better
    ],
)
def test_other_nodes_are_told_an_address_that_they_can_reach(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, list[str]], address: str
) -> None:
    def lookup(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if name not in known:
            raise socket.gaierror(name)
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in one], socket.SOCK_STREAM, 6, "", (one, 0)) for one in known[name]]

    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert Node("7", 0, "gpu1", "").address(2) == address


@pytest.mark.parametrize(
    ("env", "job_id", "rank"),
    [
        ({"SLURM_JOB_ID": "9"}, "9", 0),
        ({"SLURM_JOB_ID": "9", "SLURM_NODEID": "1"}, "9", 1),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}, "7_0", 0),
    ],
)
def test_a_job_is_known_by_the_id_that_sbatch_gave_it(env: dict[str, str], job_id: str, rank: int) -> None:
    node = Node.from_environment({**env, "SLURMD_NODENAME": "gpu1"})
    assert (node.job_id, node.rank, node.name) == (job_id, rank, "gpu1")


def test_where_the_first_node_finds_the_code_damaged_the_others_wait_no_longer(tmp_path: Path) -> None:
    """They would outlast it by ten minutes, and say that it never came: the first node's own reason is the true one."""
    payload = make_payload(tmp_path, nodes=2, code=str(tmp_path / "code/abc"))
    AttemptPaths(Path(payload.attempt_dir)).dir.mkdir(parents=True)
    damaged = CopyPaths(Path(payload.code)).damaged
    damaged.parent.mkdir()
    damaged.write_text("train.py is another")
    starter = Starter(payload, NODE, beat=lambda: None, closed=lambda: False)
    assert starter.begin(60.0) is None
