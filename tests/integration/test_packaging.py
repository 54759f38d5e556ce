"""pyproject.toml and constraints.txt agree with what lies in the repository."""

import ast
import fnmatch
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dscampaign.tests.support import REPOSITORY

ROOT = REPOSITORY
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS: dict[str, Any] = PYPROJECT["tool"]["setuptools"]
NOT_INSTALLED = ("tests", "examples", "benchmarks", "docs", "scripts", ".")


def package_folders() -> dict[str, Path]:
    folders = (file.parent for top in ROOT.iterdir() if _is_installed(top) for file in top.rglob("__init__.py"))
    return {"dscampaign": ROOT} | {
        ".".join(["dscampaign", *folder.relative_to(ROOT).parts]): folder for folder in folders
    }


def _is_installed(top: Path) -> bool:
    return top.is_dir() and not top.name.startswith(NOT_INSTALLED) and (top / "__init__.py").exists()


def test_every_package_is_listed() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted(package_folders())


def test_types_are_marked_once_for_all_packages() -> None:
    below = [mark for top in ROOT.iterdir() if _is_installed(top) for mark in top.rglob("py.typed")]
    assert below == []
    assert (ROOT / "py.typed").exists()


@pytest.mark.parametrize("folder", [pytest.param(path, id=name) for name, path in package_folders().items()])
def test_data_files_are_installed(folder: Path) -> None:
    patterns = SETUPTOOLS["package-data"]["*"]
    files = () if folder == ROOT else (path for path in folder.iterdir() if path.is_file() and path.suffix != ".py")
    assert [path.name for path in files if not any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)] == []


def test_every_import_is_a_dependency() -> None:
    distributions = packages_distributions()
    known = {*sys.stdlib_module_names, "dscampaign"}
    imports = {name for folder in package_folders().values() for file in folder.glob("*.py") for name in _imports(file)}
    needed = {distributions.get(name, [name])[0] for name in imports - known}
    declared = {canonicalize_name(need.name) for need in requirements()}
    assert {canonicalize_name(name) for name in needed} - declared == set()


def _imports(file: Path) -> Iterator[str]:
    """Top-level names that a file imports, relative imports left out."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def test_every_dependency_is_pinned_to_a_version_that_it_allows() -> None:
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] != "#"]
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    wanted = requirements()
    refused = [str(need) for need in wanted if not need.specifier.contains(versions[canonicalize_name(need.name)])]
    assert refused == []


def requirements() -> list[Requirement]:
    project = PYPROJECT["project"]
    lines = [line for group in project["optional-dependencies"].values() for line in group]
    return [Requirement(line) for line in [*project["dependencies"], *lines]]


def test_an_installation_has_all_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    project = import_module("setuptools").Distribution()  # what builds the wheel; it ships no types
    project.parse_config_files()
    build = project.get_command_obj("build_py")
    build.ensure_finalized()
    [installed] = [set(found) for package, _, _, found in build.data_files if package == "dscampaign.templates"]
    assert {path.name for path in (ROOT / "templates").iterdir() if path.suffix in (".yaml", ".txt")} <= installed
