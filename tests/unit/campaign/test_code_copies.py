"""What is copied of the code around a script, and that a copy is whole or not used."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dscampaign.jobs.shared.code_copy import LIVE, CopyPaths, DamagedCopy
from dscampaign.orchestrator.campaign import code_copies
from dscampaign.orchestrator.campaign.code_copies import Code, CodeCopies
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.tests.support.world_on_disk import make_world


class Project:
    """A folder with a script, and the copies of its code."""

    def __init__(self, folder: Path) -> None:
        self.root, self.dir = folder / "project", folder / "project" / "campaign"
        self.write("train.py", "import os; os.environ['STORAGE']; os.getenv('GREETING'); 'DEBUG_IT' in os.environ")

    def write(self, name: str, text: str = "x") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
        subprocess.run(["git", *identity, *arguments], cwd=self.root, check=True, capture_output=True)

    def code(self, *command: str, make: bool = True, workdir: Path | None = None) -> Code:
        config = RunConfig.model_validate({"command": list(command or ["train.py"])})
        return CodeCopies(self.dir, self.root / "spec.yaml", workdir or self.root, make).of(config)

    def copy(self, code: Code) -> CopyPaths:
        return CopyPaths(self.dir / "code" / code.hash)

    def files(self, *command: str) -> list[str]:
        return sorted(self.copy(self.code(*command)).verify().files)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_of_a_work_tree_code_is_copied_and_the_rest_linked(project: Project) -> None:
    project.git("init", "-q")
    project.write(".gitignore", "data/\n*.so\n")
    for name in ("data/tokens.bin", "pkg/fast.so", "pkg/__init__.py", "notes.log", "kept.log", "campaign/x/run.json"):
        project.write(name)
    project.git("add", "kept.log")
    code = project.code()
    copy = project.copy(code)
    assert sorted(copy.verify().files) == ["kept.log", "pkg/__init__.py", "train.py"]
    assert [(copy.folder / name).resolve() for name in ("data", "pkg/fast.so", "notes.log")] == [
        project.root / name for name in ("data", "pkg/fast.so", "notes.log")
    ]
    assert not (copy.folder / ".git").exists()
    assert not (copy.folder / "campaign").exists()
    assert code.note.endswith("left out: .gitignore, data, notes.log, pkg/fast.so")


def test_a_submodule_belongs_to_the_code(project: Project, tmp_path: Path) -> None:
    library = Project(tmp_path / "library")
    for one in (library, project):
        one.git("init", "-q")
        one.git("add", ".")
        one.git("commit", "-qm", "first")
    project.git("submodule", "add", "-q", str(library.root), "lib")
    assert "lib/train.py" in project.files()


def test_without_git_hidden_files_environments_and_data_are_left_out(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_copies, "FILE_LIMIT_BYTES", 1000)
    names = ("settings.ini", "pkg/a.py", ".env", "env/pyvenv.cfg", "pkg/__pycache__/a.pyc", "out/step.pt", "wandb/r")
    for name in (*names, "not-utf8-\udcff.py"):
        project.write(name)
    project.write("large.json", "x" * 1001)
    for number in range(4):
        project.write(f"images/{number}.png")
    code = project.code()
    assert sorted(project.copy(code).verify().files) == ["pkg/a.py", "settings.ini", "train.py"]
    assert code.tree
    assert code.tree.left_out == (".env", "env", "images", "large.json", "not-utf8-\udcff.py", "out", "wandb")


def test_a_tree_that_is_too_large_is_used_in_place(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.git("init", "-q")
    for number in range(9):
        project.write(f"many/{number}.py")
    monkeypatch.setattr(code_copies, "TREE_LIMIT_FILES", 5)
    code = project.code()
    assert code.hash == LIVE
    assert "used in place" in code.note


def test_links_stay_links_within_the_code_and_lead_out_of_it_otherwise(project: Project, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "outer.py").write_text("outer")
    (project.root / "data").symlink_to(tmp_path / "shared")
    (project.root / "outer.py").symlink_to(tmp_path / "shared" / "outer.py")
    (project.root / "inner.py").symlink_to("train.py")
    (project.root / "broken").symlink_to("/nowhere/at/all")
    (project.root / "latest.py").symlink_to("not_there_yet.py")
    copy = project.copy(project.code())
    assert copy.verify().files["inner.py"] == "-> train.py"
    assert not (copy.folder / "outer.py").is_symlink()
    assert (copy.folder / "data").resolve() == tmp_path / "shared"
    assert (copy.folder / "latest.py").readlink() == project.root / "latest.py"


def test_the_plan_names_the_hash_that_submit_then_uses_and_writes_nothing(project: Project) -> None:
    planned = project.code(make=False)
    assert not project.dir.exists()
    assert project.code().hash == planned.hash


def test_the_same_code_is_copied_once_and_other_code_beside_it(project: Project) -> None:
    first = project.code()
    before = (project.copy(first).folder / "train.py").stat().st_ino
    assert project.code().hash == first.hash
    assert (project.copy(first).folder / "train.py").stat().st_ino == before
    project.write("train.py", "other")
    assert project.code().hash != first.hash
    project.copy(first).verify()
    assert len([path for path in (project.dir / "code").iterdir() if path.is_dir()]) == 2


@pytest.mark.parametrize("git", [True, False])
def test_a_grown_matrix_a_new_readme_and_results_are_no_other_code(project: Project, *, git: bool) -> None:
    if git:
        project.git("init", "-q")
    project.write("spec.yaml", "matrix: {lr: [1]}")
    project.write("README.md", "good")
    first = project.code()
    project.write("spec.yaml", "matrix: {lr: [1, 2]}")
    project.write("README.md", "better")
    assert project.code().hash == first.hash
    for name in ("results.csv", "runs/events.out.tfevents.12.host", "wandb/run/config.yaml"):
        project.write(name)
    for name in ("outputs/2026-01-01/config.yaml", "results/lr-1/summary.json", "deep/checkpoints/note.txt"):
        project.write(name)
    for name in ("sweep-report/report.html", "train.py~", "#train.py#", "train.py.bak", ".net.py", "status.txt"):
        project.write(name)  # by `campaign report`, editors, shells
    for name in ("status.json", "sweep-report/report.json"):
        project.write(name, '{\n  "schema_version": 4,\n  "campaign": "sweep"\n}')
    assert project.code().hash == first.hash
    for name in ("conf.yaml", "results/__init__.py"):
        project.write(name)
    before, after = first.copy, project.code().copy
    assert before
    assert after
    assert after.files.keys() - before.files.keys() == {"conf.yaml", "results/__init__.py"}


def test_the_copy_of_a_script_behind_a_link_stays_in_its_place(project: Project) -> None:
    project.git("init", "-q")
    sources = {project.root / "train.py", project.write("sub/train.py")}
    home = project.root.parent / "home"
    home.mkdir()
    (home / "link").symlink_to(project.root / "sub")
    copy = project.copy(project.code("link/train.py", workdir=home))
    copies = {copy.folder / "train.py", copy.folder / "sub/train.py"}
    assert set(project.root.parent.rglob("*.py")) == sources | copies


@pytest.mark.parametrize("git", [True, False])
@pytest.mark.parametrize(
    "files",
    [
        ("campaign.db", "campaign.db-wal", "campaign.toml"),
        ("runs/sweep/campaign.json", "runs/sweep/batches/a/closed", "runs/sweep/runs/r/g0001/train.json"),
    ],
)
def test_files_of_campaigns_beside_the_script_are_no_code(
    project: Project, files: tuple[str, ...], *, git: bool
) -> None:
    """Of whichever campaign: it changes with each run, and no script reads it."""
    if git:
        project.git("init", "-q")
    first = project.code()
    for name in files:
        project.write(name, '{"campaign": "sweep", "created_s": 1.5}' if name.endswith("campaign.json") else "")
    assert project.code().hash == first.hash
    if git:
        project.git("add", ".")
        assert project.code().hash == first.hash


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.from_regex(r"[a-zé ]{1,3}(/[a-z\n]{1,3})?", fullmatch=True), st.binary(max_size=40), min_size=1, max_size=6
    ),
    st.data(),
)
def test_no_change_of_a_copy_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes], data: st.DataObject
) -> None:
    project = Project(tmp_path_factory.mktemp("code"))
    for name, content in contents.items():
        path = project.root / name
        if not path.is_dir() and not any(parent.is_file() for parent in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    copy = project.copy(project.code())
    victim = copy.folder / data.draw(st.sampled_from(sorted(copy.verify().files)))
    harm = data.draw(st.sampled_from(["edit", "remove", "cut", "mode"]))
    victim.chmod(0o600 if harm != "mode" else 0o700)
    if harm == "edit":
        victim.write_bytes(victim.read_bytes() + b"!")
    elif harm == "cut" and victim.stat().st_size:
        os.truncate(victim, victim.stat().st_size - 1)
    elif harm != "mode":
        victim.unlink()
    with pytest.raises(DamagedCopy, match=r"is missing|differs from the copied code"):
        copy.verify()


@pytest.mark.parametrize("place", ["", "random.py", "..", "../../data"])
def test_a_copy_that_others_can_write_to_is_not_used(project: Project, place: str) -> None:
    copy = project.copy(project.code())
    (copy.folder / "random.py").touch()  # Python would take it for its own
    (copy.folder / "../../data").mkdir()
    copy.verify()
    (copy.folder / place).chmod(0o777)
    if place == "../../data":
        copy.verify()
        return
    with pytest.raises(DamagedCopy, match="others can write to"):
        copy.verify()


def test_a_copy_that_broke_off_is_no_copy(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("b.py")

    def full(source: Path, target: Path) -> None:
        Path(target).write_text("half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("shutil.copy2", full)
        with pytest.raises(UserError, match="No space left"):
            project.code()
    assert list((project.dir / "code").iterdir()) == []
    assert project.files() == ["b.py", "train.py"]


@pytest.mark.parametrize("code", ["copy", "live"])
@pytest.mark.parametrize("name", ["train.py", ".", "lib/model.py", "lib"])
@pytest.mark.parametrize("rights", [0o020, 0o002])
def test_a_script_that_others_may_write_is_not_submitted(tmp_path: Path, code: str, name: str, rights: int) -> None:
    world = make_world(tmp_path)
    library = world.folder / "src" / "lib" / "model.py"
    library.parent.mkdir(parents=True)
    library.touch(mode=0o644)
    (script := library.parents[1] / "train.py").touch(mode=0o644)
    command = [str(script), "{depth}"]
    world.record(command=command, code=code)
    place = library.parents[1] / name
    os.chown(place, -1, 54321 if os.geteuid() == 0 else -1)
    place.chmod(place.stat().st_mode | rights)
    if code == "live" and name.startswith("lib"):  # nobody knows what a script imports
        world.record(command=command, code=code)
        return
    with pytest.raises(UserError, match=r"others can write to .*, so they could run any code as you") as refused:
        world.record(command=command, code=code)
    world.store.close()
    assert "chmod go-w" in (refused.value.hint or "")


@pytest.mark.parametrize("with_git", [True, False])
def test_scripts_that_libraries_write_into_folders_of_a_run_are_no_code(project: Project, *, with_git: bool) -> None:
    if with_git:
        project.git("init", "-q")
    before = project.code().hash
    of_deepspeed = ("out/step5/zero_to_fp32.py", "runs/zero_to_torch.py", "autotuning_exps/z0/train.py")
    of_transformers = [f"m/checkpoint-5/{name}" for name in ("config.json", "model.safetensors", "modeling_own.py")]
    of_others = ("unsloth_compiled_cache/UnslothSFTTrainer.py", "torch_compile_debug/run/output_code.py")
    for place in (*of_deepspeed, *of_transformers, *of_others):
        project.write(place)
    assert project.code().hash == before
    project.write("out/step5/helper.py")
    assert project.code().hash != before
