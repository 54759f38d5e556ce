"""What Slurm tells of a cluster, how it is read, and the verdict on what a spec asks of it."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.doctor.check import Check, Verdict, exit_code
from dscampaign.orchestrator.doctor.check_slurm import Forecast, slurm_checks
from dscampaign.orchestrator.doctor.cluster import Cluster, ClusterNode, Partition, cluster, gpus_of
from dscampaign.orchestrator.doctor.requirements import Wants
from dscampaign.orchestrator.spec.model import RunConfig

NODES = tuple(
    ClusterNode(f"n{i}", frozenset({"main", "scavenge"}), {"h100": 8}, 1_000_000, 96, frozenset({"ib", "nvlink"}))
    for i in range(4)
)
MAIN = Partition("main", default=True, max_time_min=1440, max_nodes=2)
SCAVENGE = Partition("scavenge", preempt_mode="REQUEUE")
CLUSTER = Cluster((), "23.11.4", "", "kept", (MAIN, SCAVENGE), NODES)


def wants(host_gb: float = 0.0, train: dict[str, Any] | None = None, **slurm: Any) -> Wants:
    config = RunConfig.model_validate({"slurm": {"partition": "main", **slurm}, "train": train or {}})
    gpus = config.slurm.gpus
    return Wants(("run",), config, ranks=8, gpus=gpus, on_gpus=bool(gpus), host_gb=host_gb)


def verdict(want: Wants, about: str = "slurm.nodes", on: Cluster = CLUSTER) -> Check:
    return {check.id: check for check in slurm_checks(on, [want])}[about]


def test_a_fit_cluster_has_nothing_to_do() -> None:
    want = wants(gpus_per_node="h100:8", mem="900G", nodes=2, constraint="ib&nvlink", time="1-0", cpus_per_task=96)
    said = "Job 7 to start at 2030-01-01T00:00:00"
    found = list(slurm_checks(CLUSTER, [want], [Forecast(said)]))
    assert {check.verdict for check in found} == {Verdict.OK}
    assert found[-1].seen == said


def test_a_gpu_type_that_the_partition_does_not_have_names_the_one_that_was_meant() -> None:
    found = verdict(wants(gpus_per_node="h10:8"))
    assert found.verdict is Verdict.PROBLEM
    assert found.seen == "no node of main has GPUs of type h10, but h100"
    assert found.next == 'did you mean "h100"?'


def test_a_gpu_type_unlike_all_is_answered_with_what_there_is() -> None:
    assert verdict(wants(gres="gpu:mi300x:8")).next == "write `gpus_per_node: h100:8`"
    plain = replace(CLUSTER, nodes=tuple(replace(node, gpus={"": 8}) for node in NODES))
    assert verdict(wants(gpus_per_node="h100:8"), on=plain).next == "write `gpus_per_node: 8`"
    assert verdict(wants(gpus_per_node="8"), on=plain).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"gpus_per_node": "16"}, "at most 8 GPUs, 16 asked for"),
        ({"mem": "2T"}, "at most 1,000,000 MB"),
        ({"cpus_per_task": 128}, "at most 96 cores"),
        ({"constraint": "ib&a100"}, "has the feature a100"),
        ({"nodes": 5}, "4 nodes of main would do, 5 asked for"),
        ({"host_gb": 2000.0}, "takes 2,000 GB of a node's memory (run), nodes have 1,049 GB"),
    ],
)
def test_what_no_node_has(asked: dict[str, Any], words: str) -> None:
    found = verdict(wants(**asked))
    assert found.verdict is Verdict.PROBLEM
    assert words in found.seen


def test_a_constraint_that_is_more_than_a_list_is_left_to_slurm() -> None:
    assert verdict(wants(constraint="[rack1|rack2]")).verdict is Verdict.OK


def test_nodes_out_of_service_are_a_warning() -> None:
    broken = replace(CLUSTER, nodes=tuple(replace(node, usable=node.name == "n0") for node in NODES))
    found = verdict(wants(nodes=2), on=broken)
    assert found.verdict is Verdict.WARNING
    assert "but only 1 in service" in found.seen


@pytest.mark.parametrize(
    ("asked", "seen", "hint"),
    [
        ({"partition": "mian"}, "there is no partition mian", 'did you mean "main"?'),
        ({"partition": "x"}, "there is no partition x", "there are: main, scavenge"),
        ({"time": "2-0"}, "main allows 1,440 min, slurm.time is 2,880 min", "write `time: 1440`"),
        ({"nodes": 3}, "main allows 2 nodes a job, slurm.nodes is 3", "use at most 2"),
    ],
)
def test_partitions(asked: dict[str, Any], seen: str, hint: str) -> None:
    found = verdict(wants(**asked), "slurm.partition")
    assert (found.verdict, found.seen) == (Verdict.PROBLEM, seen)
    assert found.next.startswith(hint)


def test_a_partition_that_is_down_is_away_and_the_default_one_needs_no_name() -> None:
    down = replace(CLUSTER, partitions=(replace(MAIN, state="DOWN"),))
    assert exit_code(slurm_checks(down, [wants(partition=None)])) == 3


def test_a_controller_that_does_not_answer_is_all_that_is_said() -> None:
    found = list(slurm_checks(Cluster(trouble="scontrol gave no answer within 60 s"), [wants()]))
    assert [check.id for check in found] == ["slurm.controller"]
    assert exit_code(found) == 3


def test_a_slurm_older_than_the_one_of_the_tests_is_a_note() -> None:
    assert verdict(wants(), "slurm.controller", replace(CLUSTER, version="20.11.9")).verdict is Verdict.NOTE


def test_accounting() -> None:
    assert verdict(wants(), "slurm.accounting", replace(CLUSTER, accounting="none")).verdict is Verdict.NOTE
    assert verdict(wants(), "slurm.accounting", replace(CLUSTER, accounting="sacct: x")).verdict is Verdict.WARNING


def test_preemption_without_warning_wants_checkpoints() -> None:
    scavenge: dict[str, Any] = {"partition": "scavenge"}
    assert verdict(wants(**scavenge), "slurm.preemption").verdict is Verdict.WARNING
    assert verdict(wants(train={"checkpoint_every": 5}, **scavenge), "slurm.preemption").verdict is Verdict.NOTE
    warned = replace(CLUSTER, settings={"SlurmctldParameters": "preempt_send_user_signal"})
    found = verdict(wants(**scavenge), "slurm.preemption", warned)
    assert (found.verdict, found.next) == (Verdict.NOTE, "")


def test_what_sbatch_would_refuse() -> None:
    refused = Forecast("Invalid account or account/partition combination specified", refused=True)
    found = list(slurm_checks(CLUSTER, [wants()], [refused]))[-1]
    assert (found.id, found.verdict) == ("slurm.submit", Verdict.PROBLEM)
    assert "Invalid account" in found.seen


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:h100:8(S:0-1),nvme:1", {"h100": 8}),
        ("gpu:8", {"": 8}),
        ("gpu:8(S:0)", {"": 8}),
        ("gpu", {"": 1}),
        ("gpu:1g.10gb:7,gpu:a100:1", {"1g.10gb": 7, "a100": 1}),
        ("(null)", {}),
        ("mps:400", {}),
    ],
)
def test_slurm_s_words_for_gpus(gres: str, gpus: dict[str, int]) -> None:
    assert gpus_of(gres) == gpus


SCONTROL = """\
#!/bin/sh
case "$*" in
    --version) echo "slurm-wlm 22.05.8" ;;
    *"show partition") cat <<'END'
PartitionName=main AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=7-00:00:00 PreemptMode=OFF State=UP
PartitionName=debug Default=NO MaxNodes=1 MaxTime=00:30:00 PreemptMode=REQUEUE State=DOWN
END
    ;;
    *"show node") cat <<'END'
NodeName=n1 CPUTot=96 ActiveFeatures=ib,nvlink Gres=gpu:h100:8(S:0-1) RealMemory=1000 State=IDLE Partitions=main,debug
NodeName=n2 CPUTot=8 ActiveFeatures=(null) Gres=(null) RealMemory=10 State=IDLE+DRAIN Partitions=main Reason=State=x
NodeName=n3 CPUTot=8 ActiveFeatures=(null) Gres=(null) RealMemory=10 State=MIXED* Partitions=main
END
    ;;
    *"show config") echo "SlurmctldParameters     = preempt_send_user_signal,enable_configless" ;;
esac
"""


def commands(folder: Path, **scripts: str) -> None:
    folder.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "srun"):
        command = folder / name
        command.write_text(scripts.get(name, "#!/bin/sh\n"))
        command.chmod(stat.S_IRWXU)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "bin"


def test_slurm_is_asked_and_understood(path: Path) -> None:
    commands(path, scontrol=SCONTROL)
    found = cluster()
    assert (found.version, found.trouble, found.accounting) == ("22.05.8", "", "kept")
    assert found.partitions == (
        Partition("main", True, "UP", 7 * 1440, None, "OFF"),
        Partition("debug", False, "DOWN", 30, 1, "REQUEUE"),
    )
    first, drained, silent = found.nodes
    features = frozenset({"ib", "nvlink"})
    assert first == ClusterNode("n1", frozenset({"main", "debug"}), {"h100": 8}, 1000, 96, features, usable=True)
    assert [drained.usable, silent.usable] == [False, False]
    assert drained.features == frozenset()
    assert "preempt_send_user_signal" in found.settings["SlurmctldParameters"]


def test_a_slurm_that_fails_is_part_of_the_answer(path: Path) -> None:
    commands(path, scontrol="#!/bin/sh\necho 'scontrol: error: Unable to contact slurm controller' >&2\nexit 1\n")
    assert "Unable to contact slurm controller" in cluster().trouble


def test_without_accounting_sacct_says_so(path: Path) -> None:
    refusal = "#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n"
    commands(path, scontrol=SCONTROL, sacct=refusal)
    assert cluster().accounting == "none"
