"""Runs in a container of a runtime that is really there, Charliecloud, as jobs of a private Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.db.states import RunState
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.faults.trial import SLURM
from dscampaign.tests.support.campaigns import Observed, batch_of, open_store, run_to_end, submit
from dscampaign.tests.support.image import MARKER, make_image
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

SCRIPT = f"""
import json, mmap, os, sys, time
from pathlib import Path
from dscampaign import report, should_stop
kept, first = Path(os.environ["CAMPAIGN_CHECKPOINT_DIR"], "step"), os.environ["RANK"] == "0"
names = "OF_IMAGE OF_BOTH OF_HOST COMMAS PATH LD_LIBRARY_PATH HOME SLURM_PROCID".split()
seen = {{name: os.environ.get(name) for name in names}}
seen |= {{"inside": os.path.exists("/{MARKER}"), "python": sys.executable, "shm": os.access("/dev/shm", os.W_OK)}}
if not first:
    Path(os.environ["CAMPAIGN_WORKDIR"], os.environ["KIND"] + ".json").write_text(json.dumps(seen))
if os.environ["KIND"] == "grows":
    size = int(os.environ["CAMPAIGN_MICRO_BATCH"]) * 1_300_000_000
    try:
        held = mmap.mmap(-1, size)
    except OSError:
        raise RuntimeError(f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {{size}} bytes.")
for step in range(int(kept.read_text()) + 1 if kept.exists() else 1, 5):
    report(step, loss=1.0 / step)
    if first:
        kept.with_suffix(".new").write_text(str(step))
        kept.with_suffix(".new").replace(kept)
    until_s = time.monotonic() + 60
    while os.environ["KIND"] == "waits" and step == 2 and not should_stop() and time.monotonic() < until_s:
        time.sleep(0.1)
    if should_stop():
        sys.exit(0)
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image(tmp_path_factory.mktemp("image") / "root")


def spec_in(folder: Path, image: Path, **fields: Any) -> Path:
    (folder / "train.py").write_text(SCRIPT)
    spec = {
        "name": "inside",
        "command": "train.py",
        "train": {"steps": 4, "global_batch": 4, "micro_batch": 2},
        "ranks_per_node": 2,
        "slurm": {
            **SLURM,
            "mem": "4G",
            "setup": ["export OF_HOST=host OF_BOTH=host LD_LIBRARY_PATH=/host", "ulimit -v 2500000"],
        },
        "retry": {"backoff_s": 0},
        "container": {"image": str(image), "runtime": "charliecloud"},
        "env": {"COMMAS": "a,b c=d"},
        **fields,
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


class Stop:
    """Asks the first attempt of the run that waits to save and leave, as before a preemption."""

    def __init__(self, slurm: SlurmCluster) -> None:
        self._slurm, self._asked = slurm, False

    def __call__(self, seen: Observed) -> None:
        attempts = seen.attempts["KIND-waits"]
        if not self._asked and attempts and seen.steps("KIND-waits") == [1, 2]:
            # The run waits for this for a minute: an answer that the controller did not give is asked for again.
            with suppress(subprocess.CalledProcessError):
                self._slurm.run("scancel", "--signal=USR2", attempts[0].job_id or "")
                self._asked = True


def test_runs_inside_shrink_after_an_out_of_memory_and_resume_after_a_preemption(
    slurm: SlurmCluster, tmp_path: Path, image: Path
) -> None:
    matrix = {"env.KIND": ["plain", "grows", "waits"]}
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    campaign = submit(spec_in(tmp_path, image, matrix=matrix), tmp_path, store)
    seen = run_to_end(store, campaign, each_pass=Stop(slurm))
    assert set(seen.states().values()) == {RunState.COMPLETED}, [(r.name, r.reason) for r in seen.runs.values()]
    assert [batch_of(attempt) for attempt in seen.attempts["KIND-grows"]] == [(2, 4), (1, 4)]
    assert [attempt.failure_class for attempt in seen.attempts["KIND-grows"]] == ["oom", "completed"]
    assert len(seen.attempts["KIND-waits"]) == 2
    assert seen.steps("KIND-waits") == [1, 2, 3, 4]
    inside = json.loads((tmp_path / "plain.json").read_text())
    assert inside == {
        "inside": True,
        "python": "/usr/bin/python3",
        "shm": True,
        "OF_IMAGE": "image's",
        "OF_BOTH": "image's",
        "OF_HOST": "host",
        "COMMAS": "a,b c=d",
        "PATH": "/usr/bin",
        "LD_LIBRARY_PATH": None,
        "HOME": str(Path.home()),
        "SLURM_PROCID": "1",
    }
    store.close()


LONG = f"""
import os, time
from pathlib import Path
from dscampaign import report
kept, generation = Path(os.environ["CAMPAIGN_CHECKPOINT_DIR"], "step"), int(os.environ["CAMPAIGN_GENERATION"])
beats = Path(os.environ["CAMPAIGN_WORKDIR"], "beats-" + os.environ["RANK"])
def beat(word):
    with beats.open("a") as file:
        print(generation, word, file=file)
done = int(kept.read_text()) if kept.exists() else 0
beat("after " + str(done) + " of " + os.environ["WORLD_SIZE"] + str(os.path.exists("/{MARKER}")))
for step in range(done + 1, 5):
    report(step, loss=1.0 / step)
    if os.environ["RANK"] == "0":
        kept.with_suffix(".new").write_text(str(step))
        kept.with_suffix(".new").replace(kept)
    while step == generation + 1 < 4:
        beat("beats")
        time.sleep(0.1)
"""


class RequeueThenPreempt:
    """Takes the nodes from the first attempt, and from the second."""

    def __init__(self, slurm: SlurmCluster) -> None:
        self._slurm, self._taken = slurm, 0

    def __call__(self, seen: Observed) -> None:
        ([name],) = [seen.runs]
        if self._taken == 2 or seen.steps(name)[-1:] != [self._taken + 2]:
            return
        self._taken += 1
        job = seen.attempts[name][-1].job_id or ""
        if self._taken == 1:
            self._slurm.run("scontrol", "update", f"JobId={job}", "Requeue=1")
            self._slurm.run("scontrol", "requeue", job)
            wait_until(lambda: "PENDING" in self._slurm.run("squeue", "--jobs", job, "--format=%T"), "the queue")
            self._slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        else:
            everything = (f"--nodes={len(self._slurm.nodes)}", "--exclusive", "--mem=0", "--partition=h100")
            self._slurm.run("sbatch", *everything, "--output=/dev/null", "--wrap=sleep 2")


def test_two_nodes_of_containers_go_on_after_a_requeue_and_a_preemption(
    slurm: SlurmCluster, tmp_path: Path, image: Path
) -> None:
    shape = {**SLURM, "partition": "scavenge", "nodes": 2}
    spec = spec_in(tmp_path, image, slurm=shape, ranks_per_node=1, train={"steps": 4, "global_batch": 4})
    (tmp_path / "train.py").write_text(LONG)
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    seen = run_to_end(store, submit(spec, tmp_path, store), each_pass=RequeueThenPreempt(slurm))
    ([name],) = [seen.runs]
    assert [attempt.failure_class for attempt in seen.attempts[name]] == ["preempted", "preempted", "completed"]
    assert seen.steps(name) == [1, 2, 3, 4]
    for rank in (0, 1):
        beats = (tmp_path / f"beats-{rank}").read_text().splitlines()
        begun = [line for line in beats if line.endswith("of 2True")]
        assert [line[0] for line in begun] == ["1", "2", "3"]
        assert rank or begun == ["1 after 0 of 2True", "2 after 2 of 2True", "3 after 3 of 2True"]
        assert beats == sorted(beats, key=lambda line: line[0]), "two attempts at once"
    store.close()


PYXIS = """#!{python}
import os, sys
asked = [word for word in sys.argv[1:] if word.startswith(("--container-", "--no-container-"))]
if asked:
    print("pyxis:", *asked, file=open("{log}", "a"))
    os.environ["STEP_OF_ITS_OWN"] = "yes"
os.execv("{srun}", ["srun", *(word for word in sys.argv[1:] if word not in asked)])
"""
"""Slurm's own srun, without the options that the plugin would take; the step that it starts is a real one."""


def test_a_step_for_pyxis_hands_on_signals_limits_and_exit_codes(
    slurm: SlurmCluster, tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    program, log = tmp_path / "bin" / "srun", tmp_path / "pyxis.log"
    program.write_text(PYXIS.format(python=sys.executable, log=log, srun=shutil.which("srun")))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    container = {"image": "registry.example.org#train:1", "runtime": "pyxis"}
    spec = spec_in(
        tmp_path,
        image,
        container={**container, "env": {"PYTHONPATH": str(image / "opt" / "site")}},
        python=sys.executable,
        matrix={"env.KIND": ["grows", "waits"]},
    )
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    seen = run_to_end(store, submit(spec, tmp_path, store), each_pass=Stop(slurm))
    assert set(seen.states().values()) == {RunState.COMPLETED}, [(r.name, r.reason) for r in seen.runs.values()]
    assert [attempt.failure_class for attempt in seen.attempts["KIND-grows"]] == ["oom", "completed"]
    assert len(seen.attempts["KIND-waits"]) == 2
    assert seen.steps("KIND-waits") == [1, 2, 3, 4]
    assert log.read_text().count("--container-image=registry.example.org#train:1") == 4
    inside = json.loads((tmp_path / "waits.json").read_text())
    assert (inside["SLURM_PROCID"], inside["OF_HOST"], inside["LD_LIBRARY_PATH"]) == ("1", "host", None)
    store.close()


def test_doctor_starts_the_image_and_looks_inside(
    slurm: SlurmCluster, tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slurm
    code = main(["doctor", str(spec_in(tmp_path, image)), "--dir", str(tmp_path / "new"), "--on-node", "--json"])
    checks = {check["id"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["software.python"]["seen"].endswith(f"(/usr/bin/python3 in {image})"), checks
    assert checks["software.torch"]["verdict"] == "problem"
    assert "No module named 'torch'" in checks["software.torch"]["seen"]
    assert code == 1
    (tmp_path / "empty").mkdir()
    main(["doctor", str(spec_in(tmp_path, tmp_path / "empty")), "--dir", str(tmp_path / "new"), "--on-node", "--json"])
    checks = {check["id"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert "ch-run" in checks["software.torch"]["seen"], checks


def test_an_image_that_cannot_start_fails_as_a_set_up(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    campaign = submit(spec_in(tmp_path, tmp_path / "image", env={"KIND": "plain"}), tmp_path, store)
    seen = run_to_end(store, campaign)
    [(name, run)] = seen.runs.items()
    assert run.state is RunState.FAILED
    assert "the container did not start: ch-run" in run.reason
    assert len(seen.attempts[name]) == 2
    store.close()
