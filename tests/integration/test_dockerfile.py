"""docker/Dockerfile, built by a builder without privileges or network, on a base that is made here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from dscampaign.tests.support import REPOSITORY
from dscampaign.tests.support.image import PYTHON, make_image

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

BUILD_TOOLS = ("pip", "setuptools", "_distutils_hack", "pkg_resources", "wheel", "packaging")
"""Packages, whose entry points are in folders beside them."""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A root with pip, setuptools and what the first step would install."""
    root = make_image(tmp_path / "base")
    packages = root / "usr/lib/python3/dist-packages"
    for found in {found for name in BUILD_TOOLS for found in Path(sysconfig.get_paths()["purelib"]).glob(f"{name}*")}:
        if found.is_dir():
            shutil.copytree(found, packages / found.name, ignore=shutil.ignore_patterns("__pycache__"))
    bundled = root / "usr/lib" / PYTHON.resolve().name / "ensurepip"
    shutil.rmtree(bundled, ignore_errors=True)
    bundled.mkdir()
    (bundled / "__init__.py").touch()
    (bundled / "__main__.py").touch()  # pip is there
    (root / "usr/bin/c++").touch(mode=0o755)
    return root


def test_the_image_of_the_built_in_trainer_builds(base: Path, tmp_path: Path) -> None:
    env = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs", "HOME": str(tmp_path)}
    storage = ["--root", str(tmp_path / "storage"), "--runroot", str(tmp_path / "run")]

    def buildah(*words: str) -> str:
        done = subprocess.run(["buildah", *storage, *words], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    container = buildah("from", "scratch")
    buildah("add", container, str(base), "/")
    buildah("commit", container, "localhost/base")
    offline = "--no-index --no-build-isolation --no-deps"
    values = {"BASE": "localhost/base", "EXTRAS": "", "PIP_OPTIONS": offline}
    given = [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]
    file = REPOSITORY / "docker" / "Dockerfile"
    ignored = ["--ignorefile", f"{file}.dockerignore", "--pull-never"]
    buildah("bud", *given, *ignored, "-t", "localhost/trained", "-f", str(file), str(REPOSITORY))
    container = buildah("from", "--pull-never", "localhost/trained")
    show = "import dscampaign, sys; print(sys.prefix, dscampaign.__file__)"
    seen = buildah("run", container, "--", "python3", "-c", show).split()
    assert seen[0] == "/opt/train"
    assert seen[1].startswith("/opt/train/lib/")
    inside = buildah(
        "run", container, "--", "python3", "-c", "import os; print(*os.listdir('/src/dscampaign'))"
    ).split()
    assert {"pyproject.toml", "jobs"} <= set(inside)
    assert not {".git", ".venv", ".lint"} & set(inside)
