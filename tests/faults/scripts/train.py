"""A training that computes nothing, and in which everything goes wrong that it is told to.

    train.py STEPS [--step-s S] [--every K] [--rank R] [--deaf] [--watched] [--exit-on-stop N] [FAULT@STEP[xTIMES]]...

Every process writes each step that it executes into a ledger that outlives all attempts, before it reports it: the
ledger tells what was executed, whatever the program under test believes. It lies in `LEDGER_DIR`, away from the folder
of the campaign, and is only ever appended to, line by line: its order is the order of events over all processes.

A fault happens on rank R, before the step that it names, in the first TIMES (default 1) attempts that come there:

    kill=N          the rank dies by signal N
    launcher=N      the launcher does; agent=N: the agent does
    exit=N          the script exits with N
    raise=TEXT      an exception with these words
    mistake=NAME    an error that would show again, see MISTAKES
    alloc=MB        so much memory more, held until the job is killed for it or the script ends
    slow=S          each further step of this attempt takes so many seconds
    hang=S          nothing for so many seconds
    save=N          killed by signal N in the midst of writing the checkpoint of that step
    truncate=N      the newest checkpoint loses its end, and the rank dies by signal N
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dscampaign.jobs import report
from dscampaign.jobs.shared import checkpoint, checkpoint_retention

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GENERATION = int(os.environ["CAMPAIGN_GENERATION"])
FOLDER = Path(os.environ["CAMPAIGN_CHECKPOINT_DIR"])
SHARD_BYTES = 20_000
TRUNCATED_BYTES = 7
KEEP = 2


@dataclass(frozen=True)
class Fault:
    """One of the faults above."""

    kind: str
    value: str
    step: int
    times: int

    @classmethod
    def parse(cls, text: str) -> Fault:
        found = re.fullmatch(r"(\w+)(?:=(.*?))?@(\d+)(?:x(\d+))?", text)
        assert found, f"{text} is no fault"
        return cls(found[1], found[2] or "", int(found[3]), int(found[4] or 1))

    @property
    def name(self) -> str:
        return f"{self.kind}={self.value}@{self.step}"


class Ledger:
    """What was executed, by whom, in the order in which it was."""

    def __init__(self) -> None:
        self.path = Path(os.environ["LEDGER_DIR"], os.environ["CAMPAIGN_RUN"] + ".jsonl")
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, step: int, **more: object) -> None:
        job = f"{os.environ.get('SLURM_ARRAY_JOB_ID')}_{os.environ.get('SLURM_ARRAY_TASK_ID')}"
        who = {"generation": GENERATION, "rank": RANK, "pid": os.getpid(), "job": job}
        gpus = os.environ.get("CAMPAIGN_VISIBLE_DEVICES", "")
        node = {"node": os.environ.get("SLURMD_NODENAME", ""), "ts": time.time(), "gpus": gpus}
        os.write(self._descriptor, (json.dumps({"what": what, "step": step, **who, **node, **more}) + "\n").encode())

    def happened(self, fault: Fault) -> int:
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return sum(1 for line in lines if line["what"] == "fault" and line["name"] == fault.name)


def main() -> None:
    """Trains."""
    options = _options()
    ledger = Ledger()
    faults = [Fault.parse(text) for text in options.faults] if options.rank in (RANK, -1) else []
    if options.watched:
        report.phase("train")
    first = _resume()
    ledger.write("start", first)
    for step in range(first + 1, options.steps + 1):
        _befall(faults, step, ledger)
        time.sleep(_SLOW.get("step_s", options.step_s))
        ledger.write("step", step)
        report.report(step, loss=1 / step, lr=GENERATION / 1000)
        stop = not options.deaf and report.should_stop()
        if step % options.every == 0 or step == options.steps or stop:
            _save(step, faults, ledger)
        if stop:
            ledger.write("stopped", step)
            sys.exit(options.exit_on_stop)
    ledger.write("end", options.steps)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--watched", action="store_true", help="names its phase, so that a hang is noticed")
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0, help="the rank with the faults; -1: all")
    parser.add_argument("--deaf", action="store_true", help="ignore the wish to stop")
    parser.add_argument("--exit-on-stop", type=int, default=85)
    parser.add_argument("--micro-batch")
    parser.add_argument("faults", nargs="*")
    return parser.parse_intermixed_args()


def _resume() -> int:
    """The step that the agent's choice of a checkpoint is of; each rank reads what it would load."""
    path = os.environ["CAMPAIGN_RESUME"]
    if not path:
        return 0
    found = checkpoint.verify(Path(path))
    assert json.loads((Path(path) / "state.json").read_text()) == {"step": found.step}
    return found.step


def _save(step: int, faults: list[Fault], ledger: Ledger) -> None:
    if RANK != 0:
        return
    draft = checkpoint.begin(FOLDER, GENERATION, step)
    state, shard = draft / "state.json", draft / "shard.bin"
    state.write_text(json.dumps({"step": step}))
    for fault in _due(faults, "save", step, ledger):
        shard.write_bytes(os.urandom(SHARD_BYTES // 2))
        _die(fault, step, ledger)
    shard.write_bytes(os.urandom(SHARD_BYTES))
    entries = checkpoint.seal(draft, [state, shard])
    report.sync()
    manifest = checkpoint.Manifest(
        step=step,
        config_hash=os.environ["CAMPAIGN_CONFIG_HASH"],
        world_size=WORLD,
        zero_stage=0,
        generation=GENERATION,
        samples_seen=step,
        files=entries,
    )
    ledger.write("saving", step)
    saved = checkpoint.commit(draft, manifest)
    ledger.write("saved", step)
    checkpoint_retention.prune(FOLDER, KEEP, step)
    for fault in _due(faults, "truncate", step, ledger):
        os.truncate(saved.path / "shard.bin", TRUNCATED_BYTES)
        _die(fault, step, ledger)


# -- what goes wrong -----------------------------------------------------------------------------------------


def _befall(faults: list[Fault], step: int, ledger: Ledger) -> None:
    acts: dict[str, Callable[[Fault], None]] = {
        "kill": lambda fault: _kill(os.getpid(), fault),
        "launcher": lambda fault: _kill(_launcher(), fault),
        "agent": lambda fault: _kill(_agent(), fault),
        "exit": lambda fault: sys.exit(int(fault.value)),
        "raise": _raise,
        "mistake": lambda fault: MISTAKES[fault.value](),
        "alloc": _allocate,
        "slow": lambda fault: _SLOW.update(step_s=float(fault.value)),
        "hang": lambda fault: time.sleep(float(fault.value)),
    }
    for kind, act in acts.items():
        for fault in _due(faults, kind, step, ledger):
            ledger.write("fault", step, name=fault.name)
            act(fault)


def _due(faults: list[Fault], kind: str, step: int, ledger: Ledger) -> list[Fault]:
    return [f for f in faults if (f.kind, f.step) == (kind, step) and ledger.happened(f) < f.times]


def _die(fault: Fault, step: int, ledger: Ledger) -> None:
    ledger.write("fault", step, name=fault.name)
    os.kill(os.getpid(), int(fault.value))


def _kill(pid: int, fault: Fault) -> None:
    os.kill(pid, int(fault.value))
    time.sleep(60)  # others end this process, or it is the one


def _agent() -> int:
    return int(os.environ["CAMPAIGN_AGENT_PID"])


def _launcher() -> int:
    """The process that the agent started: the topmost one between it and this."""
    pid = os.getpid()
    while (parent := _parent(pid)) not in (_agent(), 1):
        pid = parent
    return pid


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _raise(fault: Fault) -> None:
    raise RuntimeError(fault.value)


_HELD: list[bytearray] = []
_SLOW: dict[str, float] = {}


def _allocate(fault: Fault) -> None:
    """Slurm looks at a job's memory every two seconds, on a busy machine later."""
    _HELD.append(bytearray(b"x") * (int(fault.value) << 20))
    time.sleep(20)


def _extra_key() -> None:
    raise ValueError("1 validation error for DeepSpeedZeroConfig\nno_such_key\n  Extra inputs are not permitted")


def _batch() -> None:
    raise AssertionError("Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu")


def _no_module() -> None:
    import no_such_module  # type: ignore[import-not-found] # noqa: F401


def _no_file() -> None:
    Path("/no/such/folder/data.txt").read_text()


def _wrong_argument() -> None:
    argparse.ArgumentParser().parse_args(["--no-such-option"])


def _wrong_type() -> None:
    len(7)  # type: ignore[arg-type]


def _wrong_key() -> None:
    {"a": 1}["b"]


def _wrong_attribute() -> None:
    os.no_such_function()  # type: ignore[attr-defined]


def _wrong_name() -> None:
    exec("no_such_name")


def _syntax() -> None:
    compile("def broken(:", "broken.py", "exec")


def _ordinal() -> None:
    raise RuntimeError("CUDA error: invalid device ordinal")


MISTAKES: dict[str, Callable[[], None]] = {
    "extra-key": _extra_key,
    "batch": _batch,
    "no-module": _no_module,
    "no-file": _no_file,
    "wrong-argument": _wrong_argument,
    "wrong-type": _wrong_type,
    "wrong-key": _wrong_key,
    "wrong-attribute": _wrong_attribute,
    "syntax": _syntax,
    "wrong-name": _wrong_name,
    "ordinal": _ordinal,
}


if __name__ == "__main__":
    main()
