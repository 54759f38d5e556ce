"""What a spec says is never run by a shell that was not asked to. Secrets: tests/unit/spec/test_secrets.py."""

from __future__ import annotations

import json
import os
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.errors import SpecError, UserError
from dscampaign.orchestrator.executors.base import JobArray
from dscampaign.orchestrator.executors.job_request import resources
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.tests.support.fake_slurm import FakeSlurm
from dscampaign.tests.support.spec_files import load_spec
from dscampaign.tests.support.world_on_disk import queued_world

FIELDS = ("partition", "account", "qos", "constraint", "exclude", "nodelist", "reservation", "mail_user", "licenses")
HOSTILE = (
    "gpu; touch OWNED",
    "gpu --wrap='touch OWNED'",
    "$(touch OWNED)",
    "`touch OWNED`",
    "gpu\n#SBATCH --uid=0",
    "gpu\ntouch OWNED",
    "gpu' --uid=0 '",
    'gpu" --uid=0 "',
    "gpu\\",
    "a\rb",
    "-o/etc/passwd",
    "gpu#comment",
    "  ",
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(fake.folder), prepend=":")
    return fake


def spec_with(folder: Path, **slurm: Any) -> dict[str, Any]:
    """The resources that a spec with these Slurm fields asks for.

    Raises:
        SpecError: the spec is refused.
    """
    path = folder / "spec.yaml"
    text = {"name": "c", "command": ["train.py"], "train": {"steps": 3}, "slurm": {"gpus_per_node": 0, **slurm}}
    path.write_text(json.dumps(text))  # in \\u codes: some of them halves of characters
    (folder / "train.py").touch()
    return resources(expand(load_spec(path))[0].config)


def options(slurm: FakeSlurm, folder: Path, asked: dict[str, Any]) -> list[list[str]]:
    """What a shell-like reader makes of each line for sbatch."""
    folder.mkdir(exist_ok=True)
    SlurmExecutor().submit(JobArray("abc", folder, 1, asked))
    script = slurm.calls[-1].script
    lines = script.split("\n")  # and at no other character that Python takes for the end of a line
    return [shlex.split(line) for line in lines if line.startswith("#SBATCH")]


@pytest.mark.parametrize(
    ("name", "text"), [*((name, HOSTILE[0]) for name in FIELDS), *((FIELDS[0], text) for text in HOSTILE[1:])]
)
def test_no_value_of_a_spec_leaves_its_option(slurm: FakeSlurm, tmp_path: Path, name: str, text: str) -> None:
    try:
        asked = spec_with(tmp_path, **{name: text})
    except SpecError:
        return
    found = options(slurm, tmp_path / "batch", asked)
    assert all(len(words) == 2 for words in found), found
    assert f"--{name.replace('_', '-')}={text}" in [words[1] for words in found]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_no_text_at_all_leaves_its_option(slurm: FakeSlurm, tmp_path: Path, text: str) -> None:
    test_no_value_of_a_spec_leaves_its_option(slurm, tmp_path, "account", text)


def test_a_folder_that_others_can_write_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    with queued_world(tmp_path) as world:
        world.folder.chmod(0o777)
        with pytest.raises(UserError, match="others can write") as caught:
            campaigns.record(world.store, world.submission())
        assert "chmod go-w" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["data", "code", "c"])
def test_nothing_is_recorded_beside_what_others_can_write(tmp_path: Path, name: str) -> None:
    """`dir` may be public with the sticky bit: then anybody can make these folders first."""
    with queued_world(tmp_path) as world:
        (world.folder / name).mkdir(exist_ok=True)
        (world.folder / name).chmod(0o1777)
        with pytest.raises(UserError, match=f"others can write to {world.folder / name}"):
            campaigns.record(world.store, world.submission())


def test_a_pass_submits_nothing_from_a_folder_that_others_can_write(tmp_path: Path) -> None:
    with queued_world(tmp_path) as world:
        before = len(world.cluster.submitted)
        world.run_jobs("FAILED", exit_code=1)
        (world.paths.dir / "batches").chmod(0o777)
        done = world.run_pass()
        assert len(world.cluster.submitted) == before
        assert "others can write" in str(done.troubles[0])
        (world.paths.dir / "batches").chmod(0o700)
        world.run_pass()
        assert len(world.cluster.submitted) == before + 1


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022])
def test_nothing_of_a_campaign_is_for_others_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    (tmp_path / "w").mkdir(mode=0o700)
    previous = os.umask(umask)
    try:
        with queued_world(tmp_path / "w") as world:
            world.run_jobs("FAILED", exit_code=1)
            world.run_pass()
            made = [p for p in world.paths.dir.rglob("*") if p.name != "metrics.jsonl"]  # the test made that itself
            loose = [p for p in made if stat.S_IMODE(p.stat().st_mode) & 0o077]
    finally:
        os.umask(previous)
    assert not loose
