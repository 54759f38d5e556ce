"""Mistakes in a spec are told once, where they are, in words of the spec."""

from pathlib import Path

import pytest

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.errors import Problem, SpecError, UserError
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.tests.support.spec_files import load_spec

OWN = "name: x\nexecutor: local\n"
BUILT_IN = "name: x\ntrain: {model: gpt2, tokenizer: bytes, dataset: wikitext, steps: 4, global_batch: 8}\n"


def problems(folder: Path, text: str, *overrides: str) -> list[Problem]:
    path = folder / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_spec(path, overrides)
    return caught.value.problems


def test_a_variable_that_is_not_set_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOPE", raising=False)
    text = BUILT_IN.replace("wikitext", '"${NOPE}/text.txt"') + 'dir: ${NOPE}\nslurm: {time: "${NOPE}"}\n'
    (problem,) = problems(tmp_path, text)
    assert (problem.field, problem.message) == ("train.dataset", "${NOPE} is not set")


@pytest.mark.parametrize(
    ("axis", "hint"),
    [
        ("include: {zero_stage: 3, offload: none}", "write [{zero_stage: 3, offload: none}]"),
        ("precision: bf16", "write [bf16]"),
        ('dataset: "a]b"', "write ['a]b']"),
    ],
)
def test_a_hint_is_yaml(tmp_path: Path, axis: str, hint: str) -> None:
    (problem,) = problems(tmp_path, f"{BUILT_IN}matrix: {{{axis}}}\n")
    assert problem.hint == hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("  max_steps: 1", 'did you mean "train.steps"?'),
        ("matrix: {train.micro_batches: [8, 16]}", 'did you mean "train.micro_batch"?'),
        ("matrix: {foo: [1, 2]}", "name a field (train.lr), or use {foo} in `command`"),
        ("matrix: {grösse: [1, 2]}\nenv: {A: '{größe}'}", 'did you mean "größe"?'),
        ("  lr: [6e-4, 3e-4]", "to compare several values, list them under `matrix`, as train.lr"),
        ("  strategy: ZeRO3", 'did you mean "zero3"?'),
        ("matrix: {zero_stage: [0, 1], exclude: [{zero_stag: 1}]}", "name axes, each with one of its values"),
    ],
)
def test_a_hint_names_what_is_meant(tmp_path: Path, text: str, hint: str) -> None:
    train = BUILT_IN.replace("train: {", "train:\n  ").replace(", ", "\n  ").replace("}", "")
    (problem,) = problems(tmp_path, f"{train}{text}\n")
    assert (problem.hint or "").startswith(hint)


@pytest.mark.parametrize("steps", ["1e3", "1000.0", "1_000"])
def test_a_whole_number_in_any_form(tmp_path: Path, steps: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"{OWN}command: [-m, x, '{{steps}}']\nslurm: {{nodes: 1e0}}\ntrain: {{steps: {steps}}}\n")
    assert load_spec(path).train.steps == 1000
    path.write_text(f"{OWN}command: [-m, x, '{{steps}}']\nmatrix: {{steps: [{steps}, 2e3]}}\n")
    runs = expand(load_spec(path))
    assert [(run.target_step, run.config.command) for run in runs] == [(n, ("-m", "x", str(n))) for n in (1000, 2000)]


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("train.steps", "expected FIELD=VALUE", "write --set train.steps=VALUE"),
        ("trian.steps=3", "unknown field", 'did you mean "train.steps"?'),
        ("repeat=3", "unknown field", 'did you mean "repeats"?'),
        ("setup=[a]", "unknown field", "write slurm.setup or local.setup"),
        ("train.lr=0.1", "is set by the axis matrix.lr", "write --set 'matrix.lr=[0.1]'"),
        ("slurm.nodes=2", "is set by the axis matrix.slurm.nodes", "write --set 'matrix.slurm.nodes=[2]'"),
    ],
)
def test_overrides_without_effect(tmp_path: Path, override: str, message: str, hint: str) -> None:
    axes = "matrix: {lr: [1, 2], slurm.nodes: [1], kind: [{precision: bf16, beta1: 0.5}, {precision: fp16}]}\n"
    (problem,) = problems(tmp_path, BUILT_IN + axes, override)
    assert (problem.message, problem.hint) == (message, hint)


@pytest.mark.parametrize(
    ("text", "field", "message", "hint"),
    [
        ("slurm: {gres: 'mps:100'}", "slurm.gres", "mps:100 does not give a number of GPUs", "write gpu:8"),
        ("ranks_per_node: 16", "ranks_per_node", "16 ranks need as many GPUs, a node has 8", "use at most 8, or"),
        (
            "matrix: {ranks_per_node: [4, 16]}",
            "matrix.ranks_per_node[1]",
            "16 ranks need as many GPUs",
            "use at most 8",
        ),
        (
            "slurm: {gpus_per_run: 3}\nranks_per_node: 1",
            "slurm.gpus_per_run",
            "3 is not an equal part of 8 GPUs per node",
            "use 1, 2, 4, 8",
        ),
        (
            "slurm: {gpus_per_node: 0, gpus_per_run: 1}",
            "slurm.gpus_per_run",
            "1 is not an equal part of 0 GPUs per node",
            "set slurm.gpus_per_node to",
        ),
        (
            "slurm: {gpus_per_run: 1, nodes: 2}",
            "slurm.gpus_per_run",
            "shares a node between runs, but a run has 2 nodes",
            "leave out gpus_per_run",
        ),
        (
            "slurm: {gpus_per_run: 2}\ncontainer: {image: nvcr.io#a/b, runtime: pyxis}",
            "slurm.gpus_per_run",
            "cannot share a node's GPUs with pyxis",
            "use apptainer",
        ),
        ("slurm: {gpus_per_run: 2}\nranks_per_node: 4", "ranks_per_node", "a run has 2", "use at most 2"),
    ],
)
def test_what_a_machine_is_asked_for_is_said_once_and_in_full(
    tmp_path: Path, text: str, field: str, message: str, hint: str
) -> None:
    built_in = BUILT_IN.replace("global_batch: 8", "global_batch: 16")
    (problem,) = problems(tmp_path, f"{built_in}{text}\n")
    assert problem.field == field
    assert problem.message.startswith(message) or message in problem.message
    assert hint in (problem.hint or "")


def test_a_spec_that_is_not_utf8_has_its_place(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes("name: x\n# f\xfcr\n".encode("latin-1"))
    for read in (load_spec, lambda spec: locate(PlaceOptions(), [str(spec)])):
        with pytest.raises(SpecError) as caught:
            read(path)
        (problem,) = caught.value.problems
        assert (problem.line, problem.column, problem.message) == (2, 4, "not UTF-8 text")


def test_a_name_that_no_file_can_have_is_an_error() -> None:
    with pytest.raises(UserError, match="null byte"):
        load_spec("a\0b")


@pytest.mark.parametrize(
    ("text", "field", "message", "hint"),
    [
        ("setup: [module load a]", "setup", "unknown field", "write slurm.setup or local.setup"),
        (
            "container: {runtime: pyxis, image: a#b, python: x}",
            "container.python",
            "unknown field",
            'did you mean "python" at the top level?',
        ),
        ("retry: {nodes: 2}", "retry.nodes", "unknown field", 'did you mean "slurm.nodes"?'),
        ("notify: mail", "notify", "expected a mapping of fields", ""),
        ("matrix: {train: {lr: [1, 2]}}", "matrix.train", "expected a list of values", "write train.lr"),
        ("chdir: /x", "chdir", "unknown field", 'did you mean "workdir"?'),
        ("env: {CUDA_VISIBLE_DEVICES: 0,1}", "env.1", "'1' is not a valid variable name", "use letters, digits"),
        (
            "command: cd a && b.py",
            "command",
            "contains &&",
            "lines before the script belong in `setup`, a folder in `workdir`",
        ),
        ("command: OMP_NUM_THREADS=1 b.py", "command", "starts with OMP_", "write `env: {OMP_NUM_THREADS: 1}`"),
        ("command: mpirun b.py", "command", "mpirun is not a Python script", "start with a Python script"),
    ],
)
def test_mistakes_of_a_first_day(tmp_path: Path, text: str, field: str, message: str, hint: str) -> None:
    (problem,) = problems(tmp_path, f"{BUILT_IN}{text}\n")
    assert problem.field == field
    assert problem.line >= 3
    assert problem.message.startswith(message)
    assert (problem.hint or "").startswith(hint)


# -- what only the node would have found -------------------------------------------------------------------------


def test_a_model_that_no_node_could_find(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, BUILT_IN.replace("gpt2", "a/b/c"))
    assert problem.field == "train.model"
    assert "is neither here nor a name on the hub" in problem.message
    assert problem.hint == "paths start at the spec's folder"


@pytest.mark.parametrize("field", ["train.model", "workdir"])
def test_a_file_is_no_folder(tmp_path: Path, field: str) -> None:
    (tmp_path / "file").touch()
    (problem,) = problems(tmp_path, BUILT_IN, f"{field}=file")
    assert problem.field == field
    assert str(tmp_path / "file") in problem.message


def test_a_configuration_has_no_weights_to_start_from(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, BUILT_IN, "train.model={model_type: gpt2}", "pretrained=true")
    assert (problem.field, problem.hint) == (
        "train.pretrained",
        "name the model that has them, or leave pretrained out",
    )


@pytest.mark.parametrize(
    ("axis", "field"),
    [
        ("env.A B: [1]", "matrix.env.A B[0]"),
        ("env.A.B: [1, 2]", "matrix.env.A.B"),
        ("dataset: [wikitext, a b]", "matrix.dataset[1]"),
    ],
)
def test_what_an_axis_makes_wrong_around_it_is_told_there(tmp_path: Path, axis: str, field: str) -> None:
    (problem,) = problems(tmp_path, f"{BUILT_IN}matrix:\n  {axis}\n")
    assert (problem.line, problem.field) == (4, field)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("path: texts/train.txt, split: train", "train.txt is a file, which has no splits"),
        ('path: texts/train.txt, split: "train[:20 %]"', r"train\[:20 %\] is not a slice"),
        ("path: texts, split: train, eval_split: valid", None),
        ("path: texts, split: 'train[:20%]'", None),
        ("path: wikitext, split: 'train[:20%]+test[1:]'", None),
        ("path: wikitext, split: 'train[abc]'", r"train\[abc\] is not a slice"),
        ("path: texts, max_tokens: 3", "3 are less than a sample of"),
        ("path: texts, name: en", "en is ignored: local data has no configurations"),
    ],
)
def test_local_data_have_the_splits_that_a_spec_names(fields: str, message: str | None, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "texts" / name).write_text("a\n")
    path = tmp_path / "spec.yaml"
    path.write_text(BUILT_IN.replace("dataset: wikitext", f"dataset: {{{fields}}}"))
    if message is None:
        load_spec(path)
        return
    with pytest.raises(SpecError, match=message):
        load_spec(path)


@pytest.mark.parametrize(
    ("search", "field", "hint"),
    [
        ("5", "search", None),
        ("{parameters: {}}", "search.parameters", None),
        ("{parameters: {x: {uniform: [1, 0]}}}", "search.parameters.x", "write {uniform: [LOW, HIGH]}"),
        ("{parameters: {x: {uniform: [0, .inf]}}}", "search.parameters.x", "write {uniform: [LOW, HIGH]}"),
        ("{parameters: {x: {log_uniform: [1, .inf]}}}", "search.parameters.x", "write {log_uniform: [LOW, HIGH]}"),
        ("{parameters: {x: {int: [0, .inf]}}}", "search.parameters.x", "write {int: [LOW, HIGH]}"),
        ("{parameters: {x: {uniform: [-1.0e+308, 1.0e+308]}}}", "search.parameters.x", "write {uniform: [LOW, HIGH]}"),
        ("{parameters: {x: {choice: [.nan, 1]}}}", "search.parameters.x", "write {choice: [A, B]}"),
        ("{parameters: {x: {int: [0, 9]}}, budget: 5 hours}", "search.budget", None),
        ("{parameters: {x: {int: [0, 9]}}, budget: true}", "search.budget", None),
    ],
)
def test_a_mistake_in_a_search_has_one_error(tmp_path: Path, search: str, field: str, hint: str | None) -> None:
    (tmp_path / "train.py").write_text("")
    (problem,) = problems(tmp_path, f"{OWN}command: train.py {{x}}\nsearch: {search}\n")
    assert (problem.field, problem.hint) == (field, hint)


def test_an_axis_that_is_no_mapping_has_one_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (problem,) = problems(tmp_path, f"{OWN}command: train.py {{x}}\nmatrix: 5\n")
    assert problem.field == "matrix"


@pytest.mark.parametrize("then", ["r1: {command: t.py}", "b: {command: t.py}"])
def test_a_follow_up_has_a_name_of_its_own(tmp_path: Path, then: str) -> None:
    (tmp_path / "t.py").write_text("")
    text = f"{OWN}command: t.py {{x}}\nmatrix: {{x: [a, a-b, a-c]}}\nthen: {{{then}}}\n"
    (problem,) = problems(tmp_path, text)
    assert (problem.field[:5], problem.hint) == ("then.", "choose another name")


def test_the_name_of_a_stage_is_shorter_than_that_of_a_campaign(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("")
    (problem,) = problems(tmp_path, f"{OWN}command: t.py\nthen: {{c-d: {{command: t.py}}}}\n")
    assert problem.message.startswith("expected lower-case letters, digits, _ ")
