"""Which of DeepSpeed's sections a spec may have: those that the built-in trainer serves, or any of a script's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.orchestrator.errors import Problem, SpecError
from dscampaign.orchestrator.spec.deepspeed_sections import CLOSED, SERVED, UNSERVED
from dscampaign.orchestrator.spec.load import load_runs

TRAIN = {"model": "gpt2", "tokenizer": "bytes", "dataset": "wikitext", "global_batch": 8, "steps": 4}
MADE_BY_TRAIN = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}
HARMLESS: dict[str, Any] = {
    "gradient_clipping": 1.0,
    "gradient_predivide_factor": 1.0,
    "prescale_gradients": False,
    "optimizer": {"type": "AdamW"},
}


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def problems(folder: Path, deepspeed: dict[str, Any], **more: Any) -> list[Problem]:
    spec = folder / "spec.yaml"
    spec.write_text(yaml.safe_dump({"name": "s", "train": TRAIN, **more, "deepspeed": deepspeed}, sort_keys=False))
    try:
        load_runs(spec)
    except SpecError as error:
        return error.problems
    return []


@pytest.mark.parametrize("key", UNSERVED)
@pytest.mark.parametrize("value", [{"enabled": True}, {}, 2, True])
def test_what_is_not_served_is_refused_with_its_line_and_a_hint(tmp_path: Path, key: str, value: Any) -> None:
    if value == UNSERVED[key].neutral:
        return
    (found,) = problems(tmp_path, nested(key, value))
    text = (tmp_path / "spec.yaml").read_text().splitlines()
    assert found.field == f"deepspeed.{key}"
    assert key.rpartition(".")[2] in text[found.line - 1]
    assert found.message == UNSERVED[key].why
    assert found.hint == UNSERVED[key].instead


@pytest.mark.parametrize("key", sorted(SERVED - MADE_BY_TRAIN))
def test_what_is_served_passes(tmp_path: Path, key: str) -> None:
    assert not problems(tmp_path, {key: HARMLESS.get(key, {})})


@pytest.mark.parametrize("key", UNSERVED)
def test_a_script_of_one_s_own_may_have_any(tmp_path: Path, key: str) -> None:
    (tmp_path / "train.py").touch()
    assert not problems(tmp_path, nested(key, {"enabled": True}), command="train.py")


def test_a_section_that_is_off_asks_for_nothing(tmp_path: Path) -> None:
    off = {"hybrid_engine": {"enabled": False}, "autotuning": {"enabled": False}, "sequence_parallel_size": 1}
    assert not problems(tmp_path, off)


def test_a_section_that_deepspeed_no_longer_has_stops_it_even_when_off(tmp_path: Path) -> None:
    assert [one.field for one in problems(tmp_path, {"elasticity": {"enabled": False}})] == ["deepspeed.elasticity"]


def test_it_is_found_on_an_axis(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, {}, matrix={"deepspeed.tensor_parallel.autotp_size": [2, 4]})
    assert "tensor_parallel" in found.field
    assert found.line > 1


@pytest.mark.parametrize("key", sorted(SERVED | {key for key in UNSERVED if "." not in key}))
def test_a_misspelt_key_is_told_what_was_meant(tmp_path: Path, key: str) -> None:
    if len(key) < 5:
        return  # so short that another word is soon as near
    (found,) = problems(tmp_path, {key + key[-1]: {}})
    assert found.hint == f'did you mean "{key}"?'


@pytest.mark.parametrize(("stage", "scatter", "works"), [(1, True, True), (2, True, False), (3, False, True)])
@pytest.mark.parametrize(("key", "value"), [("prescale_gradients", True), ("gradient_predivide_factor", 2.0)])
def test_gradients_are_not_scaled_beside_a_reduce_scatter(
    tmp_path: Path, stage: int, scatter: bool, works: bool, key: str, value: Any
) -> None:
    given = {"zero_optimization": {"stage": stage, "reduce_scatter": scatter}, key: value}
    assert [one.field for one in problems(tmp_path, given)] == ([] if works else [f"deepspeed.{key}"])


@pytest.mark.parametrize("name", CLOSED)
def test_a_misspelt_key_within_a_section_is_told_what_was_meant(tmp_path: Path, name: str) -> None:
    for key in sorted(CLOSED[name]):
        found = problems(tmp_path, nested(name, {key + key[-1]: 1}))
        near = [one.hint for one in found if one.field == f"deepspeed.{name}.{key + key[-1]}"]
        assert near == [f'did you mean "{key}"?'] or len(key) < 5  # short words are soon alike by chance


@pytest.mark.parametrize(
    ("kind", "meant"), [("Adamm", "Adam"), ("adamww", "AdamW"), ("rmsprop", "RMSprop"), ("Lionn", "Lion")]
)
def test_a_misspelt_optimizer_is_told_what_was_meant(tmp_path: Path, kind: str, meant: str) -> None:
    (found,) = problems(tmp_path, {"optimizer": {"type": kind}})
    assert (found.field, found.hint) == ("deepspeed.optimizer.type", f'did you mean "{meant}"?')


@pytest.mark.parametrize("kind", ["adamw", "LION", "Muon", "RMSprop", "SGD", "SomethingNew", "OneBitAdam"])
def test_an_optimizer_that_may_be_there_passes(tmp_path: Path, kind: str) -> None:
    assert not problems(tmp_path, {"optimizer": {"type": kind}})


@pytest.mark.parametrize(
    ("deepspeed", "strategy", "message"),
    [
        ({"zero_optimization": {"overlap_comm": True}}, "fsdp2", "deepspeed has no effect with engine fsdp2"),
        (
            {"zero_optimization": {"offload_param": {"device": "cpu"}}},
            "zero1",
            "offload_param does not work with ZeRO stage 1",
        ),
    ],
)
def test_a_section_beside_an_axis_is_named(tmp_path: Path, deepspeed: Any, strategy: str, message: str) -> None:
    """The error stands at the axis, and says what of the rest does not go with it."""
    (found,) = problems(tmp_path, deepspeed, matrix={"strategy": ["zero3", strategy]})
    assert found.field == "matrix.strategy[1]"
    assert message in found.message


def test_ranks_that_an_axis_gives_to_no_whole_group_are_told_of_which_field(tmp_path: Path) -> None:
    train = {**TRAIN, "tensor_parallel": 2, "global_batch": 24}
    (found,) = problems(tmp_path, {}, train=train, matrix={"ranks_per_node": [5, 4]}, executor="local")
    assert (found.field, found.message) == (
        "matrix.ranks_per_node[0]",
        "train.tensor_parallel 2 does not divide the 5 ranks of the run",
    )


def test_what_is_set_on_the_command_line_is_blamed_there(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({"name": "s", "train": TRAIN, "matrix": {"strategy": ["fsdp2", "zero1"]}}))
    with pytest.raises(SpecError) as raised:
        load_runs(spec, ["deepspeed.fp16.enabled=true"])
    (found,) = raised.value.problems
    assert (found.path, found.field) == ("--set deepspeed.fp16.enabled=true", "deepspeed.fp16.enabled")


def test_a_key_that_only_a_newer_deepspeed_has_passes(tmp_path: Path) -> None:
    assert not problems(tmp_path, {"zero_optimization": {"stage": 1, "quantum_teleport": True}})
