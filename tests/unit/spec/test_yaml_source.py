"""YAML as people mean it, with positions."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dscampaign.orchestrator.errors import SpecError, UserError
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.orchestrator.spec.model import Spec, TrainConfig
from dscampaign.orchestrator.spec.sections import RetryConfig
from dscampaign.orchestrator.spec.slurm_section import SlurmConfig
from dscampaign.orchestrator.spec.yaml_source import load
from dscampaign.tests.support.spec_files import load_spec


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("12", 12),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0o17", 15),
        ("010", "010"),
        ("4:00:00", "4:00:00"),
        ("1:30", "1:30"),
        ("2024-01-31", "2024-01-31"),
        ("yes", "yes"),
        ("no", "no"),
        ("true", True),
        ("~", None),
        ("", None),
    ],
)
def test_scalars(text: str, value: Any) -> None:
    read = load(f"a: {text}", "x.yaml").data["a"]
    assert read == value
    assert type(read) is type(value)


def test_positions_of_keys_and_values() -> None:
    source = load("train:\n  lr: 3\n  betas: [1,\n          2]\n", "x.yaml")
    assert source.position(("train", "lr")) == (2, 7)
    assert source.position(("train", "lr"), at_key=True) == (2, 3)
    assert source.position(("train", "betas", 1)) == (4, 11)


def test_anchors_and_merges() -> None:
    text = "base: &b {lr: 1, steps: 2}\none: {<<: *b, lr: 3}\ntwo: {lr: 4, <<: [*b, {steps: 9, seed: 7}]}\n"
    data = load(text, "x.yaml").data
    assert data["one"] == {"lr": 3, "steps": 2}
    assert data["two"] == {"lr": 4, "steps": 2, "seed": 7}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a:\n\tb: 1\n", 2, "cannot start any token"),
        ("b:\n  c: 1\n  c: 2\n", 3, "the key c is given twice"),
        ("a: [1, 2\nb: 3\n", 2, "expected ',' or '\\]'"),
        ("a: 'open\n", 2, "unexpected end of stream"),
        ("- 1\n- 2\n", 1, "expected fields"),
        ("", 1, "the file is empty"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("a: \x07\n", 1, "unacceptable character"),
        ("? [1]\n: 2\n", 1, "a key must be text"),
        ("a: !!int abc\n", 1, "invalid literal"),
        ("a: *nowhere\n", 1, "undefined alias"),
    ],
)
def test_broken_documents(text: str, line: int, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        load(text, "x.yaml")
    assert caught.value.problems[0].line == line


def test_a_billion_laughs_ends_early() -> None:
    rows = ["a0: &a0 [1]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(SpecError, match="too many values"):
        load("\n".join(rows), "x.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n".join(["a0: &a0 [1]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 100))]), "nested too deeply"),
        (f"seed: 0x{'f' * 5000}", "is too large a number"),
        (f"seed: {'9' * 5000}", "not valid YAML"),
        ("seed: 18446744073709551616", "is too large a number"),
        ('"\\udfff": 1', "contains half a character"),
        ('a: "\\0"', "contains half a character, or NUL"),
    ],
)
def test_a_document_that_is_no_spec_is_an_error_with_its_place(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        load(text, "x.yaml")
    assert all(problem.line > 0 for problem in caught.value.problems)
    assert len(str(caught.value)) < 3 * len(text) + 1000


WORDS = ("local", "zero3", "stop", "(a+)+b", "'['", "t.py {x}", "sqlite:///a", "${HOME}", "1G", "4:00:00", "*a", "*b")
ODD = (
    *("0x" + "f" * 5000, "9" * 5000, str(10**18 + 3), "-1", "0", "1e999", ".nan", "-.inf", "1e-400", "true", "no"),
    *("~", "''", '"\\ud800"', '"\\0"', '"\\x1b[2J"', '"\\ud83d\\ude00"', "!!int x", "2024-01-31", "=", "é", "{}", "[]"),
)
NUMBERS = st.one_of(st.integers(0, 64), st.integers(0), st.floats(0, 1)).map(repr)
SCALARS = st.one_of(
    NUMBERS, NUMBERS, st.sampled_from(WORDS), st.sampled_from(ODD), st.text(max_size=20).map(json.dumps)
)


def _list(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, max_size=4).map(lambda items: f"[{', '.join(items)}]")


def _mapping(keys: Iterable[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A mapping of a few of these keys, or at times of any others, or of a merge."""
    names = st.one_of(*[st.sampled_from(sorted(keys))] * 8, SCALARS, st.just("<<"))
    pairs = st.dictionaries(names, values, max_size=4).map(dict.items)
    return pairs.map(lambda items: f"{{{', '.join(f'{key}: {value}' for key, value in items)}}}")


LISTS = _list(SCALARS)
ANY = st.recursive(SCALARS, lambda inner: st.one_of(_list(inner), _mapping(["a", "b"], inner)), max_leaves=9)
DEEP = st.integers(40, 90).map(lambda depth: "[" * depth + "]" * depth)
SECTIONS: dict[str, type[BaseModel]] = {"train": TrainConfig, "slurm": SlurmConfig, "retry": RetryConfig}
AXES = [f"{section}.{name}" for section, kind in SECTIONS.items() for name in kind.model_fields]
VALUES = {
    **{name: _mapping(kind.model_fields, st.one_of(SCALARS, SCALARS, LISTS, ANY)) for name, kind in SECTIONS.items()},
    "matrix": _mapping([*AXES, "x", "include", "exclude"], st.one_of(LISTS, LISTS, ANY)),
    "retry.rules": LISTS,
}


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A spec in which anything may be odd: a name, a value, its kind, what an alias or a merge brings in."""
    names = draw(st.lists(st.sampled_from([*VALUES, *VALUES, *Spec.model_fields, "x"]), unique=True, max_size=6))
    lines = [f"{name}: {draw(VALUES.get(name, st.one_of(SCALARS, LISTS, ANY, DEEP)))}" for name in names]
    anchors = {"&a": draw(st.one_of(SCALARS, ANY)), "&b": draw(_mapping(TrainConfig.model_fields, SCALARS))}
    shared = [f"deepspeed: {{{', '.join(f'{key[1:]}: {key} {value}' for key, value in anchors.items())}}}"]
    fixed = ["name: c", "executor: local", "command: [-m, train]"]
    given = {line.partition(":")[0]: line for line in [*shared, *fixed, *lines]}
    return "\n".join(given.values())


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.one_of(documents(), documents(), documents(), st.text()))
def test_any_document_is_a_spec_or_an_error_with_its_place(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    read = _read(path)
    if isinstance(read, Spec):
        assert expand(read)
    elif isinstance(read, SpecError):
        assert read.problems
        assert len(str(read)) < 200 * len(text) + 100_000
        str(read).encode()
    else:
        assert str(path) in str(read)  # it is no text


def _read(path: Path) -> Spec | UserError:
    try:
        return load_spec(path)
    except UserError as error:
        return error
