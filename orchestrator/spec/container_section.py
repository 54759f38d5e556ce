"""The `container:` section: the image in which a run's launcher and ranks start."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from .field_types import EnvText, Hint, Line, Name, SpecSection, Variable

_MOUNT: Final = re.compile(r"[/~][^\s,:]*(?::/[^\s,:]*(?::r[ow])?)?")
"""No runtime mounts a path with a space, a comma or a colon."""


def _mount(text: str) -> str:
    if not _MOUNT.fullmatch(text):
        raise Hint(
            f"{text!r} is not a mount",
            "write an absolute path, `/data`, or `/host/data:/data`, or `/host/data:/data:ro`",
        )
    return text


class ContainerConfig(SpecSection):
    """The container in which a run's ranks start ([how](cluster.md#containers)). The agent stays outside of it."""

    image: Name
    """Image, as the runtime takes it: a file (`.sqsh`, `.sif`), a folder, or a reference to a registry
    (`nvcr.io#nvidia/pytorch:25.01-py3` with pyxis, `docker://...` with Apptainer)."""
    runtime: Literal["pyxis", "apptainer", "charliecloud"]
    """Program that starts it: `pyxis` (Slurm's plugin for enroot), `apptainer` (or Singularity), `charliecloud`."""
    mounts: tuple[Annotated[Line, AfterValidator(_mount)], ...] = ()
    """Further folders to mount: `/data`, `/host/data:/data`, or with `:ro` read-only. `dir`, the code, `workdir`, your
    home folder, /dev/shm, and data that the spec names by an absolute path are mounted in any case."""
    workdir: Line | None = None
    """Folder of the image in which the ranks start, by its absolute path. Default: `workdir`."""
    env: dict[Variable, EnvText] = Field(default={})
    """Environment variables of the training in this image, over those in `env` and those of the image."""
    writable: bool = False
    """Let the training change files of the image. With pyxis and Apptainer the changes are gone with the attempt."""

    @model_validator(mode="after")
    def _of_its_runtime(self) -> ContainerConfig:
        if self.runtime == "charliecloud" and "://" in self.image:
            raise Hint(f"{self.image} is not an image of Charliecloud", "`ch-image pull` it, and name the folder")
        if self.runtime == "charliecloud" and any(mount.endswith(":ro") for mount in self.mounts):
            raise Hint("Charliecloud mounts no folder read-only", "leave out `:ro`")
        if self.runtime == "apptainer" and "#" in self.image:
            hint = f"write `docker://{self.image.replace('#', '/', 1)}`"
            raise Hint(f"{self.image} is not an image of Apptainer", hint)
        if self.workdir is not None and not self.workdir.startswith("/"):
            raise Hint(f"workdir {self.workdir} is not an absolute path", "name a folder of the image, or leave it out")
        return self
