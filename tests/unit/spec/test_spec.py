"""A spec that is right loads; one that is wrong says everything that is wrong, each with its line."""

from pathlib import Path
from textwrap import dedent

import pytest

from dscampaign.orchestrator.errors import EXIT_USAGE, SpecError, UserError
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.orchestrator.spec.load import load_spec
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.orchestrator.spec.slurm_section import parse_mem_mb, parse_time_min
from dscampaign.orchestrator.spec.yaml_source import load

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


def test_the_minimal_spec_loads(write: Write) -> None:
    spec = write.load(MINIMAL)
    assert (spec.name, spec.executor, spec.dir, spec.repeats) == ("tiny", "slurm", "./campaign", 1)
    assert spec.train.dataset is not None
    assert spec.train.dataset.path == "wikitext"
    assert (spec.slurm.gpus, spec.slurm.time_min) == (8, 60)


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_spec(tmp_path / "absent.yaml")


def test_all_errors_come_at_once_in_the_order_of_their_lines(write: Write) -> None:
    found = write.problems("""\
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
        """)
    assert [(line, field) for line, field, _ in found] == [
        (1, "name"),
        (3, "slurm.partitoin"),
        (4, "slurm.time"),
        (8, "train.global_batch"),
        (10, "train.warmup_steps"),
        (12, "matrix.zero_stage[1]"),
        (13, "matrix.lrr"),
        (14, "retries"),
    ]


@pytest.mark.parametrize(
    ("matrix", "fields"),
    [
        ("{train.model: [gpt2, gpt2]}", ["matrix.train.model[1]"]),
        ("{train.model: [gpt2, gpt2, 3]}", ["matrix.train.model[1]", "matrix.train.model[2]"]),
        ("{train.model: gpt2}", ["matrix.train.model"]),
        ("{train.model: gpt2, lrr: [1]}", ["matrix.train.model", "matrix.lrr"]),
        ("{train.model: []}", ["matrix.train.model"]),
        ("{train.model: [], lr: [1e-4]}", ["matrix.train.model"]),
        ("{size: [{model: gpt2, label: a}, {model: gpt2, label: a}]}", ["matrix.size[1]"]),
        ("{include: [{model: gpt2}, 3]}", ["matrix.include[1]"]),
        ("{include: [3, {model: gpt2, lr: -1}]}", ["matrix.include[0]", "matrix.include[1].lr"]),
        ("{include: [3]}", ["matrix.include[0]"]),
    ],
)
def test_what_is_wrong_in_the_matrix_hides_no_field_that_it_sets(write: Write, matrix: str, fields: list[str]) -> None:
    found = write.problems(MINIMAL.replace("  model: gpt2\n", "") + f"matrix: {matrix}\n")
    assert [field for _, field, _ in found] == fields


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
        ("slurm: {nodes: true}", 7, "slurm.nodes", "a whole number"),
        ("slurm: {nodes: '2'}", 7, "slurm.nodes", "a whole number"),
        ("slurm: {job-name: x}", 7, "slurm.job_name", "names the campaign and the run"),
        ("slurm: {requeue: true}", 7, "slurm.requeue", "none runs twice"),
        ("slurm: {time: 4h}", 7, "slurm.time", "4:00:00"),
        ("slurm: {mem: lots}", 7, "slurm.mem", "64G"),
        ('slurm: {partition: "a\\n#SBATCH --uid=0"}', 7, "slurm.partition", "line break"),
        ('slurm: {mail-user: "a\\nb"}', 7, "slurm.mail_user", "line break"),
        ('slurm: {setup: ["a\\nb"]}', 7, "slurm.setup[0]", "line break"),
        ("slurm: {gpus_per_node: many}", 7, "slurm.gpus_per_node", "h100:8"),
        ("slurm: {gpus_per_node: '2:2'}", 7, "slurm.gpus_per_node", "h100:8"),
        ("slurm: {gpus_per_node: 4, gres: 'gpu:4'}", 7, "slurm.gres", "together with gpus_per_node"),
        ("slurm: {time: 2}", 7, "slurm.time", "signal_delay_s 120"),
        ("slurm: {time: 10, signal_delay_s: 600}", 7, "slurm.signal_delay_s", "10 minutes"),
        ("retry: {oom: -1}", 7, "retry.oom", "at least 0"),
        ("telemetry_s: -1.0", 7, "telemetry_s", "at least 0"),
        ("telemetry_s: 0.05", 7, "telemetry_s", "is below 0.1 s"),
        ("telemetry_s: '1'", 7, "telemetry_s", "a number"),
        ("retry: {rules: [{match: '(', action: stop}]}", 7, "retry.rules[0].match", "is not a regular expression"),
        ("retry: {rules: [{match: '.+', action: stop}]}", 7, "retry.rules[0].match", "matches nearly every line"),
        ("retry: {rules: [{match: '\\w', action: stop}]}", 7, "retry.rules[0].match", "matches nearly every line"),
        ("env: {CAMPAIGN_RUN: x}", 7, "env.CAMPAIGN_RUN", "set by this program"),
        ("env: {a b: x}", 7, "env.a b", "not a valid variable name"),
        ("command: python -m train", 7, "command", "deepspeed launches"),
        ("command: ./train.py", 7, "command", "no such script"),
        ("code: none", 7, "code", "copy"),
        ("workdir: gone", 7, "workdir", "no such file or folder"),
        ("command: 'a \"b'", 7, "command", "does not split"),
        ("deepspeed: {train_batch_size: 8}", 7, "deepspeed.train_batch_size", "train.global_batch"),
        ("deepspeed: {bf16: {enabled: 1}}", 7, "deepspeed.bf16.enabled", "expected true or false"),
        ("deepspeed: {optimizer: AdamW}", 7, "deepspeed.optimizer", "expected a mapping"),
        (
            "deepspeed: {zero_optimization: {reduce_bucket_size: x}}",
            7,
            "deepspeed.zero_optimization.reduce_bucket_size",
            "expected a whole number",
        ),
        ("matrix: {deepspeed.optimizer.params: [1]}", 7, "matrix.deepspeed.optimizer.params[0]", "expected a mapping"),
        ("deepspeed: {scheduler: {type: WarmupLR}}", 7, "deepspeed.scheduler", "train.schedule"),
        ("deepspeed: {optimizer: {params: {lr: 1}}}", 7, "deepspeed.optimizer.params.lr", "train.lr"),
        ("deepspeed: {optimizer: AdamW}", 7, "deepspeed.optimizer", "a mapping"),
        ("deepspeed: {gradient_clipping: auto}", 7, "deepspeed.gradient_clipping", "auto"),
        ("deepspeed: {zero_optimization: {stage: 7}}", 7, "deepspeed.zero_optimization.stage", "at most 3"),
        ("store: mysql://host/name", 7, "store", "use sqlite:///FILE or postgresql://HOST/NAME"),
        ("matrix: {train: [1]}", 7, "matrix.train[0]", "expected a mapping of fields"),
        ("slurm: {nodes: 1}\nmatrix: {slurm: [1]}", 8, "matrix.slurm[0]", "expected a mapping of fields"),
        ("deepspeed: {bf16: {}}\nmatrix: {deepspeed: [1]}", 8, "matrix.deepspeed[0]", "expected a mapping of fields"),
        ("deepspeed: {optimizer: {type: 1}}", 7, "deepspeed.optimizer.type", "expected text"),
        ("matrix: {lrr: [1]}", 7, "matrix.lrr", 'did you mean "lr"'),
        ("matrix: {lr: []}", 7, "matrix.lr", "no values"),
        ("matrix: {lr: 1e-4}", 7, "matrix.lr", "write [0.0001]"),
        ("matrix: {lr: [1e-4, 2e-4, 1e-4]}", 7, "matrix.lr[2]", "given twice"),
        ("matrix: {setup: [[a]]}", 7, "matrix.setup", "slurm.setup or local.setup"),
        ("matrix: {name: [a]}", 7, "matrix.name", "cannot vary"),
        ("matrix: {lr: [1e-4, 2e-4]}\nbaseline: {lrr: 1e-4}", 8, "baseline", "is no point of the matrix"),
        ("matrix: {lr: [1e-4, 2e-4]}\nbaseline: {lr: 3e-4}", 8, "baseline", "name axes of the matrix"),
        ("baseline: {lr: [1e-4]}", 7, "baseline.lr", "expected"),
        ("matrix: {exclude: [{lr: 1}]}", 7, "matrix.exclude", "nothing to exclude from"),
        ("matrix: {lr: [1e-4], exclude: [{lr: 2e-4}]}", 7, "matrix.exclude[0]", "excludes nothing"),
        ("matrix: {lr: [1e-4], exclude: [{lr: 1e-4}]}", 7, "matrix.exclude", "leaves no run"),
        ("matrix: {train.model.n_layer: [1]}", 7, "matrix.train.model.n_layer[0]", "train.model is not a mapping"),
        ("matrix: {train.lr: [1e-3], lr: [1e-4, 1e-5]}", 7, "matrix.lr", "sets train.lr, as the axis train.lr does"),
        ("matrix: {size: [{lr: 1e-3, label: a}], lr: [1e-4]}", 7, "matrix.lr", "as the axis size does"),
        ("matrix: {micro_batch: [1, 3]}", 7, "matrix.micro_batch[1]", "use one of 1, 2"),
        ("matrix: {nodes: [1, 3]}", 7, "matrix.nodes[1]", "use 24"),
        ("matrix: {lr: [1e-4], include: [{label: a, seed: 42}]}", 7, "", ""),
        ("max_runs: 3\nmatrix: {seed: [1, 2]}\nrepeats: 2", 8, "matrix", "expands to 4 runs"),
    ],
)
def test_each_mistake_is_explained(write: Write, text: str, line: int, field: str, words: str) -> None:
    if not field:
        write.load(MINIMAL + text)
        return
    found = write.problem(text)
    assert (found[0], found[1]) == (line, field)
    assert words in found[2]


def test_a_key_that_only_a_newer_deepspeed_knows_passes(write: Write) -> None:
    assert write.load(MINIMAL + "deepspeed: {quantum_sharding: {enabled: true}}").deepspeed


def test_a_section_that_is_wrong_hides_nothing_of_the_matrix(write: Write) -> None:
    """Without what is wrong in it the section lacks what it needs, which is neither an error nor a reason to stop."""
    text = MINIMAL.replace("dataset: wikitext", "dataset: {pth: x}") + "matrix: {zero_stages: [1, 2]}\n"
    assert [place for _, place, _ in write.problems(text)] == ["train.dataset.pth", "matrix.zero_stages"]


def test_a_stage_given_twice(write: Write) -> None:
    text = MINIMAL.replace("steps: 100", "steps: 100\n  zero_stage: 2")
    same = write.load(text + "deepspeed: {zero_optimization: {stage: 2}}")
    assert expand(same)[0].config.train.zero_stage == 2
    (found,) = write.problems(text + "deepspeed: {zero_optimization: {stage: 3}}")
    assert found[1] == "deepspeed.zero_optimization.stage"
    assert "zero_stage 3, but train.zero_stage is 2" in found[2]


@pytest.mark.parametrize(
    ("offload", "stage", "words"),
    [
        ("offload_param: {device: cpu}", 2, "use stage 3"),
        ("offload_optimizer: {device: cpu}", 0, "zero_stage 1, 2 or 3"),
        ("offload_optimizer: {device: nvme}", 3, "needs nvme_path"),
        ("offload_optimizer: {device: nvme, nvme_path: /local}", 1, "DeepSpeed would use host memory"),
        ("offload_optimizer: {device: nvme, nvme_path: /local}", 2, "DeepSpeed would use host memory"),
        ("offload_optimizer: {device: disk}", 1, "'none', 'cpu' or 'nvme'"),
        ("offload_optimizer: {device: [cpu]}", 1, "'none', 'cpu' or 'nvme'"),
        ("offload_optimizer: cpu", 1, "expected a mapping"),
    ],
)
def test_offload_that_cannot_work(write: Write, offload: str, stage: int, words: str) -> None:
    found = write.problem(f"deepspeed: {{zero_optimization: {{stage: {stage}, {offload}}}}}")
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


def test_a_matrix_may_give_what_the_rest_leaves_out(write: Write) -> None:
    text = MINIMAL.replace("  model: gpt2\n", "")
    assert len(expand(write.load(text + "matrix: {model: [gpt2, gpt2-medium]}"))) == 2


def test_a_command_needs_no_model(write: Write) -> None:
    (write.path.parent / "my.py").write_text("")
    spec = write.load("name: x\ncommand: my.py --lr 3 'a b'\ntrain: {steps: 5}\n")
    assert spec.command == (str(write.path.parent / "my.py"), "--lr", "3", "a b")
    (run,) = expand(spec)
    assert (run.global_batch, run.accumulation, run.target_step) == (None, None, 5)


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
    assert "'fp32', 'tf32', 'bf16' or 'fp16'" in write.problems(MINIMAL + "  precision: no\n")[0][2]
    assert 'did you mean "bf16"?' in write.problems(MINIMAL + "  precision: bf61\n")[0][2]


def test_yes_and_no_are_meant_as_such_where_no_field_of_ours_says_so(write: Write) -> None:
    text = MINIMAL.replace("model: gpt2", "model: {model_type: gpt2, scale_attn_weights: off}\n  tokenizer: bytes")
    text += "deepspeed: {prescale_gradients: no, comms_logger: {enabled: Yes}}\n"
    text += "matrix: {deepspeed.wall_clock_breakdown: [on, off]}\n"
    spec = write.load(text, "deepspeed.dump_state=no")
    assert spec.deepspeed == {"prescale_gradients": False, "comms_logger": {"enabled": True}, "dump_state": False}
    assert spec.train.model == {"model_type": "gpt2", "scale_attn_weights": False}
    assert [dict(run.config.deepspeed)["wall_clock_breakdown"] for run in expand(spec)] == [True, False]
    assert load("deepspeed: {tag: 'no'}", "x").data == {"deepspeed": {"tag": "no"}}


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


def test_what_is_left_empty_has_its_default(write: Write) -> None:
    spec = write.load(MINIMAL + "  lr:\nslurm:\n  setup:\n  time:\nenv:\nlocal:\nmatrix:\n  exclude:\n  seed: [1]\n")
    assert (spec.train.lr, spec.slurm.setup, spec.slurm.time, spec.env) == (3e-4, (), "1:00:00", {})
    assert write.load(MINIMAL + "matrix:\n") == write.load(MINIMAL)


def test_setup_may_be_a_block_of_lines(write: Write) -> None:
    spec = write.load(
        MINIMAL + "slurm:\n  setup: |\n    module load cuda\n\n    if true; then\n      export A=1\n    fi\n"
    )
    assert spec.slurm.setup == ("module load cuda", "if true; then", "  export A=1", "fi")


def test_an_axis_is_overridden_by_its_whole_name(write: Write) -> None:
    text = MINIMAL + "matrix: {train.lr: [1, 2], beta1: [0.5]}\n"
    assert write.load(text, "matrix.train.lr=[3]", "beta2=0.5").matrix == {"train.lr": [3], "beta1": [0.5]}


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
        ("gpus_per_node: '1g.10gb:2'", 2),
        ("gres: gpu", 1),
        ("gres: 'gpu:2'", 2),
        ("gres: 'gpu:3g.40gb'", 1),
        ("gres: 'gpu:1g.10gb:2'", 2),
        ("gres: 'gpu:1g.10gb+me:2(S:0-1),nvme:1,gpu:2'", 4),
        ("gres: 'gres/gpu:h100=8'", 8),
        ("gres: 'nvme:2,gres/gpu:4'", 4),
        ("gres: 'nvme:2', gpus_per_node: 0", 0),
        ("gres: 'gpu:0'", 0),
        ("gres: none", 0),
    ],
)
def test_gpus_of_a_node(write: Write, slurm: str, gpus: int) -> None:
    assert write.load(MINIMAL + f"slurm: {{{slurm}}}").slurm.gpus == gpus


def test_other_options_of_sbatch_pass_through(write: Write) -> None:
    spec = write.load(MINIMAL + "slurm: {exclusive: true, mail-type: END, overcommit: false, nice: 5}")
    assert spec.slurm.passed_options == {"exclusive": True, "mail_type": "END", "nice": 5}


def test_a_sample_longer_than_a_model_that_is_known_by_name_is_an_error(write: Write) -> None:
    [(line, field, words)] = write.problems("""\
        name: long
        train: {model: gpt2, dataset: d, global_batch: 8, steps: 1}
        matrix:
          seq_len: [1024, 2048]
        """)
    assert (line, field) == (4, "matrix.seq_len[1]")
    assert "2048 is more than the 1024 positions of gpt2" in words


@pytest.mark.parametrize("field", ["train.global_batch", "train.micro_batch", "train.steps", "repeats", "slurm.nodes"])
def test_a_size_that_nothing_has_is_refused(write: Write, field: str) -> None:
    with pytest.raises(SpecError, match="expected at most"):
        write.load(MINIMAL, f"{field}={10**18 + 3}")
