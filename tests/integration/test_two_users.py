"""What one user of a machine plants, another one's campaign does not run."""

from __future__ import annotations

import ctypes
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.db.store import Store
from dscampaign.jobs.shared import checkpoint
from dscampaign.jobs.shared.job_array import write_payloads
from dscampaign.jobs.shared.layout import CampaignPaths, payloads_file
from dscampaign.tests.support import REPOSITORY
from dscampaign.tests.support.attempt import make_payload
from dscampaign.tests.support.two_users import Machine, two_users
from dscampaign.tests.support.waiting import wait_until
from dscampaign.tests.unit.files.test_ownership import set_acl

STUB = REPOSITORY / "tests/support/stub_launcher.py"

SPEC = """\
name: mine
executor: local
python: {python}
ranks_per_node: 1
command: train.py
train: {{steps: 1}}
retry: {{crash: 3, backoff_s: 0}}
"""
SCRIPT = """
import json, os, signal, time
seen = {name: os.environ.get(name, "") for name in ("CAMPAIGN_RESUME", "TRITON_CACHE_DIR", "CAMPAIGN_CHECKPOINT_DIR")}
with open(os.path.join(os.environ["HOME"], "seen.jsonl"), "a") as file:
    file.write(json.dumps(seen) + "\\n")
if os.environ.get("DIE") and os.environ["CAMPAIGN_GENERATION"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
with open(os.environ["CAMPAIGN_METRICS_FILE"], "a") as spool:
    spool.write(json.dumps({"step": 1, "ts": time.time()}) + "\\n")
"""
RUN_AS_VICTIM = "UPDATE run SET config = json_set(config, '$.command', json('[\"/nonexistent/theirs.py\"]'))"


@pytest.fixture
def machine() -> Iterator[Machine]:
    with two_users() as made:
        yield made


def project(machine: Machine) -> Path:
    """The victim's folder, private, below the public one."""
    folder = machine.public / "project"
    folder.mkdir(0o700)
    (folder / "spec.yaml").write_text(SPEC.format(python=STUB))
    (folder / "train.py").write_text(SCRIPT)
    machine.victim.takes(folder, *folder.iterdir())
    return folder


def seen(machine: Machine) -> list[dict[str, str]]:
    """What the victim's attempts had."""
    file = machine.victim.home / "seen.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def planted_store(machine: Machine) -> Path:
    """A data base of the attacker's that changes what is run, in the place where the victim's would be."""
    path = machine.public / "campaign.db"
    made, public = machine.attacker.home.parent / "campaign.db", str(machine.public)
    with closing(Store.open(f"sqlite:///{made}", create=True)) as store, store.write() as conn:
        queries.insert_campaign(conn, name="theirs", spec="", spec_hash="", dir=public, executor="local")
    made.rename(path)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(f"CREATE TRIGGER t AFTER INSERT ON run BEGIN {RUN_AS_VICTIM}; END")
    path.chmod(0o666)
    machine.attacker.takes(path)
    return path


@pytest.mark.parametrize(
    "options", [pytest.param("--dir={public}", marks=pytest.mark.nightly), "--store=sqlite:///{public}/campaign.db"]
)
def test_a_planted_store_is_read_and_nothing_is_submitted_from_it(machine: Machine, options: str) -> None:
    folder, _ = project(machine), planted_store(machine)
    option = options.format(public=machine.public)
    for words in (("submit", "spec.yaml", "--yes", "--watch"), ("reconcile", "theirs")):
        done = machine.victim.campaign(*words, option, cwd=folder)
        assert done.returncode != 0, words
        assert "nothing is run from" in done.stderr, (words, done.stderr)
    shown = machine.victim.campaign("status", "theirs", option, cwd=folder)
    assert (shown.returncode, "theirs" in shown.stdout) == (0, True), shown.stderr
    assert not seen(machine)


def test_a_planted_folder_of_compiled_code_is_not_used(machine: Machine) -> None:
    folder = project(machine)
    cache = machine.public / f"dscampaign-{machine.victim.uid}"
    cache.mkdir()
    cache.chmod(0o777)
    machine.attacker.takes(cache)
    done = machine.victim.campaign(
        "submit", "spec.yaml", "--yes", "--watch", cwd=folder, TMPDIR=str(machine.public), TRITON_CACHE_DIR=""
    )
    assert done.returncode == 0, done.stderr
    [attempt] = seen(machine)
    assert not Path(attempt["TRITON_CACHE_DIR"]).is_relative_to(machine.public)


def test_a_folder_of_a_project_hands_down_no_right_to_write(machine: Machine) -> None:
    """Its default access control list names the attacker, and the kernel ignores the umask below such a one."""
    folder = project(machine)
    set_acl(folder, machine.attacker.uid, mask=5)
    set_acl(folder, machine.attacker.uid, kind="default")
    done = machine.victim.campaign("submit", "spec.yaml", "--yes", "--watch", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(seen(machine)) == 1
    places = [folder / "campaign", *(folder / "campaign").rglob("*")]
    with machine.attacker.at_work():
        assert os.access(folder, os.X_OK, effective_ids=True)
        assert [place for place in places if os.access(place, os.W_OK, effective_ids=True)] == []


LOOKS = """
import sys, time
from collections import Counter
from pathlib import Path
from dscampaign.files.ownership import Distrusted
from dscampaign.jobs.agent.start import trusted_payload
from dscampaign.jobs.shared.layout import payloads_file
batch, ends_s, found = Path(sys.argv[1]), time.monotonic() + 1, Counter()
while time.monotonic() < ends_s:
    try:
        found[trusted_payload(payloads_file(batch), 0, batch.parents[2]).run] += 1
    except Distrusted:
        found["refused"] += 1
    except (OSError, ValueError):
        found["away"] += 1
print(found["theirs"], found["r"], found["refused"] > 0)
"""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def batch_below(folder: Path, run: str) -> Path:
    payload = make_payload(folder, run=run, token="t")
    Path(payload.attempt_dir).mkdir(parents=True)
    batch = folder / "c" / "batches" / "t"
    batch.mkdir(parents=True)
    write_payloads(payloads_file(batch), [payload])
    return batch


def exchange(first: Path, second: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def test_a_payload_that_is_exchanged_all_the_time_is_never_run(machine: Machine) -> None:
    parent = machine.public / "open"
    parent.mkdir()
    parent.chmod(0o777)
    batch = batch_below(parent / "dir", "r")
    batch_below(parent / "like", "theirs")
    for user, folder in ((machine.victim, parent / "dir"), (machine.attacker, parent / "like")):
        user.takes(folder, *folder.rglob("*"))
    looking = subprocess.Popen(
        machine.victim.command(sys.executable, "-c", LOOKS, batch), cwd="/", stdout=subprocess.PIPE, text=True
    )
    with machine.attacker.at_work():
        while looking.poll() is None:
            exchange(parent / "dir", parent / "like")
    assert looking.stdout is not None
    assert looking.stdout.read().split() == ["0", "0", "True"]


def test_a_planted_checkpoint_is_never_handed_out(machine: Machine) -> None:
    """After `chmod -R g+w runs` nothing starts; what was planted meanwhile is passed over for good."""
    victim, folder = machine.victim, project(machine)
    started = victim.campaign("submit", "spec.yaml", "--yes", cwd=folder, DIE="1")
    assert started.returncode in (0, 8), started.stderr
    paths = CampaignPaths(folder / "campaign", "mine")
    wait_until(lambda: any(paths.runs.glob("*/g0001/outcome-0.json")), "the end of the first attempt")
    [run] = paths.runs.iterdir()
    subprocess.run(victim.command("chmod", "-R", "g+w", paths.runs), check=True)
    [checkpoints] = (run / "checkpoints").iterdir()
    draft = checkpoint.begin(checkpoints, 1, 81)
    (draft / "state.pt").write_bytes(b"code")
    files = checkpoint.seal(draft, [draft / "state.pt"])
    planted = checkpoint.commit(draft, checkpoint.Manifest(81, checkpoints.name, 1, 0, 1, 81, files)).path
    machine.attacker.takes(planted, *planted.iterdir())
    refused = victim.campaign("reconcile", "mine", cwd=folder, DIE="1")
    assert f"others can write to {paths.runs}" in refused.stderr + refused.stdout
    assert len(seen(machine)) == 1
    subprocess.run(["chmod", "-R", "go-w", str(paths.runs)], check=True)
    done = victim.campaign("reconcile", "mine", "--watch", cwd=folder, DIE="1")
    assert done.returncode == 0, done.stderr
    assert [attempt["CAMPAIGN_RESUME"] for attempt in seen(machine)] == ["", ""]
    told = [json.loads(line) for line in (run / "g0002" / "metrics.jsonl").read_text().splitlines()]
    [skipped] = [line for line in told if line.get("event") == "checkpoint_skipped"]
    assert skipped["reason"] == f"{planted} belongs to user {machine.attacker.uid}"
