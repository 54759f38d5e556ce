"""No regular expression that a user writes holds a process up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dscampaign.jobs.shared.user_pattern import UserPattern

ENDLESS = (r"(\w+\s?)+Error:", "(a+)+b", "(x+x+)+y", "(.*)*z", "(a|aa)+$b", "(.*a){12}$b", r"^(\s+)+$x", "(=+ ?)+;")


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_search_without_end_is_given_up(pattern: str) -> None:
    tried = UserPattern(pattern, 0.05)
    for unit in ("a", "x", " ", "word ", "="):
        assert not tried.search(unit * 100 + "!")
    assert tried.given_up
    assert not tried.search("aab aError: b xxy z")


ATOMS = st.sampled_from(["a", "b", ".", r"\w", r"\s", "[ab]", "x"])


@settings(max_examples=60, deadline=None)
@given(
    pattern=st.recursive(
        ATOMS,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("*+?")).map(lambda found: f"(?:{found[0]}){found[1]}"),
            st.lists(inner, min_size=1, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=2).map(lambda found: f"(?:{'|'.join(found)})"),
        ),
        max_leaves=8,
    ),
    text=st.text("ab x", max_size=600),
)
def test_any_pattern_comes_to_an_end(pattern: str, text: str) -> None:
    tried = UserPattern(pattern, 0.02)
    for _ in range(20):
        tried.search(text + "!")
