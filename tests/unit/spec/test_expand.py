"""What a matrix means: points, names, digests."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dscampaign.db.storable import to_json
from dscampaign.orchestrator.errors import InvalidSpec
from dscampaign.orchestrator.spec.expand import Run, SharedSections, expand
from dscampaign.orchestrator.spec.matrix import run_name
from dscampaign.orchestrator.spec.model import RunConfig, Spec

TRAIN = {"model": "gpt2", "dataset": "wikitext", "global_batch": 16, "steps": 100}


def spec(matrix: dict[str, Any] | None = None, **fields: Any) -> Spec:
    train = TRAIN | fields.pop("train", {})
    return Spec.model_validate({"name": "x", "train": train, "matrix": matrix or {}, **fields})


def runs(matrix: dict[str, Any] | None = None, **fields: Any) -> dict[str, Run]:
    return {run.name: run for run in expand(spec(matrix, **fields))}


def hashes(matrix: dict[str, Any] | None = None, **fields: Any) -> set[str]:
    return {run.config_hash for run in runs(matrix, **fields).values()}


def test_axes_multiply_in_order() -> None:
    found = runs({"zero_stage": [0, 3], "train.precision": ["bf16", "fp32"]})
    assert list(found) == [
        "zero_stage-0_precision-bf16",
        "zero_stage-0_precision-fp32",
        "zero_stage-3_precision-bf16",
        "zero_stage-3_precision-fp32",
    ]
    last = found["zero_stage-3_precision-fp32"]
    assert last.params == {"zero_stage": 3, "precision": "fp32"}
    assert (last.config.train.zero_stage, last.config.train.precision) == (3, "fp32")


def test_a_whole_section_can_vary() -> None:
    configs = [{"label": "plain"}, {"label": "overlap", "zero_optimization": {"overlap_comm": True}}]
    found = runs({"deepspeed": configs}, deepspeed={"dump_state": True})
    assert list(found) == ["deepspeed-plain", "deepspeed-overlap"]
    overlap = found["deepspeed-overlap"].config
    assert overlap.deepspeed == {"dump_state": True, "zero_optimization": {"overlap_comm": True}}


def test_linked_axes_set_fields_together() -> None:
    sizes = [{"label": "small", "model": "gpt2", "lr": 1e-3}, {"model": "gpt2-xl", "train.lr": 1e-4}]
    found = runs({"size": sizes})
    assert list(found) == ["size-small", "model-gpt2-xl_lr-0.0001"]
    assert found["size-small"].params == {"size": "small", "model": "gpt2", "lr": 1e-3}
    assert [run.config.train.lr for run in found.values()] == [1e-3, 1e-4]


def test_exclude_removes_what_matches_in_part() -> None:
    found = runs({"zero_stage": [0, 1], "lr": [1e-3, 1e-4], "exclude": [{"train.zero_stage": 1, "lr": 1e-3}]})
    assert list(found) == ["zero_stage-0_lr-0.001", "zero_stage-0_lr-0.0001", "zero_stage-1_lr-0.0001"]


def test_include_adds_to_points_that_it_does_not_contradict() -> None:
    matrix = {"zero_stage": [0, 3], "include": [{"zero_stage": 3, "micro_batch": 1}, {"slurm.time": "8:00:00"}]}
    found = runs(matrix)
    assert [run.config.train.micro_batch for run in found.values()] == [2, 1]
    assert {run.config.slurm.time for run in found.values()} == {"8:00:00"}
    assert list(found) == list(runs({"zero_stage": [0, 3]}))
    later = runs({"zero_stage": [0, 3], "include": [{"lr": 1e-3}, {"zero_stage": 3, "lr": 2e-3}]})
    assert [run.config.train.lr for run in later.values()] == [1e-3, 2e-3]


def test_include_that_fits_nowhere_is_a_point_of_its_own() -> None:
    found = runs(
        {"zero_stage": [0], "include": [{"zero_stage": 2, "micro_batch": 1}, {"label": "big", "micro_batch": 1}]}
    )
    assert list(found) == ["zero_stage-0", "zero_stage-2_micro_batch-1", "big"]
    assert found["big"].params == {"label": "big", "micro_batch": 1}


def test_repeats_have_their_own_seeds_and_the_first_keeps_its_name() -> None:
    once, thrice = runs({"lr": [1e-3]}), runs({"lr": [1e-3]}, repeats=3)
    assert list(thrice) == ["lr-0.001", "lr-0.001-r1", "lr-0.001-r2"]
    assert [run.config.train.seed for run in thrice.values()] == [42, 43, 44]
    assert thrice["lr-0.001"] == once["lr-0.001"]


@pytest.mark.parametrize(
    "fields",
    [
        {"slurm": {"time": "9:00:00", "partition": "other", "mem": "1T"}},
        {"retry": {"oom": 0}, "max_runs": 7, "local": {"parallel": 2}},
        {
            "train": {
                "checkpoint_every": 5,
                "keep_checkpoints": 9,
                "keep_best": True,
                "eval_every": 5,
                "eval_batches": 1,
                "log_every": 2,
            }
        },
        {"telemetry_s": 0.5},
        {"train": {"lr": 3e-4, "schedule": "cosine", "zero_stage": 0}, "ranks_per_node": 8},
    ],
)
def test_a_digest_is_of_the_experiment_alone(fields: dict[str, Any]) -> None:
    assert hashes(**fields) == hashes()


@pytest.mark.parametrize(
    "fields",
    [
        {"train": {"lr": 1e-4}},
        {"train": {"steps": 101}},
        {"slurm": {"nodes": 2}},
        {"ranks_per_node": 4},
        {"python": "/other/python"},
        {"deepspeed": {"zero_optimization": {"overlap_comm": True}}},
        {"train": {"dataset": {"path": "wikitext", "name": "other"}}},
    ],
)
def test_a_digest_changes_with_the_experiment(fields: dict[str, Any]) -> None:
    assert hashes(**fields) != hashes()


def test_a_digest_is_the_same_in_every_version() -> None:
    # A changed digest orphans every checkpoint that users have: change this only with a migration.
    assert hashes() == {"00d547ba85297c78"}


def test_the_same_experiment_twice_is_an_error() -> None:
    with pytest.raises(InvalidSpec, match=r"same experiment as run lr-0\.0003"):
        expand(spec({"lr": [3e-4], "include": [{"label": "again", "lr": 3e-4}]}))
    with pytest.raises(InvalidSpec, match="same experiment"):
        expand(spec({"slurm.time": ["1:00:00", "2:00:00"]}))


def test_a_commands_own_parameters() -> None:
    found = runs(
        {"depth": [2, 4], "include": [{"depth": 4, "width": 9}, {"depth": 2, "width": 8}]},
        command="-m my.train --depth {depth} --width={width} --seed {seed} --name {run} '{\"json\": 1}'",
        env={"DEPTH": "d{depth}"},
    )
    assert list(found) == ["depth-2", "depth-4"]
    four = found["depth-4"]
    assert four.config.command is not None
    assert four.config.command[2:] == ("--depth", "4", "--width=9", "--seed", "42", "--name", "depth-4", '{"json": 1}')
    assert four.config.env == {"DEPTH": "d4"}
    assert len({run.config_hash for run in found.values()}) == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("-m t {depht}", "is not defined"),
        ("-m t [--resume {resume_from} --x", "does not close"),
        ("-m t ${HOME}", "is not defined"),
    ],
)
def test_placeholders_that_cannot_be_filled(command: str, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        expand(spec(command=command))


def test_values_of_an_attempt_stay_for_its_launch() -> None:
    command = (
        "-m t --b {micro_batch} --out {checkpoint_dir}/{run} [--r {resume_from}] {{lr}} [0.9,{beta2}] 'a:{b:{lr}}'"
    )
    one = runs({"micro_batch": [1, 2]}, command=command)["micro_batch-2"]
    kept = ("--b", "{micro_batch}", "--out", "{checkpoint_dir}/micro_batch-2", "[--r", "{resume_from}]", "{{lr}}")
    assert one.config.command == ("-m", "t", *kept, "[0.9,0.95]", "a:{b:0.0003}")


@pytest.mark.parametrize(
    ("value", "words"),
    [(True, ["--flag"]), (False, []), (None, []), ("", []), ("{lr}", ["--flag", "{{lr}}"]), (0, ["--flag", "0"])],
)
def test_an_option_is_left_out_if_its_value_is_empty(value: object, words: list[str]) -> None:
    for command in ("-m t [--flag {x}] end", ["-m", "t", "[--flag {x}]", "end"]):
        [run] = runs({"x": [value]}, command=command).values()
        assert list(run.config.command or ()) == ["-m", "t", *words, "end"]


@pytest.mark.parametrize("size", ["micro_batch", "accumulation"])
def test_a_script_that_manages_its_own_batches_has_no_micro_batch_to_fill_in(size: str) -> None:
    with pytest.raises(InvalidSpec, match=f"{{{size}}} has no value"):
        expand(Spec(name="x", command=f"-m t {{{size}}}"))  # type: ignore[arg-type]


def test_a_parameter_that_the_command_does_not_use() -> None:
    with pytest.raises(InvalidSpec, match=r"neither a field nor a \{placeholder\}"):
        expand(spec({"depth": [1, 2]}, command="-m t"))


def test_every_wrong_point_is_reported_at_its_value() -> None:
    with pytest.raises(InvalidSpec) as caught:
        expand(spec({"zero_stage": [0, 4], "micro_batch": [3, 2, 5], "nodes": [1]}))
    assert {f.places[0] for f in caught.value.findings} == {
        ("matrix", "zero_stage", 1),
        ("matrix", "micro_batch", 0),
        ("matrix", "micro_batch", 2),
    }


def test_a_matrix_without_end_is_refused_at_once() -> None:
    values = [i / 1000 for i in range(1, 100)]
    with pytest.raises(InvalidSpec, match="970299 combinations"):
        expand(spec({"lr": values, "beta1": values, "beta2": values}))


def test_local_runs_use_the_gpus_of_the_machine() -> None:
    local = spec(executor="local", slurm={"nodes": 4})
    assert [expand(local, gpus)[0].world_size for gpus in (0, 4)] == [1, 4]
    (run,) = expand(spec(executor="local", ranks_per_node=2), 8)
    assert (run.config.nodes, run.world_size) == (1, 2)


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ([("model", "org/name")], "model-org-name"),
        ([("data", "/a/b/text")], "data-text"),
        ([("lr", 1e-05), ("on", True), ("x", None)], "lr-1e-05_on-true_x-none"),
    ],
)
def test_names(labels: list[tuple[str, Any]], name: str) -> None:
    assert run_name(labels, "", "0" * 16) == name


scalars = st.one_of(st.text(max_size=150), st.integers(), st.booleans(), st.floats(allow_nan=False), st.none())


@given(labels=st.lists(st.tuples(st.text(max_size=20), scalars), max_size=8), repeat=st.integers(0, 999))
def test_every_name_is_safe_as_a_folder(labels: list[tuple[str, Any]], repeat: int) -> None:
    name = run_name(labels, f"-r{repeat}" if repeat else "", "0123456789abcdef")
    assert 0 < len(name) <= 100
    assert Path(name).name == name
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._=-")
    assert name[0] not in ".-"


# Configurations that share their equal sections are those that pydantic alone would have read

GIVEN: list[dict[str, Any]] = [
    {},
    {"train": {"lr": 0.1}, "slurm": {"nodes": 2}},
    {"train": {"lr": 0.2}, "slurm": {"nodes": 2}, "command": "train.py --x 1"},
    {"train": {"lr": 1}, "retry": {"crash": 1}, "env": {"A": 1}},
    {"train": {"lr": 1.0}, "forward": ["wandb"]},
]


def test_equal_sections_are_one_object_and_nothing_else_changes() -> None:
    sections = SharedSections()
    read = [sections.read(data) for data in GIVEN]
    assert read == [RunConfig.model_validate(data) for data in GIVEN]
    assert read[1].slurm is read[2].slurm
    assert read[1].train is not read[2].train
    assert [config.model_fields_set for config in read] == [set(data) for data in GIVEN]


@pytest.mark.parametrize("first", [1, True, "1"])
def test_values_that_are_only_equal_are_told_apart(first: object) -> None:
    """`compile: 1` is a mistake, however often `compile: true` was right."""
    sections = SharedSections()
    others = [value for value in (1, True, "1") if value is not first]
    for value in (first, *others):
        data = {"train": {"compile": value}}
        try:
            expected: object = RunConfig.model_validate(data)
        except ValidationError as error:
            expected = str(error)
        try:
            found: object = sections.read(data)
        except ValidationError as error:
            found = str(error)
        assert found == expected


def test_the_text_of_a_configuration_is_read_as_it_was_written() -> None:
    """Also a key of that name in another section, and text that looks like one."""
    nested: list[dict[str, Any]] = [{"deepspeed": {"command": ["x"]}}, {"deepspeed": {"a": '"command": ["x"]'}}]
    commands: list[dict[str, Any]] = [{"command": ["a.py", '"command": [', "\u00e4]"]}, {"command": ["b.py"]}, {}]
    written, read = SharedSections(), SharedSections()
    for config in [written.read({**own, **words}) for own in (*nested, {}, *nested) for words in commands]:
        text = written.text_of(config)
        assert text == to_json(config.model_dump(mode="json", exclude_none=True))
        assert read.read_stored(text) == config
