"""Which of DeepSpeed's sections a spec may have: those that the built-in trainer serves, or any of a script's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.orchestrator.errors import Problem, SpecError
from dscampaign.orchestrator.spec.deepspeed_keys import CLOSED, KEYS
from dscampaign.orchestrator.spec.deepspeed_sections import SERVED, UNSERVED
from dscampaign.orchestrator.spec.load import load_runs

TRAIN = {"model": "gpt2", "tokenizer": "bytes", "dataset": "wikitext", "global_batch": 8, "steps": 4}
MADE_BY_TRAIN = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}
HARMLESS: dict[str, Any] = {
    **{key: {} if kind.of == "section" else False for key, kind in KEYS[""].items()},
    "communication_data_type": "bf16",
    "gradient_allreduce_op": "mean",
    "log_level": "info",
    "steps_per_print": 10,
    "vocabulary_size": 50304,
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
    assert not problems(tmp_path, {key: HARMLESS[key]})


@pytest.mark.parametrize("key", UNSERVED)
def test_a_script_of_one_s_own_may_have_any(tmp_path: Path, key: str) -> None:
    (tmp_path / "train.py").touch()
    assert not problems(tmp_path, nested(key, {"enabled": True}), command="train.py")


def test_a_key_is_said_by_one_of_its_names(tmp_path: Path) -> None:
    zero = {"stage": 3, "prefetch_bucket_size": 1000, "stage3_max_live_parameters": 1000}
    assert not problems(tmp_path, {"zero_optimization": zero})
    (found,) = problems(tmp_path, {"zero_optimization": {**zero, "stage3_prefetch_bucket_size": 1000}})
    assert found.field == "deepspeed.zero_optimization.prefetch_bucket_size"


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
        ({"zero_optimization": {"overlap_comm": True}}, "fsdp2", "deepspeed: has no effect with engine fsdp2"),
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
        "train.tensor_parallel: 2 does not divide the 5 ranks of the run",
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


@pytest.mark.parametrize(
    ("text", "field", "message", "hint"),
    [
        (
            "zero_optimization: {reduce_bucket_size: 500MB}",
            "",
            "a whole number from 1",
            "write the number without a unit",
        ),
        ('zero_optimization: {reduce_bucket_size: "5e8"}', "", "a whole number from 1", "write 5e8 without quotes"),
        (
            "zero_optimization: {reduce_bucket_size: }",
            "",
            "a whole number from 1",
            "write a value, or leave the key out",
        ),
        (
            "zero_optimization: {reduce_bucket_size: [5e8, 1e9]}",
            "",
            "a whole number from 1",
            "to compare several values, list them under `matrix`, as deepspeed.zero_optimization.reduce_bucket_size",
        ),
        ("zero_optimization: {reduce_bucket_size: -5}", "", "a whole number from 1", None),
        ("zero_optimization: {reduce_bucket_size: 1e300}", "", "a whole number from 1", None),
        ("zero_optimization: {reduce_bucket_size: 0.5}", "", "a whole number from 1", None),
        ('zero_optimization: {overlap_comm: "true"}', "", "true or false", "write true without quotes"),
        (
            "zero_optimization: {offload_optimizer: {device: [cpu]}}",
            "offload_optimizer.device",
            "none, cpu or nvme",
            "list them under `matrix`, as deepspeed.zero_optimization.offload_optimizer.device",
        ),
        ("zero_optimization: {offload_param: {device: cpuu}}", "offload_param.device", "none, cpu or nvme", "cpu"),
        (
            "zero_optimization: {stage: 1, offload_optimizer: cpu}",
            "offload_optimizer",
            "a mapping",
            "write {device: cpu}",
        ),
        (
            "zero_optimization: {offload_optimizer: {device: nvme, nvme_path: [/x]}}",
            "offload_optimizer.nvme_path",
            "text",
            "to compare several",
        ),
        ("zero_optimization: 1", "", "a mapping", "write {stage: 1}"),
        ("bf16: true", "", "a mapping", "write {enabled: true}"),
        ("steps_per_print: ten", "", "a whole number from 1", None),
        ("steps_per_print: 0", "", "a whole number from 1", None),
        ("fp16: {initial_scale_power: high}", "", "a whole number from -1023 to 1023", None),
        ("fp16: {enabled: 1}", "", "true or false", None),
        ("communication_data_type: bf17", "", "fp32, fp16 or bf16", 'did you mean "bf16"?'),
        ("optimizer: {params: {betas: 0.9}}", "params.betas", "two numbers from 0 to below 1", None),
        ("optimizer: {params: {betas: [0.9, 1.0]}}", "params.betas", "two numbers from 0 to below 1", None),
        ("optimizer: {params: {eps: tiny}}", "params.eps", "a number from 0", None),
        ("aio: {block_size: 1e6}", "", "a whole number from 1", "write 1000000"),
        ("flops_profiler: 3", "", "a mapping", None),
        ("gradient_predivide_factor: 0", "", "a number more than 0", None),
    ],
)
def test_a_value_that_deepspeed_does_not_take_is_told_where_it_stands(
    tmp_path: Path, text: str, field: str, message: str, hint: str | None
) -> None:
    section, _, key = text.partition(":")
    inner = key.partition("{")[2].partition(":")[0]
    place = ".".join(part for part in ("deepspeed", section, field or inner) if part)
    for executor in ("slurm", "local"):
        (found,) = problems_of(tmp_path, f"executor: {executor}\ndeepspeed: {{{text}}}\n")
        assert (found.field, found.message, found.line) == (place, f"expected {message}", len(BUILT_IN) + 2)
        assert (hint or "") in (found.hint or "")
        assert hint or not found.hint


BUILT_IN = ["name: s", "train: {model: gpt2, tokenizer: bytes, dataset: wikitext, global_batch: 8, steps: 4}"]


def problems_of(folder: Path, text: str) -> list[Problem]:
    spec = folder / "spec.yaml"
    spec.write_text("\n".join([*BUILT_IN, text]))
    try:
        load_runs(spec)
    except SpecError as error:
        return error.problems
    return []


def test_a_value_is_also_refused_beside_a_script_and_on_an_axis(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (found,) = problems(tmp_path, {"zero_optimization": {"reduce_bucket_size": "500MB"}}, command="train.py")
    assert found.field == "deepspeed.zero_optimization.reduce_bucket_size"
    (found,) = problems(tmp_path, {}, matrix={"deepspeed.zero_optimization.reduce_bucket_size": [5e8, "1GB"]})
    assert found.field == "matrix.deepspeed.zero_optimization.reduce_bucket_size[1]"


def test_all_values_are_told_at_once_and_the_rest_is_checked_too(tmp_path: Path) -> None:
    given = {"steps_per_print": "ten", "zero_optimization": {"stage": 1, "reduce_bucket_size": "x"}, "scheduler": {}}
    fields = [one.field for one in problems(tmp_path, given, train={**TRAIN, "warmup_steps": 9})]
    assert sorted(fields) == [
        "deepspeed.scheduler",
        "deepspeed.steps_per_print",
        "deepspeed.zero_optimization.reduce_bucket_size",
        "train.warmup_steps",
    ]


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"activation_checkpointing": {"partition_activation": True}}, "partition_activation", "partition_activations"),
        ({"activation_checkpointing": {"cpu_checkpoint": True}}, "cpu_checkpoint", "cpu_checkpointing"),
        ({"activation_checkpointing": {"profile": 7}}, "profile", "true or false"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_steps": 9}}}, "params.warmup_steps", "warmup_num_steps"),
        ({"scheduler": {"type": "OneCycle", "params": {"cycle_minlr": 0.1}}}, "params.cycle_minlr", "cycle_min_lr"),
        ({"scheduler": {"typ": "WarmupLR", "param": {}}}, "param", "params"),
        ({"data_efficiency": {"enable": True}}, "enable", "enabled"),
    ],
)
def test_sections_of_a_script_s_own_are_read_as_deepspeed_would(
    tmp_path: Path, given: dict[str, Any], field: str, said: str
) -> None:
    (tmp_path / "train.py").touch()
    found = problems(tmp_path, given, command="train.py")
    [told] = [one for one in found if one.field == f"deepspeed.{next(iter(given))}.{field}"]
    assert said in f"{told.message} {told.hint}"


@pytest.mark.parametrize(
    ("given", "field", "hint"),
    [
        ({"aio": {"block_sise": 1}}, "aio.block_sise", 'did you mean "block_size"?'),
        ({"optimizer": {"params": {"beta3": 0.9}}}, "optimizer.params.beta3", 'did you mean "betas"?'),
        (
            {"optimizer": {"params": {"bias_correction": True}}},
            "optimizer.params.bias_correction",
            "leave it out, or write torch_adam: false beside it",
        ),
        (
            {"optimizer": {"params": {"torch_adam": False, "fused": True}}},
            "optimizer.params.fused",
            "leave it out, or write torch_adam: true beside it",
        ),
        ({"optimizer": {"params": {"max_grad_norm": 1.0}}}, "optimizer.params.max_grad_norm", "use train.grad_clip"),
        ({"flops_profiler": {"profile_steps": 1}}, "flops_profiler.profile_steps", 'did you mean "profile_step"?'),
    ],
)
def test_a_key_that_deepspeed_does_not_take_is_told_what_was_meant(
    tmp_path: Path, given: dict[str, Any], field: str, hint: str
) -> None:
    (found,) = problems(tmp_path, given)
    assert (found.field, found.hint) == (f"deepspeed.{field}", hint)


@pytest.mark.parametrize(
    "given",
    [
        {"zero_optimization": {"reduce_bucket_size": 5e8, "allgather_bucket_size": "500000000", "overlap_comm": 1}},
        {"zero_optimization": {"leaf_module": {"classes": []}, "offload_optimizer": None}},
        {"optimizer": {"type": "Adafactor", "params": {"eps": [None, 1e-3]}}},
        {"optimizer": {"type": "ASGD", "params": {"lambd": 1e-4}}},
        {"optimizer": {"params": {"betas": [0.9, 0.99], "foreach": None, "fused": False}}},
        {"data_types": {"keep_in_fp32_modules": "auto", "grad_accum_dtype": "bf16"}},
        {"communication_data_type": None, "steps_per_print": 1e3, "log_level": "INFO"},
        {"fp16": {"loss_scale": "128", "initial_scale_power": -3}},
    ],
)
def test_a_value_that_works_passes(tmp_path: Path, given: dict[str, Any]) -> None:
    assert not problems(tmp_path, given)
