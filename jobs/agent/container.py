"""The command line that starts a node's launcher in a container. The agent stays outside.

Folders have the same paths inside as outside, so that nothing needs translation. The image needs a Python, and the
packages that the training imports; this package is mounted.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from dscampaign.files.private_files import open_private
from dscampaign.jobs.shared import variables
from dscampaign.jobs.shared.layout import SHARED_MEMORY, AttemptPaths, RunPaths
from dscampaign.jobs.shared.payload import Payload

Runtime = Literal["pyxis", "apptainer", "charliecloud"]

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


@dataclass(frozen=True)
class Container:
    """The section `container` of a spec, as the payload carries it."""

    image: str
    runtime: Runtime
    mounts: tuple[str, ...] = ()
    workdir: str = ""
    writable: bool = False


def wrapped(
    argv: Sequence[str], env: Mapping[str, str], payload: Payload, paths: AttemptPaths
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that start a launcher as the payload asks: in its container, if any.

    Args:
        argv: the launcher's, whose program is found in the image.
        env: the launcher's, beside variables of the image.
    """
    if payload.container is None:
        return list(argv), dict(env)
    places = [str(RunPaths(Path(payload.run_dir)).root), payload.workdir, env.get("CAMPAIGN_CODE_ROOT", "")]
    inside = {**env, "CAMPAIGN_WORKDIR": payload.container.get("workdir") or env.get("CAMPAIGN_WORKDIR", "")}
    memory = env.get("CAMPAIGN_PROGRESS_DIR") or str(paths.dir)
    places += [] if _within(memory, str(SHARED_MEMORY)) else [memory]
    places += filter(_is_data, _named(payload))
    asked = _write(inside, payload.env, Path(memory), str(paths.dir))
    gpus = bool(payload.gpus_per_node) and env.get("DS_ACCELERATOR") != "cpu"
    return started([payload.python, INSIDE, str(asked), *argv], payload.container, places, gpus=gpus)


def examined(
    argv: Sequence[str], env: Mapping[str, str], asked: Mapping[str, Any], own: Mapping[str, str], folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Return the same for a program of `campaign doctor`, which works in a folder.

    Args:
        asked: the section `container`.
        own: variables of the spec's.
    """
    file = _write(env, own, folder, str(folder))
    gpus = env.get("DS_ACCELERATOR") != "cpu"
    return started([argv[0], INSIDE, str(file), *argv], asked, [str(folder)], gpus=gpus)


def started(
    argv: Sequence[str], asked: Mapping[str, Any], places: Iterable[str], *, gpus: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of the runtime that starts a program inside.

    Args:
        asked: the section `container`.
        places: folders and files that it needs; "" for none.
    """
    container = Container(**{**asked, "mounts": tuple(asked.get("mounts", ()))})
    options = _RUNTIMES[container.runtime](container, _mounts(container, places), gpus)
    return [*options, *argv], _outer(os.environ)


def _write(env: Mapping[str, str], spec_s: Mapping[str, str], folder: Path, start: str) -> Path:
    """Leave the environment in a private file, which no list of processes shows."""
    packages = folder / "packages"
    packages.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (packages / __name__.partition(".")[0]).symlink_to(PACKAGE)
    own = {name for name in env if name in spec_s or os.environ.get(name) != env[name]} | {"HOME"}
    if "PYTHONPATH" not in spec_s:  # the agent may have rewritten the host's
        own.discard("PYTHONPATH")
    host = {name: value for name, value in env.items() if name not in own and not _leads_to_the_host(name)}
    asked = {
        "folder": start,
        "packages": str(packages),
        "foreign": f"SLURM_\\w+|{variables.PER_TASK.pattern}",
        "host": {"PYTHONNOUSERSITE": "1", **host},  # packages in ~/.local are of the host's Python
        "given": {name: env[name] for name in own if name in env},
    }
    file = folder / "inside.json"
    with open(file, "w", opener=open_private) as stream:
        json.dump(asked, stream)
    return file


def _leads_to_the_host(name: str) -> bool:
    return bool(_OF_THE_HOST.fullmatch(name)) and not _KEPT.fullmatch(name)


def _outer(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the runtime itself: it may hand on what it has."""
    user = {"USER": pwd.getpwuid(os.geteuid()).pw_name}  # Charliecloud does nothing without it
    kept = {name: value for name, value in environ.items() if name == "PATH" or not _leads_to_the_host(name)}
    return {**user, **kept}


# -- mounts ---------------------------------------------------------------------------------------------------


def _mounts(container: Container, places: Iterable[str]) -> list[Mount]:
    asked = [_parsed(text) for text in container.mounts]
    everywhere = filter(os.path.isdir, (os.environ.get("HOME", ""), os.environ.get("TMPDIR", "")))
    given = [path for path in (*places, *everywhere) if Path(path).is_absolute()]
    folders = {place for path in given for place in (path, os.path.realpath(path))}
    same = [Mount(place, place) for place in map(_folder, folders) if len(Path(place).parts) > 1]
    return _outermost([*asked, *same, Mount(str(PACKAGE), str(PACKAGE), read_only=True)])


def _parsed(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    source = str(Path(source).expanduser())
    return Mount(source, target or source, mode == "ro")


def _named(payload: Payload) -> Iterator[str]:
    """Yield the existing absolute paths that a spec names: data, models, and those in its command and variables."""
    train: Mapping[str, Any] = payload.train or {}
    data = train.get("dataset") or {}
    named = [*map(train.get, ("model", "tokenizer", "nvme_path")), *map(data.get, ("path", "eval_path"))]
    words = (word.rpartition("=")[2] for word in (*payload.command, *payload.env.values()))
    for name in (*named, *words):
        if isinstance(name, str) and name.startswith("/") and os.path.exists(name):  # noqa: PTH110 - too long a name
            yield name


def _is_data(path: str) -> bool:
    return Path(path).parts[1:2] != () and Path(path).parts[1] not in _SYSTEM


def _folder(path: str) -> str:
    return path if Path(path).is_dir() else str(Path(path).parent)


def _outermost(mounts: Iterable[Mount]) -> list[Mount]:
    """Leave out the mounts that others hold, and sort those that are left: parents first."""
    kept: list[Mount] = []
    for mount in sorted(dict.fromkeys(mounts), key=lambda m: (len(Path(m.target).parts), m.target, m.read_only)):
        if not any(_within(mount.target, k.target) and _shifted(mount, k) for k in kept):
            kept.append(mount)
    return kept


def _shifted(mount: Mount, outer: Mount) -> bool:
    """Return whether the outer mount shows the same folder there."""
    return mount.source == outer.source + mount.target[len(outer.target) :] and (mount.read_only or not outer.read_only)


def _within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


# -- runtimes -------------------------------------------------------------------------------------------------


def _pyxis(container: Container, mounts: Sequence[Mount], gpus: bool) -> list[str]:
    """Return a step of the agent's own node: pyxis is a plugin of srun."""
    node, cpus = os.environ.get("SLURMD_NODENAME"), os.environ.get("SLURM_CPUS_ON_NODE")
    step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--mem=0", "--cpu-bind=none"]
    step += [f"--nodelist={node}"] if node else []
    step += [f"--cpus-per-task={cpus}"] if cpus else []
    step += ["--mpi=none", "--export=ALL", "--unbuffered", "--input=none"]
    inside = [f"--container-image={container.image}", f"--container-mounts={','.join(m.text for m in mounts)}"]
    inside += ["--no-container-mount-home", "--no-container-remap-root", "--no-container-entrypoint"]
    inside.append("--container-writable" if container.writable else "--container-readonly")
    if gpus:  # enroot looks for GPUs only if these ask for them, as in images that are made for them
        step = ["env", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility", *step]
        inside.append("--container-env=NVIDIA_VISIBLE_DEVICES,NVIDIA_DRIVER_CAPABILITIES")
    return [*step, *inside]


def _apptainer(container: Container, mounts: Sequence[Mount], gpus: bool) -> list[str]:
    program = next(filter(shutil.which, ("apptainer", "singularity")), "apptainer")
    options = ["--cleanenv", "--no-home", *(["--nv"] if gpus else [])]
    options += ["--writable-tmpfs"] if container.writable else []
    return [program, "exec", *options, *(f"--bind={mount.text}" for mount in mounts), container.image]


def _charliecloud(container: Container, mounts: Sequence[Mount], _gpus: bool) -> list[str]:
    """Return its command line. It knows no read-only mounts; for GPUs, `ch-fromhost` has prepared the image."""
    image = Path(container.image)
    seen = [mount for mount in mounts if not _within(mount.target, "/tmp")]  # noqa: S108 - it mounts that itself
    missing = image.is_dir() and not all((image / mount.target.lstrip("/")).is_dir() for mount in seen)
    options = ["--unset-env=*", f"--set-env=PATH={_PATH}"]
    options += ["--set-env"] if (image / "ch" / "environment").is_file() else []
    options += ["--write"] if container.writable or missing else []  # it makes missing mount points only so
    binds = [f"--bind={mount.source}:{mount.target}" for mount in seen]
    return ["ch-run", *options, *binds, container.image, "--"]


_RUNTIMES: Final[Mapping[Runtime, Callable[[Container, Sequence[Mount], bool], list[str]]]] = {
    "pyxis": _pyxis,
    "apptainer": _apptainer,
    "charliecloud": _charliecloud,
}
