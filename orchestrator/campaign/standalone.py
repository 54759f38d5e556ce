"""Writes a run as a self-contained batch script, to inspect or to run by hand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dscampaign.jobs.agent import launch, launchers
from dscampaign.jobs.agent.node import Node
from dscampaign.jobs.shared import allocator
from dscampaign.jobs.shared.layout import BY_HAND, AttemptPaths, CampaignPaths, RunPaths
from dscampaign.jobs.shared.payload import SETUP_PYTHON, Payload
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.executors.setup_lines import python_chosen
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.sbatch import Value, prologue, render

from .submission import Submission

_OF_AN_AGENT: Final = frozenset({"CAMPAIGN_AGENT_PID", "CAMPAIGN_VISIBLE_DEVICES"})
_END: Final = "END_OF_FILE"
_HANDLED: Final = frozenset({"nodes", "setup", "array_parallelism", "signal_delay_s", "additional_parameters"})


def render_run(submission: Submission, run: Run) -> str:
    """Return the script. It writes to `{dir}/{campaign}/by-hand/{run}`, apart from the campaign's own attempts."""
    if run.config.container:
        raise UserError("a script of `campaign render` starts no container", "submit it, or leave `container` out")
    payload, paths = _payload(submission, run)
    resources = job_request.resources(run.config)
    setup = resources.get("setup", ())
    if payload.setup_chooses and setup:
        before, after = python_chosen(setup)
        setup = [before, *setup, *after.splitlines()]
    values: dict[str, Value] = {
        "name": f"{payload.campaign}-{run.name}"[:100],
        "nodes": payload.nodes,
        "log": f"{run.name}-%j.log",
        "options": list(_options(resources)),
        "prologue": prologue(),
        "setup": [*setup, *_allocator(payload), *_files(payload, paths)],
        "environment": list(_environment(payload, paths)),
        "attempt_dir": paths.dir,
        "ranks_per_node": payload.ranks_per_node,
        "python": payload.python,
        "launcher": [_launcher(payload)],
        "training": [shlex.join([launch.RANK_SCRIPT, *payload.command])],
    }
    return render("run.sbatch", values)


def _payload(submission: Submission, run: Run) -> tuple[Payload, AttemptPaths]:
    campaign = CampaignPaths(submission.dir, submission.spec.name)
    paths = AttemptPaths(campaign.dir / BY_HAND / run.name / "g0001")
    payloads = job_request.Payloads(campaign, store=None, workdir=str(submission.workdir))
    payload = payloads.of(
        run, run.config, str(paths.dir), generation=1, micro_batch=run.micro_batch, token=BY_HAND, attempt_id=0
    )
    return launch.filled(payload, paths, resume=""), paths


def _options(resources: Mapping[str, Any]) -> Iterator[str]:
    options = {name.replace("_", "-"): value for name, value in resources.items() if name not in _HANDLED}
    options |= resources.get("additional_parameters", {})
    for name, value in options.items():
        yield f"--{name}" if value is True else f"--{name}={shlex.quote(str(value))}"
    if delay_s := resources.get("signal_delay_s"):
        yield f"--signal=USR2@{delay_s}"


def _environment(payload: Payload, paths: AttemptPaths) -> Iterator[str]:
    node = Node(job_id=BY_HAND, rank=0, name="", visible_devices="")
    unknown = dict.fromkeys(("OMP_NUM_THREADS", *allocator.NAMES), "")
    env = launch.environment(payload, paths, node, resume="", base=unknown, cpu_count=1)
    for name, value in env.items():
        if name not in _OF_AN_AGENT and (name not in unknown or value):
            yield f"{name}={shlex.quote(value)}"


def _launcher(payload: Payload) -> str:
    """Return the launcher's command line with the script's variables, which are words with `"$`."""
    python = f'"${{{SETUP_PYTHON}:-{payload.python}}}"' if payload.setup_chooses else payload.python
    sizes = payload.nodes, payload.ranks_per_node
    place = launchers.NodeLaunch(python, *sizes, "@node@", '"$address"', '"$port"', '"$hostfile"')
    words = launchers.command(payload.launcher, place, launch.options_of(payload))
    return " ".join(word if '"$' in word else shlex.quote(word) for word in words)


def _allocator(payload: Payload) -> Iterator[str]:
    """Yield the settings that an agent adds if neither the spec nor the set-up has chosen."""
    if added := launch.allocator_default(payload, payload.env):
        chosen = "".join(f"${{{name}-}}" for name in added)
        yield f'[ -n "{chosen}" ] || export {" ".join(f"{name}={value}" for name, value in added.items())}'


def _files(payload: Payload, paths: AttemptPaths) -> Iterator[str]:
    """Yield shell lines that write the configuration files, so that the script needs no other file."""
    refusal = f"{paths.dir} holds an earlier run of this script: move it away to train again"
    yield f"[ ! -e {shlex.quote(str(paths.metrics))} ] || {{ echo {shlex.quote(refusal)} >&2; exit 1; }}"
    folders = (paths.dir, paths.ranks, RunPaths(Path(payload.run_dir)).checkpoints(payload.config_hash))
    yield f"(umask 077 && mkdir -p {shlex.join(str(folder) for folder in folders)})"
    yield f"chmod 700 {shlex.quote(payload.run_dir)}"  # an access control list that is handed down heeds no umask
    yield from _here_document(paths.ds_config, payload.ds_config)
    if payload.train:
        yield from _here_document(paths.train_config, payload.train)


def _here_document(path: Path, content: Mapping[str, Any]) -> Sequence[str]:
    """JSON on lines of its own: none of them can be the end mark, and the shell replaces nothing in it."""
    return [f"cat >{shlex.quote(str(path))} <<'{_END}'", *json.dumps(content, indent=1).splitlines(), _END]
