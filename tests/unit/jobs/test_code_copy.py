"""Which words of a command and which folders of a PYTHONPATH are the copy's."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.jobs.shared.code_copy import CodeCopy, CopyPaths, DamagedCopy, in_copy, in_copy_paths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("project/src", "project/.venv", "copy/src", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "copy/.venv").symlink_to(tmp_path / "project/.venv")
    (tmp_path / "linked").symlink_to(tmp_path / "project")
    return tmp_path


def copied(folder: Path) -> CodeCopy:
    files = dict.fromkeys(("src/train.py", "run", "conf/a.yaml", "results.csv"), "")
    return CodeCopy(str(folder / "project"), files)


@pytest.mark.parametrize("where", ["project", "linked"])
def test_the_script_and_files_of_configuration_are_the_copy_s(folder: Path, where: str) -> None:
    words = (f"{folder}/{where}/src/train.py", "--config", "conf/a.yaml", "--config=conf/a.yaml")
    here, copy = str(folder / where), folder / "copy"
    conf = f"{copy}/conf/a.yaml"
    assert in_copy(words, here, copied(folder), copy) == (f"{copy}/src/train.py", "--config", conf, f"--config={conf}")
    for option in ("--layout", "--rollout_config", "--metrics-config", "-c", "--deepspeed"):
        assert in_copy(("run", option, "conf/a.yaml"), here, copied(folder), copy)[2] == conf, option
    assert in_copy(("run", "conf"), here, copied(folder), copy) == (f"{copy}/run", "conf")


@pytest.mark.parametrize("option", ["--out", "--output_file", "-o", "--save-to", "--metrics_json", "--train.results"])
@pytest.mark.parametrize("form", ["{} conf/a.yaml", "{}=conf/a.yaml"])
def test_a_file_that_an_option_has_written_is_the_user_s_own(folder: Path, option: str, form: str) -> None:
    """A run that wrote into the copy would damage it for all other runs."""
    words = ("-m", "pkg.train", *form.format(option).split())
    assert in_copy(words, str(folder / "project"), copied(folder), folder / "copy") == words


def test_folders_on_the_path_are_the_copy_s_if_they_were_copied(folder: Path) -> None:
    project, copy = folder / "project", folder / "copy"
    value = f".:src:{project}/.venv:../elsewhere:/opt/lib"
    expected = f"{copy}:{copy}/src:{project}/.venv:{project}/../elsewhere:/opt/lib"
    assert in_copy_paths(value, str(project), copied(folder), copy) == expected
    assert in_copy_paths("src", str(project), None, copy) == f"{project}/src"
    assert in_copy_paths("", str(project), None, copy) == ""


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"root": 1, "files": 2}', '{"root": "/", "files": {}, "new": 1}'])
def test_a_manifest_that_is_none_is_a_damaged_copy(tmp_path: Path, text: str) -> None:
    copy = CopyPaths(tmp_path / "0123456789abcdef")
    copy.manifest.write_text(text)
    with pytest.raises(DamagedCopy):
        copy.verify()


def test_a_folder_that_is_away_is_not_a_damaged_copy(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        CopyPaths(tmp_path / "away" / "0123456789abcdef").verify()
