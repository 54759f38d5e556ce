"""Labelled attempts that ended: what torch, NCCL, DeepSpeed and Slurm say, and the class that it comes to.

A file holds `batch`, `family` and `cases`. The rules were written with batch 1 at hand, and first judged the later ones
without having seen them. A family is a subject, such as storage; by default the file's name says it. Batches 5 to 7 are
by people who had not read the rules: the families of batch 5 were opened one after the other, then batch 6, of all
subjects, and batch 7, of all subjects too: no rule was written for it, nor may one be.
benchmarks/results/first-contact.csv keeps what the rules of that moment made of each. Batch 8 is by a reviewer who had
read the rules and looked for names, settings and numbers that mislead them; where he accepted several classes, the
label is the one that the rules mended for it give. Batch 9 is what is left where no rank recorded anything: the text of
logs alone; its author had not read the rules. Batch 10 is by the same author, who then had, and wrote it to see whether
what was mended for batch 9 holds beyond it. Batch 11 is of all subjects, in the words of newer libraries (torch 2.11,
transformers 5); its author knew what the classes mean and not the rules. One of its labels was corrected after its
first contact, as the case says; the figure counts that case as misjudged. Batch 12 is of ends before the first step
that pass by themselves or are one node's fault, and of mistakes beside them; batch 13 of fabrics, JSON logs, exception
groups and other languages; batch 14 of batch 12's kinds, written after its rules and judged once before any change;
batch 15 of ends that the rules were mended for; batch 16 of frameworks and containers, labelled before their first
contact, without those that repeat known texts. A case has `name`, `label` and what was left behind:

    job       Slurm's state, exit code and reason; "GONE" where there is no Slurm. Default: FAILED 1:0
    nodes     one entry a node that left an outcome; the entry's keys may stand in the case itself for a single node
      ranks     by number or range: an exit code, "silent" (or the negative number of the signal), "silent @12.5"
                (gone at 12.5 s), or "12.5 Type: message", with `trace` after "at" and "error" where it matters
      log, rank_logs   text of the launcher's and of ranks' logs; "@repeat N text" stands for N lines, {} for the number
      exit, by, ending, steps [start, last], oom_kills, gpus {asked, before, after} (GiB of 80)
    agent_log of Slurm's own file, where no agent left an outcome
    asked     nodes of the attempt, where some left nothing
    own       a script of the user's own decides what is complete; cpu: the ranks train on the CPU
    host      the node that the verdict must name; hard: it sounds like another class; note: where it is from

<name> in a text stands for a phrase of phrases.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dscampaign.jobs.agent.evidence import LogLine, NodeOutcome, RankEnd, pick
from dscampaign.jobs.agent.gpus import Gpu, GpuFacts
from dscampaign.orchestrator.executors.base import JobView
from dscampaign.orchestrator.failures.evidence import Ended

FOLDER = Path(__file__).parent
GIB = 2**30
_REPEAT = re.compile(r"@repeat (\d+) (.*)")
_SILENT = re.compile(r"silent(?: @([\d.]+))?")
_ERROR = re.compile(r"([\d.]+) ([\w.]+)(?:: (.*))?", re.DOTALL)


@dataclass(frozen=True)
class Case:
    """One attempt, and what it was.

    Attributes:
        host: the node that the verdict must name, None if any will do.
        hard: it sounds like a class that it is not.
    """

    name: str
    batch: int
    family: str
    label: str
    ended: Ended
    host: str | None
    hard: bool


@cache
def load() -> tuple[Case, ...]:
    """All cases of all files."""
    raw = yaml.safe_load((FOLDER / "phrases.yaml").read_text(encoding="utf-8"))
    phrases = {name: text.rstrip("\n") for name, text in raw.items()}
    return tuple(case for path in sorted(FOLDER.glob("*-[0-9]*.yaml")) for case in _cases(path, phrases))


def _cases(path: Path, phrases: Mapping[str, str]) -> Iterator[Case]:
    text = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for raw in text["cases"]:
        filled = _fill(raw, phrases)
        yield Case(
            name=filled["name"],
            batch=text["batch"],
            family=text.get("family", path.stem.rpartition("-")[0]),
            label=filled["label"],
            ended=_ended(filled),
            host=filled.get("host"),
            hard=filled.get("hard", False),
        )


def _fill(value: Any, phrases: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return re.sub(r"<([a-z-]+)>", lambda found: phrases.get(found[1], found[0]), value)
    if isinstance(value, list):
        return [_fill(item, phrases) for item in value]
    if isinstance(value, dict):
        return {key: _fill(item, phrases) for key, item in value.items()}
    return value


def _ended(raw: Mapping[str, Any]) -> Ended:
    nodes = raw.get("nodes", [raw] if "ranks" in raw or "log" in raw else [])
    job = raw.get("job", "FAILED 1:0")
    return Ended(
        job=_job(job, raw) if job else None,
        outcomes=[_outcome(node, rank, raw) for rank, node in enumerate(nodes)],
        nodes=raw.get("asked", max(1, len(nodes))),
        target_step=raw.get("target", 1000),
        steps_decide=not raw.get("own", False),
        on_cpu=raw.get("cpu", False),
        agent_lines=[LogLine("12_0_log.err", n, line) for n, line in enumerate(_expand(raw.get("agent_log", "")), 1)],
    )


def _job(text: str, raw: Mapping[str, Any]) -> JobView:
    state, code, reason = [*text.split(), "", ""][:3]
    oom = raw.get("step_oom", False)
    nodes = raw.get("job_nodes", "n0")
    return JobView("t", 0, "12_0", state, reason, exit_code=code, nodes=nodes, step_out_of_memory=oom)


def _outcome(raw: Mapping[str, Any], node_rank: int, case: Mapping[str, Any]) -> NodeOutcome:
    start, last = raw.get("steps", case.get("steps", [0, None]))
    logs = {f"t_rank{rank}.log": text for rank, text in raw.get("rank_logs", {}).items()}
    logs[f"launcher-{node_rank}.log"] = raw.get("log", "")
    share = raw.get("memory_peak")
    return NodeOutcome(
        generation=1,
        job_id="local-box-1" if str(case.get("job")).startswith("GONE") else "12_0",
        node_rank=node_rank,
        host=f"n{node_rank}",
        launcher_exit=raw.get("exit", 1),
        ended_by=raw.get("by", ""),
        started_s=0.0,
        ended_s=100.0,
        start_step=start,
        last_step=last,
        ranks=tuple(_ranks(raw.get("ranks", {}))),
        lines=tuple(line for name, text in logs.items() for line in pick(name, _expand(text))),
        oom_kills=raw.get("oom_kills", 0),
        ending_s=raw.get("ending"),
        gpus=_gpus(raw["gpus"]) if "gpus" in raw else None,
        memory_peak_bytes=int(share * 64 * GIB) if share else None,
        memory_peak_of="processes" if share else "",
        memory_limit_bytes=64 * GIB if share else None,
    )


def _ranks(raw: Mapping[Any, Any]) -> Iterator[RankEnd]:
    for key, value in raw.items():
        first, _, last = str(key).partition("-")
        for rank in range(int(first), int(last or first) + 1):
            yield _rank(rank, value)


def _rank(rank: int, value: Any) -> RankEnd:
    pid = 4000 + rank
    if isinstance(value, int):  # who is killed by a signal records nothing
        return RankEnd(rank, value if value >= 0 else None, None, pid)
    if isinstance(value, str) and (silent := _SILENT.fullmatch(value)):
        return RankEnd(rank, None, None, pid, float(silent[1]) if silent[1] else None)
    text, trace = (value["error"], value.get("trace", "")) if isinstance(value, dict) else (value, "")
    found = _ERROR.fullmatch(text.strip())
    assert found, text
    kind = found[2] if "." in found[2] else f"builtins.{found[2]}"
    error = {"type": kind, "message": found[3] or "", "trace": trace.splitlines(), "ts": float(found[1])}
    return RankEnd(rank, 1, error, pid)


def _gpus(raw: Mapping[str, Any]) -> GpuFacts:
    def seen(used: list[float] | None) -> tuple[Gpu, ...] | None:
        if used is None:
            return None
        return tuple(Gpu(str(n), int(gib * GIB), 80 * GIB) for n, gib in enumerate(used))

    before = seen(raw.get("before"))
    return GpuFacts(raw["asked"], before, seen(raw["after"]) if "after" in raw else before, raw.get("trouble", ""))


def _expand(text: str) -> Iterator[str]:
    for line in text.splitlines():
        repeat = _REPEAT.fullmatch(line)
        if repeat:
            yield from (repeat[2].replace("{}", str(n)) for n in range(1, int(repeat[1]) + 1))
        else:
            yield line
