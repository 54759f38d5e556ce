"""Check that the Python of a spec has the packages of the training, without loading them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from .check import At, Check
from .interpreter import answer
from .requirements import Requirements

_OF_THE_TRAINER: Final = ("deepspeed", "transformers")
_OF_LAUNCHERS: Final = {None: ("deepspeed",), "deepspeed": ("deepspeed",), "accelerate": ("accelerate",)}
_ASK: Final = "import sys; from importlib.util import find_spec; print(*(n for n in sys.argv[1:] if not find_spec(n)))"
_WAIT_S: Final = 20.0
_WRITE: Final = "write the path of an interpreter as `python`"
_NODES: Final = "`campaign doctor SPEC --on-node` checks a node"


def python_checks(here: str, requirements: Sequence[Requirements]) -> Iterator[Check]:
    """Return verdicts on the interpreters as this host sees them; a cluster's nodes may have others."""
    asked: dict[tuple[str, tuple[str, ...]], Requirements] = {}
    for required in requirements:
        config = required.config
        if config.container:  # only a node can start it
            continue
        own = _OF_THE_TRAINER if config.command is None else _OF_LAUNCHERS.get(config.launcher, ())
        asked.setdefault((config.python or sys.executable, ("torch", *own)), required)
    yield from (_python(At(here), python, names, required) for (python, names), required in asked.items())


def _python(at: At, python: str, names: Sequence[str], required: Requirements) -> Check:
    config = required.config
    local = config.executor == "local"
    try:
        done = answer([python, "-c", _ASK, *names], {**os.environ, **config.env}, _WAIT_S)
    except (OSError, subprocess.TimeoutExpired) as exc:
        seen = f"{python} did not answer: {getattr(exc, 'strerror', None) or f'{_WAIT_S:.0f} s passed'}"
        return at.problem("host.packages", seen, _WRITE) if local else at.note("host.packages", seen, _NODES)
    if done.returncode:
        seen = f"{python} fails: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
        return at.problem("host.packages", seen, _WRITE)
    missing = done.stdout.split()
    if not missing:
        return at.ok("host.packages", f"{python} has {', '.join(names)}")
    seen = f"{python} has no {', no '.join(missing)}"
    hint = f"`{python} -m pip install {' '.join(missing)}`, or name another interpreter as `python`"
    if config.slurm.setup if not local else config.local.setup:
        return at.note("host.packages", seen, f"unless `setup` provides them; {_NODES}")
    return at.problem("host.packages", seen, hint) if local else at.warning("host.packages", seen, f"{hint}; {_NODES}")
