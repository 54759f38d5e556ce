"""What is installed is what was tested: `requirements.lock` holds the versions of `constraints.txt`, with hashes."""

import re

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
