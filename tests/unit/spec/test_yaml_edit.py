"""Values changed in the text of a spec: everything else stays as it was written, and the result says what it should."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.orchestrator.spec.yaml_edit import edited, value_at, without_comments
from dscampaign.orchestrator.spec.yaml_source import load, written

TEXT = """\
# A sweep over stages.
name: sweep     # its name

slurm: {gpus-per-node: 8}
# What is trained.
train:
  model: gpt2   # small
  lr: 3e-4
  steps: 300
  dataset:
    path: ./text.txt
    eval_fraction: 0.1  # the end

# Two stages,
# three repeats.
matrix:
  zero_stage: [1, 3]
  lr:
    - 1e-3
    - 1e-4   # low
repeats: 3

env: {A: "1", B: x}
deepspeed:
"""


def test_only_what_is_changed_changes() -> None:
    changes: dict[tuple[str, ...], Any] = {
        ("name",): "long",
        ("train", "steps"): 20_000,
        ("train", "lr"): 1e-4,
        ("train", "zero_stage"): 3,
        ("train", "dataset", "eval_fraction"): 0.2,
        ("slurm", "gpus_per_node"): 4,
        ("env", "C"): "yes",
        ("deepspeed", "zero_optimization", "overlap_comm"): True,
    }
    assert (
        edited(TEXT, changes, [("matrix",), ("repeats",), ("screen",), ("env", "B")])
        == """\
# A sweep over stages.
name: long      # its name

slurm: {gpus-per-node: 4}
# What is trained.
train:
  zero_stage: 3
  model: gpt2   # small
  lr: 0.0001
  steps: 20000
  dataset:
    path: ./text.txt
    eval_fraction: 0.2  # the end


env: {C: 'yes', A: "1"}
deepspeed: {zero_optimization: {overlap_comm: true}}
"""
    )


@pytest.mark.parametrize(
    ("text", "removed", "left"),
    [
        ("a: {x: 1, y: 2}\n", ("a", "x"), "a: {y: 2}\n"),
        ("a: {x: 1, y: 2}\n", ("a", "y"), "a: {x: 1}\n"),
        ("a: {x: 1}\n", ("a", "x"), "a: {}\n"),
        ("# head\nb: 1\nc: 2", ("b",), "# head\nc: 2\n"),
        ("c: 2\n# of b\nb: |\n  text\n  more\n", ("b",), "c: 2\n"),
        ("c: 2\nb:\n  - 1\n  -\n    x: 1\n# end\nd: 3\n", ("b",), "c: 2\n# end\nd: 3\n"),
        ("c: {d: 1}\n", ("b", "x"), "c: {d: 1}\n"),
    ],
)
def test_a_removed_key_goes_with_its_value_and_its_comment(text: str, removed: tuple[str, ...], left: str) -> None:
    assert edited(text, {}, [removed]) == left


@pytest.mark.parametrize(
    "text",
    [
        "base: &base {x: 1}\nother: *base\n",
        "base: &base\n  x: 1\nother:\n  <<: *base\n  y: 2\n",
        "other: |\n  text\nbase: 1\n",
        "other: >-\n  text\n",
        "{other: [1, 2], base: {x: 1}}",
        "other: 'quo''ted'\n",
        '"other":\n  deep: {a: [1, {b: 2}]}\n\n\n# end',
        "other:\n",
        "base:\n- 1\n- 2\nother:\n- a\n",
    ],
)
@pytest.mark.parametrize("value", [5, "no", "1e-4", {"x": [1, "two: three"]}, None, 1e-5, "a # b", "", "Ünï"])
def test_the_result_always_says_what_it_should(text: str, value: Any) -> None:
    edits: list[tuple[dict[tuple[str, ...], Any], list[tuple[str, ...]]]]
    edits = [({("other",): value}, []), ({("new", "deep"): value}, [("base",)])]
    for changes, removed in edits:
        wanted = load(text, "").data
        for path in removed:
            wanted.pop(path[0], None)
        wanted |= {"other": value} if ("other",) in changes else {"new": {"deep": value}}
        assert load(edited(text, changes, removed), "").data == wanted


COMMENTS = """\
# first hf_1 "it's

name: "a # b"   # hf_2
slurm:          # hf_3
  setup:        # hf_4
    - |  # hf_5
      module load cuda  # a comment of the shell
      # and another
    # hf_6
    - 'x # y'   # hf_7
train: {lr: 1e-4, # hf_8
  steps: 3}
env: &e   # hf_9
  A: a#b
  B: plain
    text    # hf_10
matrix:
# hf_11
  x:
  - {<<: *e} # hf_12
  - >-
    folded # text

    # more text
# hf_13
"""


def test_without_comments_a_document_is_the_same() -> None:
    left = without_comments(COMMENTS)
    assert load(left, "").data == load(COMMENTS, "").data
    assert "hf_" not in left
    kept = ["a # b", "# a comment of the shell", "# and another", "x # y", "a#b", "folded # text", "# more text"]
    assert [text for text in kept if text not in left] == []
    assert left.splitlines()[:4] == ["", 'name: "a # b"', "slurm:", "  setup:"]
    assert without_comments(left) == left


@pytest.mark.parametrize(
    "text", ["a: 1#2 # hf_", "\ufeffa: 1 # hf_\n", "%YAML 1.2 # hf_\n---\na: 1 # hf_\n... # hf_\n", "a: .nan # hf_"]
)
def test_no_comment_stays_however_the_document_is_framed(text: str) -> None:
    assert "hf_" not in without_comments(text)


def test_what_an_alias_repeats_is_written_anew() -> None:
    text = "base: &base {x: 1}\nother: *base\n"
    assert load(edited(text, {("other", "x"): 2}), "").data == {"base": {"x": 1}, "other": {"x": 2}}


def test_a_change_below_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="no mapping"):
        edited("a: [1]\n", {("a", "b"): 1})


def test_values_are_found_in_either_spelling() -> None:
    data = load(TEXT, "").data
    assert value_at(data, ("slurm", "gpus_per_node")) == 8
    assert value_at(data, ("train", "dataset", "path")) == "./text.txt"
    assert value_at(data, ("train", "lr", "x")) is None


@pytest.mark.parametrize("value", ["yes", "1e-4", "0o7", "12:30", "~", "true", 1e-4, 10**9, 0.1, "multi\nline", [], {}])
@pytest.mark.parametrize("flow", [False, True])
def test_what_is_written_reads_as_the_same(value: Any, flow: bool) -> None:
    assert load(written({"key": value}, flow=flow), "").data == {"key": value}
