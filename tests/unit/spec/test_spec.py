"""A spec that is right loads; one that is wrong says what is wrong, each with its line."""

from pathlib import Path
from textwrap import dedent

import pytest

from dscampaign.orchestrator.errors import EXIT_USAGE, SpecError, UserError
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.orchestrator.spec.slurm_section import parse_mem_mb, parse_time_min
from dscampaign.tests.support.spec_files import load_spec

MINIMAL = """\
name: tiny
train:
  model: gpt2
  dataset: wikitext
  global_batch: 16
  steps: 100
"""


@pytest.fixture
def write(tmp_path: Path) -> "Write":
    return Write(tmp_path / "spec.yaml")


class Write:
    """Writes a spec; what it loads or complains about is up to the test."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, text: str, *overrides: str) -> Spec:
        self.path.write_text(dedent(text))
        return load_spec(self.path, overrides)

    def problems(self, text: str, *overrides: str) -> list[tuple[int, str, str]]:
        """Line, field, and message with hint, of each problem."""
        with pytest.raises(SpecError) as caught:
            self.load(text, *overrides)
        assert caught.value.exit_code == EXIT_USAGE
        return [(p.line, p.field, f"{p.message} ({p.hint})") for p in caught.value.problems]

    def problem(self, text: str, *overrides: str) -> tuple[int, str, str]:
        """The only problem of the minimal spec with this text after it."""
        (only,) = self.problems(MINIMAL + dedent(text), *overrides)
        return only


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_spec(tmp_path / "absent.yaml")


def test_all_wrong_fields_come_at_once_then_all_that_contradict_each_other(write: Write) -> None:
    text = """\
        name: two words
        slurm:
          partitoin: h100
          time: 4h
        train:
          model: gpt2
          dataset: wikitext
          global_batch: 100
          steps: 100
          warmup_steps: 200
        matrix:
          zero_stage: [1, 4]
          lrr: [1]
        retries: 3
        """
    found = write.problems(text)
    assert [(line, field) for line, field, _ in found] == [
        (1, "name"),
        (3, "slurm.partitoin"),
        (4, "slurm.time"),
        (14, "retries"),
    ]
    found = write.problems(
        text.replace("two words", "two").replace("4h", "4:00:00").replace("retries: 3", "repeats: 3")
    )
    assert [(line, field) for line, field, _ in found] == [
        (3, "slurm.partitoin"),
        (8, "train.global_batch"),
        (10, "train.warmup_steps"),
        (12, "matrix.zero_stage[1]"),
        (13, "matrix.lrr"),
    ]


def test_a_password_in_the_spec_is_refused_but_not_one_from_the_environment(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "secret")
    [(_, field, words)] = write.problems(MINIMAL + "store: postgresql://me:secret@db/campaigns\n")
    assert field == "store"
    assert "password" in words
    assert write.load(MINIMAL + "store: postgresql://me:${PASSWORD}@db/campaigns\n").store


def test_an_error_reads_as_promised(write: Write) -> None:
    with pytest.raises(SpecError) as caught:
        write.load(MINIMAL + "slurm:\n    partitoin: h100\n")
    assert str(caught.value) == (
        f"{write.path}:8:5: error: slurm.partitoin: unknown field\n"
        "        partitoin: h100\n"
        "        ^\n"
        '  hint: did you mean "partition"?'
    )


@pytest.mark.parametrize(
    ("text", "line", "field", "words"),
    [
        ("slurm: {nodes: true}", 7, "slurm.nodes", "a valid integer"),
        ("slurm: {job-name: x}", 7, "slurm.job_name", "names the campaign and the run"),
        ("slurm: {requeue: true}", 7, "slurm.requeue", "none runs twice"),
        ("slurm: {time: 4h}", 7, "slurm.time", "4:00:00"),
        ('slurm: {partition: "a\\n#SBATCH --uid=0"}', 7, "slurm.partition", "line break"),
        ("slurm: {gpus_per_node: many}", 7, "slurm.gpus_per_node", "h100:8"),
        ("slurm: {gpus_per_node: 4, gres: 'gpu:4'}", 7, "slurm.gres", "together with gpus_per_node"),
        ("slurm: {time: 2}", 7, "slurm.time", "signal_delay_s 120"),
        ("then: {a: {command: [-m, x], slurm: {time: 2}}}", 7, "then.a.slurm.time", "signal_delay_s 120"),
        ("retry: {oom: -1}", 7, "retry.oom", "greater than or equal to 0"),
        ("retry: {rules: [{match: '(', action: stop}]}", 7, "retry.rules[0].match", "is not a regular expression"),
        ("retry: {rules: [{match: '\\w', action: stop}]}", 7, "retry.rules[0].match", "matches nearly every line"),
        ("env: {CAMPAIGN_RUN: x}", 7, "env.CAMPAIGN_RUN", "set by this program"),
        ("command: python -m train", 7, "command", "deepspeed launches"),
        ("code: none", 7, "code", "copy"),
        ("workdir: gone", 7, "workdir", "no such file or folder"),
        ("deepspeed: {train_batch_size: 8}", 7, "deepspeed.train_batch_size", "train.global_batch"),
        ("deepspeed: {scheduler: {type: WarmupLR}}", 7, "deepspeed.scheduler", "train.schedule"),
        ("deepspeed: {optimizer: {params: {lr: 1}}}", 7, "deepspeed.optimizer.params.lr", "train.lr"),
        ("store: mysql://host/name", 7, "store", "use sqlite:///FILE or postgresql://HOST/NAME"),
        ("matrix: 8", 7, "matrix", "expected a mapping of fields"),
        ("matrix: {train: [1]}", 7, "matrix.train[0]", "expected a mapping of fields"),
        ("matrix: {lrr: [1]}", 7, "matrix.lrr", 'did you mean "lr"'),
        ("matrix: {lr: []}", 7, "matrix.lr", "no values"),
        ("matrix: {lr: 1e-4}", 7, "matrix.lr", "write [0.0001]"),
        ("matrix: {lr: [1e-4, 2e-4, 1e-4]}", 7, "matrix.lr[2]", "is the same experiment as run lr-0.0001"),
        ("matrix: {setup: [[a]]}", 7, "matrix.setup", "slurm.setup or local.setup"),
        ("matrix: {name: [a]}", 7, "matrix.name", "cannot vary"),
        ("matrix: {lr: [1e-4, 2e-4]}\nbaseline: {lrr: 1e-4}", 8, "baseline", "is not a point of the matrix"),
        ("matrix: {exclude: [{lr: 1}]}", 7, "matrix.exclude", "nothing to exclude from"),
        ("matrix: {lr: [1e-4], exclude: [{lr: 1e-4}]}", 7, "matrix.exclude", "leaves no run"),
        ("matrix: {train.lr: [1e-3], lr: [1e-4, 1e-5]}", 7, "matrix.lr", "sets train.lr, as the axis train.lr does"),
        ("matrix: {micro_batch: [1, 3]}", 7, "matrix.micro_batch[1]", "use one of 1, 2"),
        ("matrix: {nodes: [1, 3]}", 7, "matrix.nodes[1]", "use 24"),
        ("max_runs: 3\nmatrix: {seed: [1, 2]}\nrepeats: 2", 8, "matrix", "expands to 4 runs"),
    ],
)
def test_each_mistake_is_explained(write: Write, text: str, line: int, field: str, words: str) -> None:
    found = write.problem(text)
    assert (found[0], found[1]) == (line, field)
    assert words in found[2]


def test_steps_or_epochs(write: Write) -> None:
    both = write.problems(MINIMAL + "  epochs: 2\n")
    neither = write.problems(MINIMAL.replace("  steps: 100\n", ""))
    assert "remove one" in both[0][2]
    assert "steps is required" in neither[0][2]
    assert expand(write.load(MINIMAL.replace("steps: 100", "epochs: 2")))[0].target_step is None


def test_the_built_in_training_needs_a_model_and_text_and_a_batch(write: Write) -> None:
    found = write.problems("name: x\ntrain: {steps: 1}\n")
    assert [message.split()[0] for _, _, message in found] == ["model", "dataset", "global_batch"]


def test_variables_are_filled_in_where_asked_for(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB", "vision")
    spec = write.load(
        MINIMAL + "store: postgresql://${LAB}@db/x\nenv: {TEAM: 'team-${LAB}'}\n"
        "slurm: {account: '${LAB}', setup: ['echo ${LAB}']}\nmatrix: {partition: ['${LAB}', other]}\n"
    )
    assert spec.store == "postgresql://vision@db/x"
    assert spec.env == {"TEAM": "team-vision"}
    assert spec.slurm.account == "vision"
    assert spec.slurm.setup == ("echo ${LAB}",)
    assert [run.config.slurm.partition for run in expand(spec)] == ["vision", "other"]


def test_a_variable_that_is_not_set(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    assert write.problem("slurm: {account: '${NOWHERE}'}") == (
        7,
        "slurm.account",
        "${NOWHERE} is not set (export NOWHERE, or write the value)",
    )


def test_paths_start_at_the_specs_folder(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write.path.parent
    (folder / "text").mkdir()
    (folder / "other").mkdir()
    (folder / "other" / "tokenizer.json").touch()
    monkeypatch.chdir("/")
    matrix = "matrix: {dataset: [text, other, hub]}"
    spec = write.load(MINIMAL.replace("wikitext", "text") + "  tokenizer: ./other\n" + matrix)
    assert spec.train.tokenizer == str(folder / "other")
    assert write.load(MINIMAL + "workdir: ..\n").workdir == str(folder.parent)
    assert [c.path for run in expand(spec) if (c := run.config.train.dataset)] == [
        str(folder / "text"),
        str(folder / "other"),
        "hub",
    ]
    assert [run.name for run in expand(spec)] == ["dataset-text", "dataset-other", "dataset-hub"]
    assert "no such file" in write.problems(MINIMAL.replace("wikitext", "./gone"))[0][2]
    assert "no such file" in write.problems(MINIMAL.replace("wikitext", "gone/text.jsonl"))[0][2]
    write.load(MINIMAL.replace("wikitext", "/only/on/the/nodes.txt"))
    local = MINIMAL.replace("wikitext", "/gone/text.txt") + "executor: local\n"
    assert "no such file" in write.problems(local)[0][2]


def test_yaml_traps_do_what_people_mean(write: Write) -> None:
    spec = write.load(MINIMAL + "  lr: 1e-4\n  pretrained: yes\n  compile: off\nslurm: {time: 4:00:00, account: 08}\n")
    assert (spec.train.lr, spec.train.pretrained, spec.train.compile) == (1e-4, True, False)
    assert (spec.slurm.time_min, spec.slurm.account) == (240, "08")
    assert "'bf16', 'fp16' or 'fp8'" in write.problems(MINIMAL + "  precision: no\n")[0][2]
    assert 'did you mean "bf16"?' in write.problems(MINIMAL + "  precision: bf61\n")[0][2]


def test_ranks_need_a_gpu_each_where_this_machine_has_any(write: Write) -> None:
    text = MINIMAL + "executor: local\nranks_per_node: 2\nlocal: {parallel: 2}\n"
    write.load(text)
    assert "4 ranks of 2 runs at the same time need as many GPUs, this machine has 2" in problem_with(write, text, 2)
    assert "2 ranks need as many GPUs, this machine has 1" in problem_with(write, text.replace("l: 2}", "l: 1}"), 1)
    load_spec(write.path, local_gpus=2)
    write.load(text + "env: {DS_ACCELERATOR: cpu}\n")
    load_spec(write.path, local_gpus=1)


def problem_with(write: Write, text: str, gpus: int) -> str:
    write.path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_spec(write.path, local_gpus=gpus)
    return caught.value.message


def test_overrides(write: Write) -> None:
    spec = write.load(MINIMAL, "train.steps=7", "nodes=2", "slurm.partition=h100", "name=other", "matrix.lr=[1e-3]")
    assert (spec.train.steps, spec.slurm.nodes, spec.slurm.partition, spec.name) == (7, 2, "h100", "other")
    assert expand(spec)[0].config.train.lr == 1e-3


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("90:30", 91), ("4:00:00", 240), ("2-12", 3600), ("1-0:30", 1470), ("1-01:00:01", 1501)],
)
def test_slurm_times(text: str, minutes: int) -> None:
    assert parse_time_min(text) == minutes


@pytest.mark.parametrize(("text", "mem_mb"), [("512", 512), ("64G", 65536), ("1T", 1 << 20), ("100K", 1), ("0", 0)])
def test_slurm_memory(text: str, mem_mb: int) -> None:
    assert parse_mem_mb(text) == mem_mb


@pytest.mark.parametrize(
    ("slurm", "gpus"),
    [
        ("gpus_per_node: 4", 4),
        ("gpus_per_node: h100:2", 2),
        ("gpus_per_node: 0", 0),
        ("gres: 'gpu:a100:8,nvme:1'", 8),
        ("gres: 'gpu:1g.10gb+me:2(S:0-1),nvme:1,gpu:2'", 4),
        ("gres: 'gres/gpu:h100=8'", 8),
        ("gres: 'nvme:2', gpus_per_node: 0", 0),
    ],
)
def test_gpus_of_a_node(write: Write, slurm: str, gpus: int) -> None:
    assert write.load(MINIMAL + f"slurm: {{{slurm}}}").slurm.gpus == gpus


def test_a_sample_longer_than_a_model_that_is_known_by_name_is_an_error(write: Write) -> None:
    [(line, field, words)] = write.problems("""\
        name: long
        train: {model: gpt2, dataset: d, global_batch: 8, steps: 1}
        matrix:
          seq_len: [1024, 2048]
        """)
    assert (line, field) == (4, "matrix.seq_len[1]")
    assert "2048 is more than the 1024 positions of gpt2" in words
