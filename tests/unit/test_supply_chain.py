"""What is installed is what was tested: `requirements.lock` holds the versions of `constraints.txt`, with hashes."""

import re
import subprocess
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dscampaign.tests.support import REPOSITORY

WITHOUT_HASHES = {"torch"}
"""Its builds differ by the driver of a machine, and each comes from an index of its own."""


def locked() -> dict[str, tuple[str, int]]:
    """Version and number of hashes by package."""
    found: dict[str, tuple[str, int]] = {}
    text = (REPOSITORY / "requirements.lock").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pin, *hashes = line.split("--hash=")
            requirement = Requirement(pin.strip())
            assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", digest) for digest in hashes)
            found[canonicalize_name(requirement.name)] = (str(requirement.specifier), len(hashes))
    return found


def test_the_lock_holds_what_was_tested() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    tested = {canonicalize_name(pin.name): str(pin.specifier) for pin in pins}
    assert {name: version for name, (version, _) in locked().items()} == {
        name: version for name, version in tested.items() if name not in WITHOUT_HASHES
    }, "`make lock` writes it again"


def test_every_file_is_known_by_its_hash() -> None:
    assert [name for name, (_, hashes) in locked().items() if hashes == 0] == []


def test_an_installation_by_hashes_fetches_nothing_without_one_to_build_with() -> None:
    """As docs/security.md has it: the build backend comes from the lock, and no package is built with another."""
    guide = (REPOSITORY / "docs/security.md").read_text()
    [commands] = [block for block in re.findall(r"```sh\n(.*?)```", guide, re.DOTALL) if "requirements.lock" in block]
    torch, backend, *others = commands.splitlines()
    assert torch.startswith("pip install torch==")
    assert all("--no-build-isolation" in command for command in others)
    taken, _, install = backend.partition(" | ")
    assert install == "pip install --require-hashes --no-deps -r /dev/stdin"
    part = subprocess.run(taken, shell=True, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert part.rstrip().count("--hash=") == len(part.splitlines()) - 1
    assert not part.rstrip().endswith("\\")
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    for requirement in map(Requirement, build):
        version = locked()[canonicalize_name(requirement.name)][0].removeprefix("==")
        assert requirement.name == part.partition("==")[0]
        assert requirement.specifier.contains(version)
