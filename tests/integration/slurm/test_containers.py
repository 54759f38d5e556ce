"""Runs in a container of a runtime that is really there, Charliecloud, as jobs of a private Slurm."""

from __future__ import annotations

import json
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


def test_runs_inside_shrink_after_an_out_of_memory_and_resume_after_a_preemption(
    slurm: SlurmCluster, tmp_path: Path, image: Path
) -> None:
    matrix = {"env.KIND": ["plain", "grows", "waits"]}
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    campaign = submit(spec_in(tmp_path, image, matrix=matrix), tmp_path, store)
    asked = set[str]()

    def stop(seen: Observed) -> None:
        [attempt] = seen.attempts["KIND-waits"][:1] or (None,)
        if attempt and attempt.job_id and seen.steps("KIND-waits") == [1, 2] and not asked:
            asked.add(attempt.job_id)
            slurm.run("scancel", "--signal=USR2", attempt.job_id)

    seen = run_to_end(store, campaign, each_pass=stop)
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
