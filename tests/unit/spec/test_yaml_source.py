"""YAML as people mean it, with positions."""

import math
from typing import Any

import pytest

from dscampaign.orchestrator.errors import Finding, SpecError
from dscampaign.orchestrator.spec.yaml_source import load


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("1.5e+3", 1500.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-.inf", -math.inf),
        ("12", 12),
        ("-3", -3),
        ("0", 0),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0o17", 15),
        ("08", "08"),
        ("010", "010"),
        ("0123.5", 123.5),
        ("4:00:00", "4:00:00"),
        ("1:30", "1:30"),
        ("2-12", "2-12"),
        ("2024-01-31", "2024-01-31"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("Off", "Off"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("=", "="),
    ],
)
def test_scalars(text: str, value: Any) -> None:
    read = load(f"a: {text}", "x.yaml").data["a"]
    assert read == value
    assert type(read) is type(value)


def test_nan() -> None:
    assert math.isnan(load("a: .nan", "x.yaml").data["a"])


def test_positions_of_keys_and_values() -> None:
    source = load("train:\n  lr: 3\n  betas: [1,\n          2]\n", "x.yaml")
    assert source.position(("train", "lr")) == (2, 7)
    assert source.position(("train", "lr"), at_key=True) == (2, 3)
    assert source.position(("train", "betas", 1)) == (4, 11)


def test_what_is_missing_is_placed_at_what_is_around_it() -> None:
    source = load("a: 1\ntrain:\n  lr: 3\n", "x.yaml")
    assert source.position(("train", "steps")) == (2, 1)


def test_a_finding_shows_its_line_and_a_caret() -> None:
    problem = load("a: 1\nslurm:\n  partitoin: h100\n", "x.yaml").problem(
        Finding((("slurm", "partitoin"),), "unknown field", 'did you mean "partition"?', at_key=True)
    )
    assert str(problem) == (
        "x.yaml:3:3: error: slurm.partitoin: unknown field\n"
        "      partitoin: h100\n"
        "      ^\n"
        '  hint: did you mean "partition"?'
    )


def test_dashes_find_their_underscores() -> None:
    source = load("slurm:\n  gpus-per-node: 8\n", "x.yaml")
    assert source.position(("slurm", "gpus_per_node")) == (2, 18)


def test_every_key_that_is_there_twice_is_an_error() -> None:
    with pytest.raises(SpecError) as caught:
        load("a: 1\nb:\n  c: 1\n  c: 2\na: 2\n", "x.yaml")
    assert [(p.line, p.field) for p in caught.value.problems] == [(4, "b.c"), (5, "a")]
    assert "first on line 1" in str(caught.value)


def test_anchors_and_merges() -> None:
    text = "base: &b {lr: 1, steps: 2}\none: {<<: *b, lr: 3}\ntwo: {lr: 4, <<: [*b, {steps: 9, seed: 7}]}\n"
    data = load(text, "x.yaml").data
    assert data["one"] == {"lr": 3, "steps": 2}
    assert data["two"] == {"lr": 4, "steps": 2, "seed": 7}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a:\n\tb: 1\n", 2, "spaces, not with tabs"),
        ("a: [1, 2\nb: 3\n", 2, "not valid YAML"),
        ("a: 'open\n", 2, "not valid YAML"),
        ("- 1\n- 2\n", 1, "expected fields"),
        ("", 1, "the file is empty"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML"),
        ("a: !!python/object:os.system {}\n", 1, "not understood|mapping"),
        ("a: \x07\n", 0, "not valid YAML"),
        ("? [1]\n: 2\n", 1, "a key must be text"),
        ("a: !!int abc\n", 1, "is not a number"),
        ("a: &a [*a]\n", 1, "endless"),
        ("a: &a {<<: *a}\n", 1, "from elsewhere"),
        ("a: *nowhere\n", 1, "not valid YAML"),
    ],
)
def test_broken_documents(text: str, line: int, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        load(text, "x.yaml")
    assert caught.value.problems[0].line == line


def test_a_billion_laughs_ends_early() -> None:
    rows = ["a0: &a0 [1]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(SpecError, match="endless"):
        load("\n".join(rows), "x.yaml")
