"""Which failures are the same one, whatever their words."""

from __future__ import annotations

import pytest

from dscampaign.orchestrator.failures.groups import cause, gist


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'layers.4.weight' · fix it", "KeyError: 'layers.17.weight' · fix it"),
        ("used 469 MB of 500 MB in step 30.0 on node030", "used 1.2 GiB of 500 MB in step 7.0 on node001"),
        ("no file /scratch/a/x.pt (see log)", "no file ./b.pt (see log)"),
        ("ranks 0, 3 and 5 died", "ranks 2 died"),
        ("job deadbeefcafe is gone", "job 0badf00d12ab is gone"),
        ("at 0x7f3a8b00: bad magic " + "y " * 200, "at 0x7f3a8b001234567890: bad magic " + "y " * 190),
        ("took 12,345.6 s, 31 %", "took 3 s, 4 %"),
    ],
)
def test_details_do_not_tell_texts_apart(one: str, other: str) -> None:
    assert gist(one) == gist(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'lr'", "KeyError: 'depth'"),
        ("ModuleNotFoundError: No module named torch", "ModuleNotFoundError: No module named deepspeed"),
        ("exited with status 3", "killed by signal 9"),
    ],
)
def test_other_words_tell_texts_apart(one: str, other: str) -> None:
    assert gist(one) != gist(other)


@pytest.mark.parametrize("kind", ["crash", "deterministic", "refused", None, ""])
def test_a_class_of_many_causes_needs_it(kind: str | None) -> None:
    assert cause(kind, "", "no module torch") != cause(kind, "", "no module apex")
    assert cause(kind, "", "out-wide.pt is missing", "wide") == cause(kind, "", "out-deep.pt is missing", "deep")
