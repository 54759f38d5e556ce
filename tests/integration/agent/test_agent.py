"""One node's watch over its ranks: who may run, how it ends, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dscampaign.files.atomic_files import create_exclusively, read_json, write_atomically
from dscampaign.jobs import report
from dscampaign.jobs.agent import agent, gpus, shared_folder, watch
from dscampaign.jobs.agent.evidence import EXIT_NOT_MINE, NodeOutcome
from dscampaign.jobs.agent.node import Node, Start
from dscampaign.jobs.agent.progress import Heartbeat
from dscampaign.jobs.guard import start_time
from dscampaign.jobs.shared import checkpoint
from dscampaign.jobs.shared.payload import Identity
from dscampaign.tests.support.attempt import Attempt, make_payload
from dscampaign.tests.support.fake_gpus import FakeGpus
from dscampaign.tests.support.waiting import HANGS_S, wait_until
from dscampaign.tests.unit.jobs.test_checkpoint import make

FOREVER = "time.sleep(100)\n"


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
    """An attempt whose agent, when it runs in this process, is quick and puts the signals back."""
    monkeypatch.setattr(watch, "POLL_S", 0.02)
    monkeypatch.setattr(shared_folder, "POLL_S", 0.02)
    monkeypatch.setattr(watch, "STOP_REPEAT_S", 0.05)
    monkeypatch.setattr(watch, "PEER_GRACE_S", 0.1)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    made = Attempt(tmp_path, make_payload(tmp_path))
    made.prepare()
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)
    for process in made.processes:
        process.kill()
        process.communicate()


# -- the good end -----------------------------------------------------------------------------------------------


def test_an_attempt_that_succeeds_leaves_its_proof(attempt: Attempt) -> None:
    attempt.script("for step in (1, 2, 3): report(step)")
    assert attempt.run() == 0
    found = attempt.outcome()
    assert (found.launcher_exit, found.ended_by, found.start_step, found.last_step) == (0, "", 0, 3)
    assert (found.generation, found.job_id, found.host) == (1, "7_0", "n0")
    assert attempt.exits() == {0: 0, 1: 0}
    assert read_json(attempt.paths.claim) == {
        "job_id": "7_0",
        "host": "n0",
        "ts": pytest.approx(found.started_s, abs=9),
        **asdict(Identity.of(attempt.payload)),
    }
    start = Start.read(attempt.paths.started)
    assert start is not None
    assert Identity.of(found) == Identity.of(start) == Identity.of(attempt.payload)


def test_ranks_get_the_promised_environment(attempt: Attempt) -> None:
    attempt.change(env={"DEPTH": "5"}, steps_decide=True)
    attempt.script("""
        names = [k for k in os.environ if k.startswith("CAMPAIGN_")]
        keep = {k: os.environ[k] for k in [*names, "DEPTH", "WORLD_SIZE", "OMP_NUM_THREADS", "DS_ACCELERATOR"]}
        if rank == 0: print("SEEN", json.dumps([keep, sys.argv]), flush=True)
    """)
    assert attempt.run() == 0
    log = next(attempt.paths.logs.glob("*_rank0.log")).read_text()
    env, argv = json.loads(log.split("SEEN", 1)[1])
    run = attempt.run_paths
    assert argv == [f"{attempt.folder}/train.py", "--depth", "2"]
    assert env["CAMPAIGN_METRICS_FILE"] == str(attempt.paths.metrics)
    assert env["CAMPAIGN_CHECKPOINT_DIR"] == str(run.checkpoints(env["CAMPAIGN_CONFIG_HASH"]))
    assert Path(env["CAMPAIGN_CHECKPOINT_DIR"]).is_dir()
    assert json.loads(Path(env["CAMPAIGN_DS_CONFIG"]).read_text()) == {"train_batch_size": 8}
    assert (env["CAMPAIGN_RESUME"], env["CAMPAIGN_STEPS"], env["CAMPAIGN_GENERATION"]) == ("", "3", "1")
    assert (env["DEPTH"], env["WORLD_SIZE"], env["DS_ACCELERATOR"]) == ("5", "2", "cpu")


def test_the_gpus_of_its_node_are_sampled_while_the_ranks_run(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeGpus()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    attempt.change(gpus_per_node=2, telemetry_s=0.01)
    attempt.script(f"""
        spool = {str(attempt.paths.gpu_spool(0))!r}
        while not os.path.exists(spool) or open(spool).read().count("span_s") < 3: time.sleep(0.01)
        report(1)
    """)
    assert attempt.run() == 0
    first, *samples = [json.loads(line) for line in attempt.paths.gpu_spool(0).read_text().splitlines()]
    assert (first["node"], len(first["devices"])) == ("n0", 2)
    assert all(sample["gpu"] == [0, 1] for sample in samples)
    assert attempt.outcome().last_step == 1


def test_an_agent_ends_though_the_driver_hangs(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeGpus()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(gpus, "BEFORE_TIMEOUT_S", 0.2)
    nvml.stuck = "nvmlDeviceGetUtilizationRates"
    attempt.change(gpus_per_node=2, telemetry_s=0.01)
    attempt.script("report(1)")
    assert attempt.run() == 0
    assert nvml.calls[nvml.stuck] == 1
    assert attempt.outcome().launcher_exit == 0
    nvml.never.set()


def test_a_script_with_checkpoints_of_its_own_says_where_it_began(attempt: Attempt) -> None:
    attempt.change(target_step=42)
    attempt.script("report(41); report(42)")
    attempt.run()
    assert (attempt.outcome().start_step, attempt.outcome().last_step) == (40, 42)


SIZES = """
    sizes = [os.environ["CAMPAIGN_" + name] for name in ("MICRO_BATCH", "ACCUMULATION", "GLOBAL_BATCH")]
    config = json.load(open(os.environ["CAMPAIGN_DS_CONFIG"]))
    open(os.environ["CAMPAIGN_ATTEMPT_DIR"] + f"/seen-{rank}", "w").write(json.dumps([sizes, config]))
    report(3)
"""


def test_an_attempt_begins_with_the_sizes_that_it_was_told_in_the_queue(attempt: Attempt) -> None:
    attempt.change(train={"micro_batch": 2, "accumulation": 2, "lr": 1})
    write_atomically(attempt.paths.resize, json.dumps({"micro_batch": 1, "accumulation": 4, "why": "too big"}))
    attempt.script(SIZES)
    assert attempt.run() == 0
    sizes, config = json.loads((attempt.paths.dir / "seen-1").read_text())
    assert sizes == ["1", "4", "8"]
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (1, 4)
    assert read_json(attempt.paths.train_config) == {"micro_batch": 1, "accumulation": 4, "lr": 1}
    start = Start.read(attempt.paths.started)
    assert start is not None
    assert (start.micro_batch, start.accumulation) == (1, 4)


# -- who may run ------------------------------------------------------------------------------------------------


def test_an_outcome_finds_room_on_a_full_disk_and_says_so(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt.script("sys.exit(1)")
    write, reserve = NodeOutcome.write, attempt.paths.reserve(0)
    kept: list[int] = []

    def on_full_disk(outcome: NodeOutcome, path: Path) -> None:
        if reserve.exists():
            kept.append(reserve.stat().st_size)
            raise OSError(28, "No space left on device")
        write(outcome, path)

    monkeypatch.setattr(NodeOutcome, "write", on_full_disk)
    assert attempt.run() == 1
    assert kept == [shared_folder.RESERVE_BYTES]
    assert "No space left on device" in attempt.outcome().lines[0].text


@pytest.mark.parametrize("exit_code", [0, 3])
def test_an_agent_waits_for_its_folder_to_leave_its_outcome(attempt: Attempt, exit_code: int) -> None:
    """The ranks end while the shared folder is away: nothing is created in its place, and nothing is lost."""
    shared, aside, over = attempt.folder / "c", attempt.folder / "aside", attempt.folder / "over"
    attempt.script(f"""
        report(3)
        while not os.path.exists({str(over)!r}): time.sleep(0.02)
        sys.exit({exit_code})
    """)
    agent_process = attempt.start()
    wait_until(attempt.paths.metrics.exists, "the first step")
    shared.rename(aside)
    shared.mkdir()
    over.touch()
    assert agent_process.stdout is not None
    said = iter(agent_process.stdout.readline, "")
    assert any("waiting for the shared folder" in line for line in said)
    assert list(shared.iterdir()) == []
    shared.rmdir()
    aside.rename(shared)
    agent_process.communicate(timeout=HANGS_S)
    assert agent_process.returncode == (1 if exit_code else 0)
    exits = set(attempt.exits().values())
    assert exits == {0} if exit_code == 0 else 3 in exits  # the launcher may have been faster with the other rank
    assert attempt.outcome().last_step == 3


def test_a_training_whose_folder_is_not_there_is_not_begun(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shared_folder, "OWN_WAIT_S", 0.0)
    payload = replace(attempt.payload, workdir=str(attempt.folder / "unmounted"))
    assert agent.Agent(payload, Node.from_environment({})).run() == agent.EXIT_FAILED
    assert (attempt.outcome().ended_by, attempt.outcome().launcher_exit) == ("no_workdir", None)
    assert (attempt.outcome().workdir, attempt.outcome().lines) == (payload.workdir, ())
    assert "unmounted, where the training starts, is not there" in capsys.readouterr().err


def test_a_payload_that_others_could_have_written_is_not_run(attempt: Attempt) -> None:
    attempt.batch.chmod(0o777)
    process = attempt.start()
    said, _ = process.communicate(timeout=HANGS_S)
    assert process.returncode == EXIT_NOT_MINE
    assert f"others can write to {attempt.batch}" in said
    assert not attempt.paths.claim.exists()


def test_whoever_loses_the_claim_starts_nothing(attempt: Attempt, capsys: pytest.CaptureFixture[str]) -> None:
    attempt.script("report(1)")
    assert create_exclusively(attempt.paths.claim, json.dumps({"job_id": "6_0"}))
    assert attempt.run() == EXIT_NOT_MINE
    assert "belongs to 6_0" in capsys.readouterr().err
    assert not attempt.paths.metrics.exists()
    assert not attempt.paths.outcome(0).exists()


def test_an_attempt_that_is_replaced_while_it_runs_ends_itself(attempt: Attempt) -> None:
    attempt.script(f"""
        if rank == 0: open({str(attempt.run_paths.current)!r}, "w").write('{{"generation": 2}}')
        {FOREVER}
    """)
    assert attempt.run() == 1
    assert attempt.outcome().ended_by == "superseded"


def test_an_attempt_that_another_job_has_claimed_in_a_restored_folder_ends_itself(attempt: Attempt) -> None:
    attempt.script(f"""
        if rank == 0: open({str(attempt.paths.claim)!r}, "w").write('{{"job_id": "8_0"}}')
        {FOREVER}
    """)
    assert attempt.run() == 1
    assert attempt.outcome().ended_by == "superseded"


def test_an_attempt_whose_whole_folder_is_away_goes_on(attempt: Attempt) -> None:
    away = attempt.folder / "away"
    attempt.script(f"""
        if rank == 0:
            os.rename({str(attempt.folder / "c")!r}, {str(away)!r})
            time.sleep(0.5)
            os.rename({str(away)!r}, {str(attempt.folder / "c")!r})
    """)
    assert attempt.run() == 0


# -- stop -------------------------------------------------------------------------------------------------------


def test_a_rank_that_heeds_a_stop_is_not_killed_by_its_repetition(attempt: Attempt) -> None:
    """As a process shuts down, its handlers are gone already; with a framework loaded that takes a while."""
    attempt.script("""
        class Slow:
            def __del__(self, sleep=time.sleep): sleep(1.5)
        sys.slow = Slow()
        heard = []
        signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
        if rank == 0: os.kill(agent, signal.SIGUSR2)
        while not heard: time.sleep(0.01)
        report(2)
    """)
    assert attempt.run() == 0
    assert (attempt.outcome().ended_by, attempt.outcome().launcher_exit) == ("stop", 0)


@pytest.mark.parametrize("launcher", ["srun", "python"])
def test_ranks_without_a_program_that_launches(attempt: Attempt, launcher: str) -> None:
    """They have their places, their logs, and the request to stop; a script of one process starts others itself."""
    ranks = 2 if launcher == "srun" else 1
    attempt.change(launcher=launcher, ranks_per_node=ranks, python=sys.executable)
    Path(attempt.payload.command[0]).write_text("""if True:
        import os, signal, time
        names = "RANK LOCAL_RANK WORLD_SIZE SLURM_PROCID SLURM_NTASKS NODE_RANK"
        heard = []
        signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
        print({name: os.environ[name] for name in names.split() if name in os.environ}, flush=True)
        if os.environ.get("RANK", "0") == "0": os.kill(int(os.environ["CAMPAIGN_AGENT_PID"]), signal.SIGUSR2)
        while not heard: time.sleep(0.01)
        print("saved", flush=True)
    """)
    assert attempt.run() == 0
    assert (attempt.outcome().ended_by, attempt.exits()) == ("stop", dict.fromkeys(range(ranks), 0))
    for rank in range(ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "SLURM_PROCID": rank, "SLURM_NTASKS": 2}
        place = place if launcher == "srun" else {"NODE_RANK": 0}
        (log,) = attempt.paths.logs.glob(f"*_rank{rank}.log")
        assert log.read_text() == f"{ {name: str(value) for name, value in place.items()} }\nsaved\n"


def test_a_stop_is_repeated_until_a_rank_that_still_loads_hears_it(attempt: Attempt) -> None:
    attempt.script("""
        stop = os.environ["CAMPAIGN_STOP_FILE"]
        if rank == 0: os.kill(agent, signal.SIGUSR2)
        while not os.path.exists(stop): time.sleep(0.01)
        time.sleep(0.2)  # several signals go by while this rank still imports
        heard = []
        signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
        while not heard: time.sleep(0.01)
        report(2)
    """)
    assert attempt.run() == 0
    found = attempt.outcome()
    assert (found.ended_by, found.launcher_exit, found.last_step) == ("stop", 0, 2)
    assert attempt.exits() == {0: 0, 1: 0}


# -- the bad ends -----------------------------------------------------------------------------------------------


def test_sigterm_ends_everything_and_the_outcome_says_so(attempt: Attempt) -> None:
    attempt.script(f"report(1)\nif rank == 0: os.kill(agent, signal.SIGTERM)\n{FOREVER}")
    assert attempt.run() == 1
    found = attempt.outcome()
    assert (found.ended_by, found.last_step) == ("signal", 1)
    assert found.ending_s is not None
    assert found.started_s < found.ending_s <= found.ended_s
    assert attempt.exits() == {0: None, 1: None}


def alive(pid: str) -> bool:
    """Whether the process exists and is not just waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_rank_that_raised_first_leaves_the_reason(attempt: Attempt) -> None:
    attempt.script(f"""
        if rank == 1: raise ValueError("no such depth")
        {FOREVER}
    """)
    assert attempt.run() == 1
    found = attempt.outcome()
    assert found.launcher_exit == 1
    assert found.ranks[0].exit is None
    assert found.ranks[1].error is not None
    assert (found.ranks[1].error["type"], found.ranks[1].error["message"]) == ("builtins.ValueError", "no such depth")
    assert found.ranks[1].error["trace"][-1] == "ValueError: no such depth"
    assert any(line.text == "ValueError: no such depth" for line in found.lines)


@pytest.mark.parametrize("death", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(3)"])
def test_a_launcher_that_lingers_over_a_dead_rank_is_ended(
    attempt: Attempt, death: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINGER", "1")
    monkeypatch.setattr(watch, "TEARDOWN_GRACE_S", 0.3)
    attempt.script(f"if rank == 0: {death}\n{FOREVER}")
    assert attempt.run() == 1
    found = attempt.outcome()
    assert found.ended_by == "teardown"
    assert found.ending_s is not None
    if "SIGKILL" in death:  # seen to be gone before anybody was told to end; the other one was not
        gone_s = [rank.gone_s for rank in found.ranks]
        assert gone_s[0] is not None
        assert gone_s[0] < found.ending_s
        assert gone_s[1] is None or gone_s[1] >= gone_s[0]
        assert found.ranks[0].pid == attempt.record(0)["pid"]


def test_ranks_that_are_done_and_do_not_leave_do_not_hold_the_node(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "LINGER_S", 0.3)
    hang = "signal.signal(signal.SIGTERM, signal.SIG_IGN); atexit.register(time.sleep, 100)"
    attempt.script(f"import atexit, signal\nif rank == 0: {hang}\n")
    assert attempt.run() == 0
    found = attempt.outcome()
    assert (found.launcher_exit, found.ended_by, [rank.exit for rank in found.ranks]) == (0, "", [0, 0])
    assert "ranks that had ended well" in capsys.readouterr().err
    assert not start_time(attempt.record(0)["pid"])


def test_loader_workers_do_not_outlive_their_launcher(attempt: Attempt) -> None:
    attempt.script(f"""
        import subprocess
        if rank == 0:
            child = subprocess.Popen(["sleep", "100"])
            open({str(attempt.folder)!r} + "/worker", "w").write(str(child.pid))
    """)
    assert attempt.run() == 0
    pid = (attempt.folder / "worker").read_text()
    wait_until(lambda: not alive(pid), "the end of the worker")


@pytest.mark.parametrize("deaf", [False, True])
def test_what_a_script_leaves_in_a_session_of_its_own_is_ended(
    attempt: Attempt, deaf: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a tracker's service or a data server; one that does not heed a SIGTERM, too. Nothing else is touched."""
    monkeypatch.setattr("dscampaign.jobs.agent.launch.TERM_GRACE_S", 0.5)
    alike = {**os.environ, "CAMPAIGN_ATTEMPT_DIR": str(attempt.paths.dir), "CAMPAIGN_AGENT_PID": "1"}
    other = subprocess.Popen(["sleep", "100"], env=alike, start_new_session=True)
    attempt.script(f"""
        import subprocess
        if rank == 0:
            trap = "trap '' TERM; " if {deaf} else ""
            words = ["sh", "-c", trap + "echo; sleep 100 & wait"]
            child = subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE)
            child.stdout.readline()
            open({str(attempt.folder)!r} + "/service", "w").write(str(child.pid))
    """)
    try:
        assert attempt.run() == 0
        wait_until(lambda: not alive((attempt.folder / "service").read_text()), "the end of the service")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


# -- what it resumes from ----------------------------------------------------------------------------------------


def resumed(attempt: Attempt) -> str:
    attempt.script("print('RESUME', os.environ['CAMPAIGN_RESUME'])")
    assert attempt.run() == 0
    return Path(next(attempt.paths.logs.glob("*_rank0.log")).read_text().split("RESUME", 1)[1].strip()).name


def events(attempt: Attempt) -> list[dict[str, object]]:
    lines = (json.loads(line) for line in attempt.paths.metrics.read_text().splitlines())
    return [{name: value for name, value in line.items() if name != "ts"} for line in lines]


def test_a_checkpoint_that_is_passed_over_is_told_in_the_store(attempt: Attempt) -> None:
    folder = attempt.run_paths.checkpoints("hash")
    make(folder, 100, config_hash="hash")
    damaged = make(folder, 200, config_hash="hash")
    (damaged / "shards/1.pt").write_bytes(b"x" * 1000)
    attempt.change(min_resume_step=200, steps_decide=True)
    assert resumed(attempt) == "g0001-step00000100"
    skipped, older = events(attempt)
    reason = "1.pt: content differs from the manifest"
    assert skipped == {"event": "checkpoint_skipped", "reason": reason, "path": str(damaged)}
    assert (older["event"], older["step"], older["recorded_step"]) == ("checkpoint_older", 100, 200)


def test_a_script_of_ones_own_looks_for_its_checkpoints_itself(attempt: Attempt) -> None:
    attempt.change(min_resume_step=200)
    assert resumed(attempt) == ""
    assert not attempt.paths.metrics.exists()


def test_the_heart_beats_while_a_checkpoint_is_verified(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "HEARTBEAT_S", 0.0)
    beats = []

    def slow(*_: object, **__: object) -> None:
        wait_until(attempt.paths.heartbeat(0).exists, "a heartbeat")
        beats.append(Heartbeat.read(attempt.paths.heartbeat(0)))

    monkeypatch.setattr(checkpoint, "newest_verified", slow)
    assert resumed(attempt) == ""
    assert [(beat.host, beat.phase) for beat in beats if beat] == [("n0", "start")]


def test_what_a_killed_rank_left_half_written_is_removed(attempt: Attempt) -> None:
    folder = attempt.run_paths.checkpoints("hash")
    folder.mkdir(parents=True)
    checkpoint.begin(folder, 2, 100)  # of a newer attempt
    attempt.script(f"os.makedirs({str(folder)!r} + '/g0001-step00000003.tmp'); os.kill(os.getpid(), signal.SIGKILL)")
    attempt.change(train={"steps": 3})  # of the built-in trainer: a script's folders are its own
    assert attempt.run() == 1
    assert [path.name for path in folder.iterdir()] == ["g0002-step00000100.tmp"]


# -- how far the ranks are --------------------------------------------------------------------------------------


def test_the_heartbeat_tells_how_far_each_rank_is_and_the_outcome_where_it_was_killed(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "HEARTBEAT_S", 0.05)
    attempt.script(f"""
        sys.path.insert(0, {str(Path(report.__file__).parent)!r})
        from report import phase, progress  # as a script in another environment does
        progress(119 + rank)
        if rank == 0:
            told, seen = {str(attempt.paths.heartbeat(0))!r}, {{}}
            while seen.get("1", {{}}).get("phase") != "eval" or "0" not in seen:
                time.sleep(0.05)
                seen = json.load(open(told))["ranks"] if os.path.exists(told) else {{}}
            os.kill(os.getpid(), signal.SIGKILL)
        phase("eval")
        {FOREVER}
    """)
    assert attempt.run() == 1
    assert [rank.step for rank in attempt.outcome().ranks] == [119, 120]
    found = Heartbeat.read(attempt.paths.heartbeat(0))
    assert found is not None
    assert (found.host, found.phase) == ("n0", "steps")
    assert {rank: (p.step, p.phase) for rank, p in found.ranks.items()} == {0: (119, "steps"), 1: (120, "eval")}
    assert found.idle_s is not None


# -- several nodes ----------------------------------------------------------------------------------------------


def test_two_nodes_meet_and_each_leaves_its_outcome(attempt: Attempt) -> None:
    attempt.change(nodes=2, ranks_per_node=1)
    attempt.script("print('MEET', rank, os.environ['MASTER_PORT'], os.environ['WORLD_SIZE'])\nreport(rank + 1)")
    second, first = attempt.start(1), attempt.start(0)
    assert (first.wait(HANGS_S), second.wait(HANGS_S)) == (0, 0)
    assert [attempt.outcome(node).ranks[0].rank for node in (0, 1)] == [0, 1]
    meets = [next(attempt.paths.logs.glob(f"*_rank{rank}.log")).read_text().split()[2:] for rank in (0, 1)]
    assert meets[0] == meets[1]
    assert meets[0][1] == "2"


def test_a_node_whose_peer_failed_does_not_wait_for_it(attempt: Attempt) -> None:
    attempt.change(nodes=2, ranks_per_node=1)
    attempt.script(FOREVER)
    write_atomically(attempt.paths.outcome(1), json.dumps({"launcher_exit": 1}))
    assert attempt.run() == 1
    assert attempt.outcome().ended_by == "peer"


def test_a_job_that_is_launched_a_second_time_under_its_id_runs_on_no_node(attempt: Attempt) -> None:
    """A slurmctld that was killed may forget that it has launched a job."""
    attempt.change(nodes=2, ranks_per_node=1)
    attempt.script("[report(step) for step in (1, 2, 3)]")
    launched = [attempt.start(node) for node in (1, 0)]
    assert [process.wait(HANGS_S) for process in launched] == [0, 0]
    before = attempt.outcome(1)
    again = [attempt.start(node) for node in (1, 0)]
    assert [process.wait(HANGS_S) for process in again] == [EXIT_NOT_MINE, EXIT_NOT_MINE]
    assert attempt.outcome(1) == before


# -- as a process -----------------------------------------------------------------------------------------------


def test_everything_is_for_its_owner_alone(attempt: Attempt) -> None:
    """Nobody else gets into a folder, whatever the script's own files allow, which are made under the user's umask."""
    attempt.script("report(1)")
    assert attempt.start().wait(HANGS_S) == 0
    own = {attempt.paths.metrics, *attempt.paths.logs.glob("*_rank*.log")}  # the script's, and the launcher's
    for path in [attempt.paths.dir, *attempt.paths.dir.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & (0o022 if path in own else 0o077) == 0, f"{path.name} is {mode:o}"


def test_the_agent_needs_no_training_stack_and_no_database() -> None:
    import subprocess

    heavy = "{'torch', 'deepspeed', 'transformers', 'numpy', 'sqlalchemy', 'submitit'}"
    code = f"import sys, dscampaign.jobs.agent.agent; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# -- who may read it ------------------------------------------------------------------------------------------------


def test_ranks_have_the_user_s_umask_but_let_nobody_write(attempt: Attempt) -> None:
    attempt.script("""
        for name in ("mine", "mine too"):
            open(os.path.join(os.environ["CAMPAIGN_ATTEMPT_DIR"], name), "w").close()
    """)
    previous = os.umask(0o077)  # the agent's own, as `main` sets it
    try:
        assert agent.Agent(attempt.payload, Node("7_0", 0, "n0", ""), umask=0o002).run() == 0
    finally:
        os.umask(previous)
    assert stat.S_IMODE((attempt.paths.dir / "mine").stat().st_mode) == 0o644
    assert stat.S_IMODE(attempt.paths.launcher_log(0).stat().st_mode) == 0o600
    assert stat.S_IMODE(attempt.paths.logs.stat().st_mode) == 0o700


@pytest.mark.parametrize("checkpoints", [False, True])
def test_what_an_attempt_of_a_shared_campaign_leaves_can_be_read(attempt: Attempt, checkpoints: bool) -> None:
    """As `campaign share` leaves the folders; also what ranks wrote under a umask that lets nobody read."""
    attempt.paths.dir.chmod(0o2750)
    attempt.run_paths.dir.chmod(0o2750)
    shared = {"campaign": "c", "shared": {"group": "vision", "checkpoints": checkpoints}}
    attempt.run_paths.campaign_marker.write_text(json.dumps(shared))
    attempt.script("report(1)")
    previous = os.umask(0o077)
    try:
        assert agent.Agent(attempt.payload, Node("7_0", 0, "n0", ""), umask=0o077).run() == 0
    finally:
        os.umask(previous)
    read = [attempt.paths.metrics, attempt.paths.started, attempt.paths.outcome(0), *attempt.paths.logs.iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in read} == {0o640}
    assert stat.S_IMODE(attempt.paths.logs.stat().st_mode) == 0o2750
    there = attempt.run_paths.checkpoints("hash")
    assert {stat.S_IMODE(path.stat().st_mode) & 0o777 for path in (there, there.parent)} == {
        0o750 if checkpoints else 0o700
    }
