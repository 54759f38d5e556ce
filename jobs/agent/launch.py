"""Start this node's ranks under their launcher, follow them to their end, and leave nothing of them behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import open_private
from dscampaign.jobs.collect.collector import Collector
from dscampaign.jobs.shared import allocator, placeholders, variables
from dscampaign.jobs.shared.code_copy import CodeCopy, in_copy, in_copy_paths
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.jobs.shared.process_groups import signal_group

from . import cleanup, container, launchers
from .node import Node, Start
from .progress import RankWatch
from .watch import LINGER_S, LINGERS, TERM_GRACE_S, Watch

_OF_A_TASK = re.compile(
    r"SLURM_(PROCID|LOCALID|GTIDS|NPROCS|NTASKS\w*|TASK_PID|TASKS_PER_NODE|STEP_(NUM_TASKS|TASKS_PER_NODE)|PMI\w*|MPI_TYPE)"
)
"""The place of the agent among Slurm's tasks, which is never that of a rank."""

RANK_SCRIPT = str(Path(__file__).parents[1] / "rank.py")
_BUILDS = "TORCH_EXTENSIONS_DIR"

DEAF_TO_USR2 = ("/bin/sh", "-c", 'trap "" USR2; exec "$@"', "launcher")
"""Slurm may send USR2 to every process of the job, and the launcher would die of it. A signal that is ignored stays
ignored in the ranks until they ask for it."""


class Launcher:
    """Launches of an attempt: of its searches and its training; `facts` of the last, as fields of the outcome."""

    def __init__(self, node: Node, watch: Watch, progress: RankWatch, umask: int, copy: CodeCopy | None) -> None:
        self._node, self._watch, self._progress, self._umask, self._copy = node, watch, progress, umask, copy
        self.facts: dict[str, Any] = {}

    def launch(
        self, payload: Payload, paths: AttemptPaths, start: Start, collector: Collector | None = None
    ) -> tuple[int, str]:
        """Start this node's ranks and wait; return their launcher's exit code, and why they were ended."""
        rank = self._node.rank
        digests = variables.digests(os.environ, payload.env)
        payload = filled(payload, paths, start.resume)
        hostfile = paths.dir / f"hostfile-{rank}"
        write_atomically(hostfile, hostfile_text(payload.nodes, payload.ranks_per_node))
        cores = min(len(os.sched_getaffinity(0)), int(os.environ.get("SLURM_CPUS_PER_TASK") or sys.maxsize))
        image = str((payload.container or {}).get("image", ""))
        caches = cleanup.compile_caches(os.environ | payload.env, image)
        env = environment(payload, paths, self._node, start.resume, os.environ | caches, cores, self._copy)
        env |= self._progress.variables
        self.facts = {"allocator": allocator.setting(env), "variables": digests}
        for lock in cleanup.clear_build_locks(Path(caches[_BUILDS])) if _BUILDS in caches else ():
            print(f"{lock} was removed: its build has ended", file=sys.stderr, flush=True)
        line = command(payload, hostfile, rank, start.address, start.port, self._copy)
        line, env = container.wrapped(line, env, payload, paths)
        with open(paths.launcher_log(rank), "ab", opener=open_private) as log:
            launcher = subprocess.Popen(
                [*DEAF_TO_USR2, *line],
                cwd=paths.dir,  # `python -m` puts the present folder first: the user's would shadow modules
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=self._umask,
            )
        ended_by = self._watch.follow(launcher, paths, start, collector)
        signal_group(launcher.pid)  # ranks and loader workers that outlived their launcher
        cleanup.end_left_processes(paths.dir, TERM_GRACE_S)
        self._progress.look()
        if ended_by == LINGERS:
            minutes = LINGER_S / 60
            print(f"ranks that had ended well {minutes:.0f} minutes ago were still there: killed", file=sys.stderr)
            return 0, "stop" if self._watch.stop_asked else ""
        return launchers.exit_code(launcher.wait(), paths.launcher_log(rank)), ended_by


def command(
    payload: Payload, hostfile: Path, node_rank: int, address: str, port: int, copy: CodeCopy | None = None
) -> list[str]:
    """Return the launcher's command line, with `rank.py` and the script."""
    sizes = payload.nodes, payload.ranks_per_node
    place = launchers.NodeLaunch(payload.python, *sizes, node_rank, address, port, str(hostfile))
    line, options = [*payload.command], options_of(payload)
    if copy:
        folder = Path(payload.code)
        line = [*in_copy(line, _workdir(payload), copy, folder)]
        options = [*in_copy(("", *options), _workdir(payload), copy, folder)][1:]
    return [*launchers.command(payload.launcher, place, options), RANK_SCRIPT, *line]


def filled(payload: Payload, paths: AttemptPaths, resume: str) -> Payload:
    """Return the payload with the values of this attempt in the placeholders of its command and environment."""
    if payload.train:
        return payload
    contract = _contract(payload, paths, resume)
    values = {name: contract[f"CAMPAIGN_{variable}"] for name, variable in placeholders.AT_LAUNCH.items()}
    command, options = (
        tuple(map(placeholders.without_escapes, placeholders.filled_words(words, values)))
        for words in (payload.command, payload.launcher_options)
    )
    env = {n: placeholders.without_escapes(placeholders.filled(text, values)) for n, text in payload.env.items()}
    return replace(payload, command=command, launcher_options=options, env=env)


def options_of(payload: Payload) -> list[str]:
    """Return the launcher's options with an absolute path of its file: the launcher starts in another folder."""
    words = list[str]()
    for option, value in zip(("", *payload.launcher_options), payload.launcher_options, strict=False):
        name, equals, same = value.rpartition("=")
        is_file = (name or option) == "--config_file"
        words.append(f"{name}{equals}{Path(_workdir(payload), same)}" if is_file else value)
    return words


def hostfile_text(nodes: int, ranks_per_node: int) -> str:
    """Return one line a node. The names are only labels: with ``--no_ssh`` nobody resolves them."""
    return "".join(f"node-{rank} slots={ranks_per_node}\n" for rank in range(nodes))


def environment(
    payload: Payload,
    paths: AttemptPaths,
    node: Node,
    resume: str,
    base: Mapping[str, str],
    cpu_count: int,
    copy: CodeCopy | None = None,
) -> dict[str, str]:
    """Return the environment of the launcher and of every rank."""
    other = (_OF_A_TASK, variables.PER_TASK)
    base = {name: value for name, value in base.items() if not any(pattern.fullmatch(name) for pattern in other)}
    env = {
        **base,
        **_slurm_sizes(payload, base),
        **_defaults(payload, cpu_count, base),
        **payload.env,
        **_contract(payload, paths, resume),
    }
    workdir = _workdir(payload)
    env |= {"CAMPAIGN_WORKDIR": workdir, "CAMPAIGN_CODE": payload.code if copy else ""}
    env["CAMPAIGN_CODE_ROOT"] = copy.root if copy else ""
    if env.get("PYTHONPATH"):
        env["PYTHONPATH"] = in_copy_paths(env["PYTHONPATH"], workdir, copy, Path(payload.code))
    env |= allocator_default(payload, env)
    env["CAMPAIGN_AGENT_PID"] = str(os.getpid())
    env["CAMPAIGN_VISIBLE_DEVICES"] = node.visible_devices if payload.gpus_per_node else ""
    if payload.mem_per_process_bytes:
        on_cpu = env.get("DS_ACCELERATOR") == "cpu"
        limited = "CAMPAIGN_MEM_PER_PROCESS" if on_cpu else "CAMPAIGN_GPU_MEM_PER_PROCESS"
        env[limited] = str(payload.mem_per_process_bytes)
    return env


def _slurm_sizes(payload: Payload, base: Mapping[str, str]) -> dict[str, str]:
    if payload.launcher == "python" or not (base.get("SLURM_JOB_ID") or payload.launcher == "srun"):
        return {}
    world, each = str(payload.nodes * payload.ranks_per_node), str(payload.ranks_per_node)
    several = f"{each}(x{payload.nodes})" if payload.nodes > 1 else each
    sizes = dict.fromkeys(("NTASKS", "NPROCS", "STEP_NUM_TASKS"), world)
    sizes |= dict.fromkeys(("TASKS_PER_NODE", "STEP_TASKS_PER_NODE"), several)
    sizes |= dict.fromkeys(("NNODES", "JOB_NUM_NODES"), str(payload.nodes)) | {"NTASKS_PER_NODE": each}
    return {f"SLURM_{name}": value for name, value in sizes.items()}


def allocator_default(payload: Payload, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return variables for the built-in training's allocator of GPU memory, beside ``env``.

    A script of the user's own may share memory between processes in ways that do not allow expandable segments.
    """
    on_gpus = payload.gpus_per_node and env.get("DS_ACCELERATOR") != "cpu"
    return allocator.default(env) if payload.train and on_gpus else {}


def _defaults(payload: Payload, cpu_count: int, base: Mapping[str, str]) -> dict[str, str]:
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cpu_count // payload.ranks_per_node)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "COLUMNS": "240",  # Rich, as of Lightning, wraps lines that are written to a file
    }
    if not payload.gpus_per_node:
        defaults["DS_ACCELERATOR"] = "cpu"
        if payload.launcher == "accelerate":
            defaults[launchers.ON_CPUS] = "true"
    return {name: value for name, value in defaults.items() if name not in base}


def _workdir(payload: Payload) -> str:
    return payload.workdir or os.getcwd()  # noqa: PTH109 - as it is spelt


def _contract(payload: Payload, paths: AttemptPaths, resume: str) -> dict[str, str]:
    run = payload.run_paths
    values: dict[str, object] = {
        "METRICS_FILE": paths.metrics,
        "ATTEMPT_DIR": paths.dir,
        "RUN_DIR": run.dir,
        "CHECKPOINT_DIR": run.checkpoints(payload.config_hash),
        "RESUME": resume,
        "DS_CONFIG": paths.ds_config,
        "TRAIN_CONFIG": paths.train_config if payload.train else "",
        "STOP_FILE": paths.stop,
        "DATA_DIR": payload.data_dir,
        "NAME": payload.campaign,
        "RUN": payload.run,
        "GENERATION": payload.generation,
        "CONFIG_HASH": payload.config_hash,
        "SEED": payload.seed,
        "STEPS": payload.target_step or "",
        "GLOBAL_BATCH": payload.global_batch or "",
        "MICRO_BATCH": payload.micro_batch or "",
        "ACCUMULATION": payload.accumulation or "",
    }
    return {f"CAMPAIGN_{name}": str(value) for name, value in values.items()}
