"""`container:` in a spec: what is right, what is wrong, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.orchestrator.errors import SpecError
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.tests.support.spec_files import load_runs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "image.sif").touch()
    return tmp_path


def read(folder: Path, text: str, rest: str = "") -> tuple[Run, ...]:
    spec = folder / "spec.yaml"
    command = "" if "command:" in rest else "command: train.py\n"
    spec.write_text(f"name: n\n{command}{text and f'container: {text}'}\n{rest}\n")
    return load_runs(spec)[1]


def payload(folder: Path, run: Run) -> Payload:
    payloads = job_request.Payloads(CampaignPaths(folder, "n"), store=None, python="/login/bin/python")
    return payloads.of(run, run.config, "/runs/a/g0001", generation=1, micro_batch=None, token="t", attempt_id=1)


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("{image: image.sif, runtime: apptainer}", "{folder}/image.sif"),
        ("{image: 'docker://pytorch/pytorch:2.9', runtime: apptainer}", "docker://pytorch/pytorch:2.9"),
        ("{image: 'nvcr.io#nvidia/pytorch:25.01-py3', runtime: pyxis}", "nvcr.io#nvidia/pytorch:25.01-py3"),
        ("{image: '{folder}', runtime: charliecloud, mounts: ['~/data', '/a:/b']}", "{folder}"),
    ],
)
def test_an_image_is_a_file_or_a_reference(folder: Path, text: str, image: str) -> None:
    [run] = read(folder, text.replace("{folder}", str(folder)))
    assert run.config.container is not None
    assert run.config.container.image == image.replace("{folder}", str(folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{image: /no/such.sqsh, runtime: pyxis}", "no such file or folder: /no/such.sqsh"),
        ("{image: other.sif, runtime: apptainer}", "no such file or folder: {folder}/other.sif"),
        ("{image: 'nvcr.io#nvidia/pytorch', runtime: apptainer}", "is not an image of Apptainer"),
        ("{image: image.sif, runtime: charliecloud, mounts: ['/a:/b:ro']}", "mounts no folder read-only"),
        ("{image: 'docker://debian', runtime: charliecloud}", "is not an image of Charliecloud"),
        ("{image: image.sif, runtime: docker}", "runtime"),
        ("{image: image.sif, runtime: apptainer, mounts: [data]}", "is not a mount"),
        ("{image: image.sif, runtime: apptainer, mounts: ['$DATA/x:/b']}", "$DATA is not expanded"),
        ("{image: image.sif, runtime: apptainer, mounts: ['/a,/b']}", "is not a mount"),
        ("{image: image.sif, runtime: apptainer, mounts: ['/a:/b:rx']}", "is not a mount"),
        ("{image: image.sif, runtime: apptainer, workdir: work}", "is not an absolute path"),
        ("{image: image.sif, runtime: apptainer, env: {CAMPAIGN_RUN: x}}", "is set by this program"),
    ],
)
def test_a_mistake_has_its_place_and_a_message(folder: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(folder, text)
    [problem] = caught.value.problems
    assert message.replace("{folder}", str(folder)) in str(problem)


def test_pyxis_needs_slurm(folder: Path) -> None:
    with pytest.raises(SpecError, match="pyxis is a plugin of Slurm"):
        read(folder, "{image: image.sif, runtime: pyxis}", "executor: local")


def test_a_payload_has_the_container_its_variables_and_the_image_s_python(folder: Path) -> None:
    section = "{image: image.sif, runtime: apptainer, mounts: [/data], env: {A: 2, B: true}, writable: true}"
    own = payload(folder, read(folder, section, "env: {A: '1', C: c}")[0])
    image = {"image": f"{folder}/image.sif", "runtime": "apptainer", "mounts": ("/data",), "workdir": None}
    assert own.container == {**image, "writable": True}
    assert (own.python, own.env) == ("python3", {"A": "2", "B": "true", "C": "c"})
    assert payload(folder, read(folder, section, "python: /opt/conda/bin/python")[0]).python == "/opt/conda/bin/python"
    assert payload(folder, read(folder, "")[0]).container is None


def test_the_image_is_part_of_the_experiment_and_may_be_an_axis(folder: Path) -> None:
    (folder / "other.sif").touch()
    [plain] = read(folder, "")
    base = "{image: image.sif, runtime: apptainer}"
    [one] = read(folder, base)
    [mounted] = read(folder, "{image: image.sif, runtime: apptainer, mounts: [/data]}")
    runs = read(folder, base, "matrix: {container.image: [image.sif, other.sif]}")
    assert one.config_hash == mounted.config_hash != plain.config_hash
    assert [run.config.container.image for run in runs if run.config.container] == [
        f"{folder}/image.sif",
        f"{folder}/other.sif",
    ]
    assert len({run.config_hash for run in runs}) == 2
