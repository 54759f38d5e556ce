"""The command line that starts a node's launcher in a container. The agent stays outside.

Folders have the same paths inside as outside. The image needs a Python, and the packages that the training imports.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from dscampaign.files.private_files import make_below, open_private
from dscampaign.jobs.shared import variables
from dscampaign.jobs.shared.layout import SHARED_MEMORY, AttemptPaths
from dscampaign.jobs.shared.payload import Payload

PACKAGE: Final = Path(__file__).parents[2]
INSIDE: Final = str(PACKAGE / "jobs" / "inside.py")
_SYSTEM: Final = tuple("bin boot dev etc lib lib32 lib64 opt proc run sbin sys usr var".split())  # noqa: SIM905
"""Folders of an image's own, over which no path that a spec happens to name is mounted."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OF_THE_HOST: Final = re.compile(
    r"(\w+_)?PATH|LD_\w+|PYTHON\w+|VIRTUAL_ENV\w*|CONDA_\w+|_CE_\w+|PYENV_\w+|(__)?_?(LMOD|LM|MODULES?)\w*|LOADEDMODULES"
    r"|\w+_(HOME|ROOT|DIR)|BASH_\w+.*|SHELL|SHLVL|PWD|OLDPWD|_|PS1|(APPTAINER|SINGULARITY|ENROOT|PYXIS)\w*"
)
"""Variables that lead to programs and libraries of the host."""
_KEPT: Final = re.compile(r"(SLURM|CAMPAIGN|HF|WANDB|MLFLOW|TRANSFORMERS|NCCL)_\w+|XDG_CACHE_HOME")
"""These lead to data of the user's, or to nothing."""


class Mount(NamedTuple):
    """A folder of the host, and its place inside."""

    source: str
    target: str
    read_only: bool = False

    @property
    def text(self) -> str:
        """Return it as pyxis and Apptainer read it."""
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


def wrapped(
    argv: Sequence[str], env: Mapping[str, str], payload: Payload, paths: AttemptPaths
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that start a launcher as the payload asks: in its container."""
    if payload.container is None:
        return list(argv), dict(env)
    memory = env.get("CAMPAIGN_PROGRESS_DIR") or str(paths.dir)
    places = [str(payload.run_paths.root), payload.workdir, env.get("CAMPAIGN_CODE_ROOT", "")]
    targets = [_parsed(text).target for text in payload.container.get("mounts", ())]
    data = (path for path in _named(payload) if not any(_within(path, target) for target in targets))
    places += [*([] if _within(memory, str(SHARED_MEMORY)) else [memory]), *data]
    inside = {**env, "CAMPAIGN_WORKDIR": payload.container.get("workdir") or env.get("CAMPAIGN_WORKDIR", "")}
    request = _write(inside, payload.env, Path(memory), str(paths.dir))
    gpus = bool(payload.gpus_per_node) and env.get("DS_ACCELERATOR") != "cpu"
    return _started([payload.python, INSIDE, str(request), *argv], payload.container, places, gpus=gpus)


def examined(
    argv: Sequence[str], env: Mapping[str, str], container: Mapping[str, Any], own: Mapping[str, str], folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Return the same for a program of `campaign doctor`, which works in a folder; ``own``: variables of the spec's."""
    request = _write(env, own, folder, str(folder))
    gpus = env.get("DS_ACCELERATOR") != "cpu"
    return _started([argv[0], INSIDE, str(request), *argv], container, [str(folder)], gpus=gpus)


def _started(
    argv: Sequence[str], container: Mapping[str, Any], places: Iterable[str], *, gpus: bool
) -> tuple[list[str], dict[str, str]]:
    runtime = _RUNTIMES[container["runtime"]]
    # The runtime itself may hand on what it has; Charliecloud does nothing without USER.
    kept = {name: value for name, value in os.environ.items() if name == "PATH" or not _leads_to_the_host(name)}
    return [*runtime(container, _mounts(container, places), gpus), *argv], {
        "USER": pwd.getpwuid(os.geteuid()).pw_name,
        **kept,
    }


def _write(env: Mapping[str, str], spec_s: Mapping[str, str], folder: Path, start: str) -> Path:
    """Leave the environment in a private file, which no list of processes shows."""
    packages = folder / "packages"
    make_below(folder, packages)
    with suppress(FileExistsError):
        (packages / __name__.partition(".")[0]).symlink_to(PACKAGE)
    own = {name for name in env if name in spec_s or os.environ.get(name) != env[name]} | {"HOME"}
    if "PYTHONPATH" not in spec_s:  # the agent may have rewritten the host's
        own.discard("PYTHONPATH")
    host = {name: value for name, value in env.items() if name not in own and not _leads_to_the_host(name)}
    request = {
        "folder": start,
        "packages": str(packages),
        "foreign": f"SLURM_\\w+|{variables.PER_TASK.pattern}",
        "host": {"PYTHONNOUSERSITE": "1", **host},  # packages in ~/.local are of the host's Python
        "given": {name: env[name] for name in own if name in env},
    }
    file = folder / "inside.json"
    with open(file, "w", opener=open_private) as stream:
        json.dump(request, stream)
    return file


def _leads_to_the_host(name: str) -> bool:
    return bool(_OF_THE_HOST.fullmatch(name)) and not _KEPT.fullmatch(name)


# -- mounts ---------------------------------------------------------------------------------------------------


def _mounts(container: Mapping[str, Any], places: Iterable[str]) -> list[Mount]:
    """Return the mounts, outer folders first: the spec's, and folders that no other holds."""
    everywhere = filter(os.path.isdir, (os.environ.get("HOME", ""), os.environ.get("TMPDIR", "")))
    paths = [path for path in (*places, *everywhere) if Path(path).is_absolute()]
    places = [place for path in paths for place in (path, os.path.realpath(path))]
    folders = {place if Path(place).is_dir() else str(Path(place).parent) for place in places} - {"/"}
    outermost = [folder for folder in folders if not any(_within(folder, f) for f in folders - {folder})]
    mounts = [] if any(_within(str(PACKAGE), f) for f in outermost) else [Mount(str(PACKAGE), str(PACKAGE), True)]
    mounts += [Mount(folder, folder) for folder in outermost]
    by_target = {mount.target: mount for mount in (*mounts, *map(_parsed, container.get("mounts", ())))}
    return sorted(by_target.values(), key=lambda mount: (mount.target.count("/"), mount.target))


def _parsed(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    source = str(Path(source).expanduser())
    return Mount(source, target or source, mode == "ro")


def _named(payload: Payload) -> Iterator[str]:
    train: Mapping[str, Any] = payload.train or {}
    data = train.get("dataset") or {}
    paths = [*map(train.get, ("model", "tokenizer", "nvme_path")), *map(data.get, ("path", "eval_path"))]
    words = (word.rpartition("=")[2] for word in (*payload.command, *payload.env.values()))
    for name in (*paths, *words):
        named = isinstance(name, str) and name.startswith("/") and not {*Path(name).parts[1:2]} <= {*_SYSTEM}
        if named and os.path.exists(name):  # noqa: PTH110 - too long a name
            yield name


def _within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


# -- runtimes -------------------------------------------------------------------------------------------------


def _pyxis(container: Mapping[str, Any], mounts: Sequence[Mount], gpus: bool) -> list[str]:
    """Return a step of the agent's own node: pyxis is a plugin of srun."""
    node, cpus = os.environ.get("SLURMD_NODENAME"), os.environ.get("SLURM_CPUS_ON_NODE")
    step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--mem=0", "--cpu-bind=none"]
    step += [f"--nodelist={node}"] if node else []
    step += [f"--cpus-per-task={cpus}"] if cpus else []
    step += ["--mpi=none", "--export=ALL", "--unbuffered", "--input=none"]
    inside = [f"--container-image={container['image']}", f"--container-mounts={','.join(m.text for m in mounts)}"]
    inside += ["--no-container-mount-home", "--no-container-remap-root", "--no-container-entrypoint"]
    inside.append("--container-writable" if container.get("writable") else "--container-readonly")
    if gpus:  # enroot looks for GPUs only if these ask for them, as in images that are made for them
        step = ["env", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility", *step]
        inside.append("--container-env=NVIDIA_VISIBLE_DEVICES,NVIDIA_DRIVER_CAPABILITIES")
    return [*step, *inside]


def _apptainer(container: Mapping[str, Any], mounts: Sequence[Mount], gpus: bool) -> list[str]:
    program = next(filter(shutil.which, ("apptainer", "singularity")), "apptainer")
    options = ["--cleanenv", "--no-home", *(["--nv"] if gpus else [])]
    options += ["--writable-tmpfs"] if container.get("writable") else []
    return [program, "exec", *options, *(f"--bind={mount.text}" for mount in mounts), container["image"]]


def _charliecloud(container: Mapping[str, Any], mounts: Sequence[Mount], _gpus: bool) -> list[str]:
    """Return its command line. It knows no read-only mounts; for GPUs, `ch-fromhost` has prepared the image."""
    image = Path(container["image"])
    visible = [
        mount
        for mount in mounts
        if mount.source != mount.target or not _within(mount.target, "/tmp")  # noqa: S108 - it mounts that itself
    ]
    missing = image.is_dir() and not all((image / mount.target.lstrip("/")).is_dir() for mount in visible)
    options = ["--unset-env=*", f"--set-env=PATH={_PATH}"]
    options += ["--set-env"] if (image / "ch" / "environment").is_file() else []
    options += ["--write"] if container.get("writable") or missing else []  # it makes missing mount points only so
    binds = [f"--bind={mount.source}:{mount.target}" for mount in visible]
    return ["ch-run", *options, *binds, container["image"], "--"]


_RUNTIMES: Final[Mapping[str, Callable[[Mapping[str, Any], Sequence[Mount], bool], list[str]]]] = {
    "pyxis": _pyxis,
    "apptainer": _apptainer,
    "charliecloud": _charliecloud,
}
