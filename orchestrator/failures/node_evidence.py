"""Evidence of the nodes themselves: missing GPUs, kernel logs, memory. Pure."""

from __future__ import annotations

import re
import signal

from dscampaign.jobs.agent.evidence import AGENT, LogLine, NodeOutcome
from dscampaign.jobs.shared.allocator import joins_fragments

from . import cuda_oom, devices
from .evidence import Clue, Ended, death_signal, kernel_clues, outcome_of, rank_pids, silent_ranks
from .policy import FailureClass
from .rules import KERNEL_OOM, KERNEL_STORAGE, RULES
from .verdict import Diagnosis, Verdict

_DRIVER_TROUBLE = re.compile(r"mismatch|GPU is lost|[Uu]nknown Error|reset required|requires reset", re.IGNORECASE)
NEAR_LIMIT = 0.93
"""Of the memory limit: `systemd-oomd` and the like act before the kernel does; samples miss the last moment."""
_ADDRESS = re.compile(r"\b([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\b", re.IGNORECASE)
_LOADER_KILLED = re.compile(r"DataLoader worker .*(?:killed by signal: Killed|exited unexpectedly)")


def concerns_gpu(text: str) -> bool:
    """Whether a broken GPU could cause that error."""
    return bool(devices.NAMED.search(text))


def without_gpus(found: Diagnosis | None, ended: Ended) -> bool:
    """Whether no node has a GPU to show, nor trouble with one: a driver or a mask is not right, no GPU is broken."""
    facts = [o.gpus for o in ended.outcomes]
    absent = all(gpus is not None and not gpus.before and not _DRIVER_TROUBLE.search(gpus.trouble) for gpus in facts)
    return found is not None and found.name == "no-gpu" and bool(facts) and absent


def bad_gpu(ended: Ended) -> Verdict | None:
    """A broken GPU or driver, by the node's own evidence."""
    return _by_kernel(ended, FailureClass.GPU) or next((f for o in ended.outcomes if (f := _gpu_count(o))), None)


def ambiguous_gpu(ended: Ended) -> Verdict | None:
    """A GPU fault in the kernel log that a script can cause as well."""
    return _by_kernel(ended, FailureClass.GPU_FAULT)


def storage(ended: Ended) -> Verdict | None:
    """A folder that the agent could not write to, or a storage error in the kernel log."""
    full = (Clue(line, o.host) for o in ended.outcomes for line in o.lines if line.file == AGENT and line.number == 0)
    if clue := next(full, None):
        return _shown(FailureClass.STORAGE, clue, "agent-storage")
    clue = next((clue for clue in kernel_clues(ended) if KERNEL_STORAGE.search(clue.text)), None)
    return _shown(FailureClass.STORAGE, clue, "kernel-storage") if clue else None


def host_memory(ended: Ended) -> tuple[Clue, str] | None:
    """Out of host memory, by Slurm, the control group or the kernel log; the proof and its rule."""
    job = ended.job
    if job is not None and (job.state == "OUT_OF_MEMORY" or job.step_out_of_memory):
        return Clue(LogLine("slurm", 0, job.state)), "slurm-state"
    if job is not None and job.reason == "JobLaunchFailure" and job.exit_code == "0:9" and not ended.outcomes:
        # what Slurm's OverMemoryKill makes of a batch step
        return Clue(LogLine("slurm", 0, f"{job.state} {job.exit_code} {job.reason}")), "slurm-overmemory"
    killed = next((o for o in ended.outcomes if o.oom_kills), None)
    if killed:
        return Clue(LogLine("memory.events", 0, "oom_kill"), killed.host), "cgroup-oom"
    clue = next((clue for clue in kernel_clues(ended) if _killed_ours(clue, ended)), None)
    if clue is None and (near := next(filter(_near_its_limit, ended.outcomes), None)) and _killed_in_silence(ended):
        line = LogLine(f"outcome-{near.node_rank}.json", 0, "memory_peak_bytes")
        return Clue(line, near.host), "memory-near-limit"
    return (clue, "kernel-oom") if clue else None


def has_numbers(text: str) -> bool:
    """Whether torch says how full the GPU was: then it was the GPU's memory, and not pinned memory of the host."""
    return cuda_oom.read(text) is not None


def whose_memory(ended: Ended, clue: Clue, text: str) -> tuple[FailureClass, str, str]:
    """Class, reason ("" for the error's own words) and hint of a GPU that is full."""
    outcome = outcome_of(ended, clue.host)
    memory = cuda_oom.read(text)
    if memory is None:
        kind, reason = crowded(clue, ended) or (FailureClass.OOM, "")
        return kind, reason, ""
    siblings = rank_pids(outcome) if outcome else set()
    kind = memory.kind(siblings)
    if kind is FailureClass.FOREIGN_OOM:
        others = memory.foreign(siblings)
        return kind, f"other processes hold {others:.1f} of the GPU's {memory.total:.1f} GiB on {clue.host}", ""
    if kind is FailureClass.FRAGMENTATION:
        if outcome and joins_fragments(outcome.allocator):
            return FailureClass.OOM, "", ""  # joined as far as they can be
        reason = f"{memory.unallocated:.1f} GiB are reserved in pieces, too small for {memory.tried:.1f} GiB"
        return kind, reason, "PYTORCH_ALLOC_CONF=expandable_segments:True"
    return kind, "", ""


def crowded(clue: Clue, ended: Ended) -> tuple[FailureClass, str] | None:
    """Others' memory on the rank's GPU before the attempt began, if it was much."""
    outcome = outcome_of(ended, clue.host)
    before = _used_before(outcome, clue) if outcome else 0.0
    if outcome is None or before <= cuda_oom.FOREIGN_SHARE:
        return None
    reason = f"{outcome.host}: {before:.0%} of the GPU's memory was in use before the attempt began"
    return FailureClass.FOREIGN_OOM, reason


def _by_kernel(ended: Ended, kind: FailureClass) -> Verdict | None:
    rules = [rule for rule in RULES.rules if rule.kind is kind]
    for clue in kernel_clues(ended):
        for rule in rules:
            if rule.pattern.search(clue.text) and not _of_a_neighbour(clue, ended):
                return _shown(kind, clue, rule.name)
    return None


def _of_a_neighbour(clue: Clue, ended: Ended) -> bool:
    """Whether the line names a GPU of the node that is not the attempt's: on a shared node it may be another job's."""
    named = _ADDRESS.search(clue.text)
    outcome = outcome_of(ended, clue.host)
    if named is None or outcome is None or outcome.gpus is None:
        return False
    ours = outcome.gpus.addresses
    return bool(ours) and f"{int(named[1], 16):04x}:{named[2]}:{named[3]}".lower() not in ours


def _gpu_count(outcome: NodeOutcome) -> Verdict | None:
    gpus = outcome.gpus
    if gpus is None or outcome.job_id.startswith("local-"):
        return None
    clue = Clue(LogLine(f"outcome-{outcome.node_rank}.json", 0, "gpus"), outcome.host)
    if gpus.before is None:
        if not _DRIVER_TROUBLE.search(gpus.trouble):
            return None
        return _shown(FailureClass.GPU, clue, "gpu-driver", f"{outcome.host}: NVIDIA's driver: {gpus.trouble}")
    seen = len(gpus.before)
    if gpus.missing:
        return _shown(FailureClass.GPU, clue, "gpu-count", f"{outcome.host} shows {seen} GPUs of {gpus.asked}")
    if gpus.lost and gpus.after is not None:
        reason = f"{outcome.host} lost a GPU while it ran: {len(gpus.after)} of {seen} respond"
        return _shown(FailureClass.GPU, clue, "gpu-count", reason)
    return None


def _shown(kind: FailureClass, clue: Clue, rule: str, reason: str = "") -> Verdict:
    """What a machine's own evidence proves; by default in its own words."""
    return Verdict(kind, reason or f"{clue.host}: {clue.text}", "", clue.line, rule, clue.host)


def _killed_ours(clue: Clue, ended: Ended) -> bool:
    """Whether the kernel killed a process of this attempt: on a shared node it may have been a neighbour's."""
    outcome = outcome_of(ended, clue.host)
    pids = {int(pid) for groups in KERNEL_OOM.findall(clue.text) for pid in groups if pid}
    if not pids or outcome is None:
        return False
    if pids & rank_pids(outcome):
        return True
    unexplained = bool(silent_ranks(ended)) and death_signal(ended) == 9 and not rank_pids(outcome)
    return unexplained or any(_LOADER_KILLED.search(root.text) for root in ended.roots)


def _killed_in_silence(ended: Ended) -> bool:
    return death_signal(ended) == signal.SIGKILL and bool(silent_ranks(ended))


def _near_its_limit(outcome: NodeOutcome) -> bool:
    """Whether its processes took nearly all that they may: a killer in user space leaves the kernel's log empty."""
    peak, limit = outcome.memory_peak_bytes, outcome.memory_limit_bytes
    return bool(peak and limit and outcome.memory_peak_of == "processes" and peak > NEAR_LIMIT * limit)


def _used_before(outcome: NodeOutcome, clue: Clue) -> float:
    """The share of the rank's GPU that was in use before the launcher started; of the fullest if it is not known."""
    gpus = outcome.gpus.before if outcome.gpus and outcome.gpus.before else ()
    shares = [gpu.used_bytes / gpu.total_bytes for gpu in gpus if gpu.total_bytes]
    ranks = sorted(rank.rank for rank in outcome.ranks)
    if shares and clue.rank in ranks and outcome.gpus and len(shares) == outcome.gpus.asked:
        return shares[ranks.index(clue.rank) % len(shares)]
    return max(shares, default=0.0)
