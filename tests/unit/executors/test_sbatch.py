"""Submitting: how sbatch is called, what its answers mean, and what it will never take."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.executors.base import ArrayTooLarge, JobArray, SubmissionRefused, SubmissionUnclear
from dscampaign.orchestrator.executors.sbatch_answer import submission_error
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.tests.support.fake_slurm import FakeSlurm


def batch(tmp_path: Path, size: int = 2, **resources: Any) -> JobArray:
    folder = tmp_path / "batches" / "abc"
    folder.mkdir(parents=True)
    return JobArray("abc", folder, size, resources)


def test_a_batch_is_one_array_with_its_token_in_name_and_comment(slurm: FakeSlurm, tmp_path: Path) -> None:
    resources = {"partition": "h100", "nodes": 2, "mem": "64G", "array_parallelism": 64, "signal_delay_s": 60}
    extra = {"additional_parameters": {"mail-type": "END"}, "setup": ["module load cuda"]}
    ids = SlurmExecutor().submit(batch(tmp_path, 3, **resources, **extra))
    assert ids == ["12_0", "12_1", "12_2"]
    [call] = slurm.calls
    assert call.options >= {
        "--array=0-2%3",
        "--job-name=abc",
        "--comment=dscampaign:abc",
        "--ntasks-per-node=1",
        "--nodes=2",
        "--no-requeue",
        "--signal=USR2@60",
        "--mail-type=END",
    }
    srun = next(line for line in call.script.splitlines() if line.startswith("srun "))
    assert "--kill-on-bad-exit=0" in srun
    assert srun.endswith(f"-u -m dscampaign.jobs.agent {tmp_path}/batches/abc")
    assert call.script.index("module load cuda") < call.script.index("\nsrun ")


OF_ANOTHER_PROCESS = """WANDB_RUN_ID WANDB_RESUME WANDB_SWEEP_ID WANDB_SERVICE MLFLOW_RUN_ID COMET_EXPERIMENT_KEY
NEPTUNE_CUSTOM_RUN_ID CLEARML_TASK_ID CLEARML_PROC_MASTER_ID TORCHELASTIC_RUN_ID RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR
MASTER_PORT OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK ACCELERATE_USE_DEEPSPEED CAMPAIGN_METRICS_FILE"""
SETTINGS = """WANDB_API_KEY WANDB_MODE WANDB_PROJECT MLFLOW_TRACKING_URI COMET_API_KEY NEPTUNE_API_TOKEN
CLEARML_API_HOST OMPI_MCA_btl OMP_NUM_THREADS NCCL_SOCKET_IFNAME CAMPAIGN_STORE"""


def test_the_job_that_a_reconciler_runs_in_leaves_no_mark(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "512")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    for name in OF_ANOTHER_PROCESS.split():
        monkeypatch.setenv(name, "left over")
    for name in SETTINGS.split():
        monkeypatch.setenv(name, "chosen")
    SlurmExecutor().submit(batch(tmp_path))
    assert {k for k in slurm.calls[0].env if k.startswith("SLURM_")} == {"SLURM_CONF"}
    assert slurm.calls[0].env.keys() & {*OF_ANOTHER_PROCESS.split(), *SETTINGS.split()} == {*SETTINGS.split()}
    assert os.environ["SLURM_JOB_ID"] == "7"


def test_what_the_spec_says_beats_the_environment_of_the_user(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of sbatch overrule a script: another name, and no look would ever find the job."""
    for name in ("JOB_NAME", "ARRAY_INX", "REQUEUE", "PARTITION", "ACCOUNT"):
        monkeypatch.setenv(f"SBATCH_{name}", "mine")
    SlurmExecutor().submit(batch(tmp_path, partition="h100"))
    assert {k for k in slurm.calls[0].env if k.startswith("SBATCH_")} == {"SBATCH_ACCOUNT"}


def test_an_sbatch_that_hangs_may_have_submitted(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dscampaign.orchestrator.executors.slurm_commands.COMMAND_TIMEOUT_S", 0.2)
    (slurm.folder / "sbatch").write_text("#!/bin/sh\nexec sleep 5\n")
    with pytest.raises(SubmissionUnclear, match="did not respond within"):
        SlurmExecutor().submit(batch(tmp_path))


@pytest.mark.parametrize("name", ["SLURM_CLUSTERS", "SBATCH_CLUSTERS"])
@pytest.mark.parametrize("clusters", ["dev2", "dev,dev2", "all"])
def test_a_shell_that_asks_for_another_cluster_submits_nothing(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, clusters: str
) -> None:
    """Whoever reconciles later, as cron does, may not have the variable."""
    monkeypatch.setenv(name, clusters)
    slurm.answers("scontrol", "SlurmctldPort = 1\nClusterName             = dev\n")
    with pytest.raises(Unreachable, match=f"{name} is {clusters}, but a campaign uses one cluster, here dev") as caught:
        SlurmExecutor().submit(batch(tmp_path))
    assert f"`unset {name}`" in (caught.value.hint or "")
    assert slurm.names() == ["scontrol"]


@pytest.mark.parametrize(
    "answer", ["12", "12;main", "Submitted batch job 12", "Submitted batch job 12 on cluster main"]
)
@pytest.mark.parametrize("banner", ["", "Your last job 4242 ended well.\n", "job 4242\n", "512 hours are left\n"])
def test_a_job_id_is_read_from_sbatchs_own_answer(slurm: FakeSlurm, tmp_path: Path, banner: str, answer: str) -> None:
    slurm.answers("sbatch", f"{banner}{answer}\n{banner}")
    assert SlurmExecutor().submit(batch(tmp_path, 1)) == ["12_0"]
    assert "--parsable" in slurm.calls[0].args


def test_an_answer_without_a_job_id_is_unclear(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", "Thank you for using this cluster\n")
    with pytest.raises(SubmissionUnclear):
        SlurmExecutor().submit(batch(tmp_path))


def test_without_slurm_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="cannot submit"):
        SlurmExecutor().submit(batch(tmp_path))
    with pytest.raises(Unreachable, match="squeue is not on PATH") as caught:
        SlurmExecutor().list_jobs({"abc": {0}}, 1e9)
    assert "executor: local" in (caught.value.hint or "")


FAILED = "sbatch: error: Batch job submission failed: "
TIMED_OUT = f"{FAILED}Socket timed out on send/recv operation"
MUNGE = 'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": Connection refused'
POLICY = "sbatch: error: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"

NEVER_TAKEN = [
    "sbatch: error: invalid partition specified: nope",
    "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
    "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
    "sbatch: error: Batch job submission failed: Invalid feature specification",
    "sbatch: error: Batch job submission failed: Invalid qos specification",
    "sbatch: error: Memory specification can not be satisfied",
    "sbatch: unrecognized option '--frob'",
    f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}",
    f"sbatch: error: QOSMinCpuNotSatisfied\n{POLICY}",
    f"sbatch: error: QOSMinGRES\n{POLICY}",
    f"sbatch: error: QOSMaxGRESPerNode\n{POLICY}",
    f"{FAILED}User's group not permitted to use this partition",
    f"{FAILED}Node count specification invalid",
    f"{FAILED}Requested reservation is invalid",
    f"{FAILED}Access denied to requested reservation",
    f"{FAILED}Invalid Trackable RESource (TRES) specification",
    f"{FAILED}Invalid generic resource (gres) specification",
    f"{FAILED}Invalid GRES specification (with and without type identification)",
    f"{FAILED}Multiple partition job request not supported when a partition is set in the association",
    f"{FAILED}Memory required by task is not available",
    "sbatch: error: Invalid --gpu-bind argument: gpu:foo",
    'sbatch: error: unrecognized --hint argument "foo", see --hint=help',
    'sbatch: error: unrecognized --mem-bind argument "foo"',
    "sbatch: error: Bad rlimit name: FOO\nsbatch: error: --propagate=FOO is not valid.",
    "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.",
    "sbatch: option '--overcommit' doesn't allow an argument\nTry \"sbatch --help\" for more information",
]

FOR_NOW = [
    "Required partition not available (inactive or drain)",
    "Required node not available (down, drained or reserved)",
    "Requested reservation not usable now",
    "Requested reservation is in use",
    "Requested partition configuration not available now",
    "Requested operation is presently disabled",
    "Access/permission denied",
    "System submissions disabled",
    "Job submission disabled",
    "Unable to create job record, try again",
    "I/O error writing script/environment to file",
    "Slurm backup controller in standby mode",
    "Invalid user id",
    "Unspecified error",
    "Incompatible versions of client and server code",
    "what a later version of Slurm may say",
]
"""What slurmctld answers without a job, and what another day may change."""

NOT_TAKEN = [
    f"{FAILED}Unable to contact slurm controller (connect failure)",
    f"{FAILED}Resource temporarily unavailable: temporarily unable",
    f"{MUNGE}\n{FAILED}Protocol authentication error",  # without a credential nothing was sent
    *(f"{FAILED}{answer}" for answer in FOR_NOW),
    *(f"sbatch: error: The cluster is in maintenance\n{FAILED}{answer}" for answer in FOR_NOW),
    *(
        f"sbatch: error: {limit}\n{POLICY}"
        for limit in ("QOSMaxCpuPerUserLimit", "QOSMaxGRESPerUser", "AssocGrpCpuLimit", "MaxCpuPerAccount")
    ),
]
TOO_LARGE = [
    f"{FAILED}Invalid job array specification",
    "sbatch: error: violates policy (job submit limit)",
    *(
        f"sbatch: error: {limit}\n{POLICY}"
        for limit in ("QOSGrpSubmitJobsLimit", "MaxSubmitJobsPerAccount", "AssocMaxSubmitJobLimit")
    ),
    f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}",
]
UNCLEAR = [
    TIMED_OUT,
    f"{FAILED}Unable to contact slurm controller (receive failure)",
    f"{FAILED}Unexpected message received",
    f"{FAILED}Message receive failure",
    f"{FAILED}Communication shutdown failure",
    f"{FAILED}Header lengths are longer than data received",
    f"{FAILED}Zero Bytes were transmitted or received",
    f"{FAILED}Protocol authentication error",
    f"{FAILED}Connection reset by peer",
    f"{FAILED}Connection timed out",
    f"{FAILED}Operation not supported",
    f"{FAILED}Resource temporarily unavailable",
    f"{FAILED}No error",
    "sbatch: error: something nobody has seen before",
    "slurm_load_jobs error: Unexpected message received",
    f"{TIMED_OUT}\n{FAILED}Invalid qos specification",  # a wrapper tried twice
    f"{FAILED}Broken pipe\n{FAILED}something newer",
]
ANSWERS = {SubmissionRefused: NEVER_TAKEN, Unreachable: NOT_TAKEN, ArrayTooLarge: TOO_LARGE, SubmissionUnclear: UNCLEAR}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in ANSWERS.items() for text in texts])
def test_what_an_answer_of_sbatch_means(kind: type[Exception], text: str) -> None:
    found = submission_error("", f"{text}\n")
    assert type(found) is kind
    if isinstance(found, ArrayTooLarge):
        assert found.for_now is ("limit" in text)
    if isinstance(found, Unreachable):
        assert found.hint == "nothing was submitted; the next pass tries again"


def test_a_job_id_beside_a_failure_is_unclear() -> None:
    """The wrapper failed, not sbatch."""
    assert type(submission_error("12\n", f"{FAILED}Invalid qos specification\n")) is SubmissionUnclear


@pytest.mark.parametrize(
    ("said", "objects"),
    [
        ("sbatch: error: something nobody has seen before", True),
        ("sbatch: fatal: --frob and --nope do not go together", True),
        ("slurm_load_jobs error: Unexpected message received", False),
        ("sbatch: fatal: Unable to process configuration file", False),
        ("sbatch: error: fetch_config: DNS SRV lookup failed", False),
        ("sbatch: error: open: Input/output error", False),
        ("sbatch: a note of the site", False),
        ("/opt/wrapper: line 3: sbatch.real: Permission denied", False),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", False),
    ],
)
def test_what_sbatch_itself_objects_to_is_a_refusal_once_there_is_no_job(
    slurm: FakeSlurm, tmp_path: Path, said: str, objects: bool
) -> None:
    slurm.answers("sbatch", err=f"{said}\n", code=1)
    with pytest.raises(SubmissionUnclear) as caught:
        SlurmExecutor().submit(made := batch(tmp_path))
    assert caught.value.objects is objects
    with pytest.raises(SubmissionRefused if objects else SubmissionUnclear):
        SlurmExecutor().forecast(made)


@pytest.mark.parametrize(("needed", "options"), [("", "-PE"), ("/ours", "-P")])
def test_a_job_starts_in_the_folder_that_was_recorded_with_no_module_of_it_first(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: str, options: str
) -> None:
    """Nor with a module of the environment that `setup` chooses, unless ours come from such a folder, too."""
    monkeypatch.setenv("PYTHONPATH", needed)
    array = replace(batch(tmp_path), workdir="/my project")
    SlurmExecutor().submit(array)
    script = (array.folder / "submission.sh").read_text()
    assert "#SBATCH --chdir='/my project'\n" in script
    assert f" {options} -u -m dscampaign.jobs.agent" in script


@pytest.mark.parametrize(
    ("slurm", "runs", "asked"),
    [
        ({"gpus_per_node": "h100:8", "mem": "80G", "cpus_per_task": 30}, 4, ("h100:8", None, "80G", 30)),
        ({"gpus_per_node": "h100:8", "mem": "80G", "cpus_per_task": 30}, 1, ("h100:2", None, "20480M", 8)),
        ({"gres": "gpu:1g.10gb:8,nvme:1", "mem": "0"}, 3, (None, "gpu:1g.10gb:6,nvme:1", "0", None)),
    ],
)
def test_a_job_asks_for_the_parts_of_a_node_that_its_runs_need(
    slurm: dict[str, Any], runs: int, asked: tuple[Any, ...]
) -> None:
    config = RunConfig.model_validate({"slurm": {**slurm, "gpus_per_run": 2}})
    resources = job_request.resources(config, runs=runs)
    assert tuple(map(resources.get, ("gpus_per_node", "gres", "mem", "cpus_per_task"))) == asked
    assert (config.ranks(), job_request.runs_per_job(config)) == (2, 4)
