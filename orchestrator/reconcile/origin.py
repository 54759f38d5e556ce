"""The shell and folder from which a campaign was submitted: every attempt gets the same, whoever submits it.

Names of variables alone decide which of them matter, and are missing in this process: no value is kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dscampaign.jobs.shared.variables import SESSION, TRAINING, of_another_process

_BY_SLURM: Final = frozenset({"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"})
_MENTIONED: Final = re.compile(r"\$\{?([A-Za-z_]\w*)")
_ASSIGNED: Final = re.compile(r"(?:^|[\s;])(?:export\s+)?([A-Za-z_]\w*)=")
_MODULES: Final = re.compile(r"\b(module|ml)\s")


@dataclass(frozen=True)
class Origin:
    """The record of `submit` about its shell and folder."""

    workdir: str = ""  # folder in which agents and ranks start; "" if unknown
    python: str = ""  # the interpreter that runs the training if the spec names none; "" if unknown
    variables: tuple[str, ...] = ()  # names of the variables of that shell that matter, see `that_matter`

    @classmethod
    def of(cls, provenance: Mapping[str, Any]) -> Origin:
        """Return the stored record."""
        variables = tuple(name for name in provenance.get("variables", ()) if not of_another_process(name))
        return cls(variables=variables, **{name: provenance.get(name, "") for name in ("workdir", "python")})

    @property
    def interpreter(self) -> str:
        """The recorded Python; "" if it is gone, as after an environment was made anew elsewhere."""
        return self.python if Path(self.python).is_file() else ""

    def missing(self, environ: Mapping[str, str]) -> list[str]:
        """Return the variables that an attempt would lack if this process submitted it."""
        return [name for name in self.variables if name not in environ]


def that_matter(
    environ: Collection[str], *, read: Collection[str], setup: str, explicit: Collection[str], on_slurm: bool
) -> list[str]:
    """Return the names in an environment that an attempt is likely to depend on.

    `read` has the names that the code reads, by its text; `explicit` names that the spec sets. Variables that the shell
    lines of `setup` use matter, those they set do not.
    """
    wanted = {*read, *_MENTIONED.findall(setup)}
    set_anyway = {*explicit, *_ASSIGNED.findall(setup), *(_BY_SLURM if on_slurm else ())}
    if _MODULES.search(setup):
        set_anyway |= {"LOADEDMODULES", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CC", "CXX", "CUDA_HOME"}
    return sorted(
        name
        for name in environ
        if (name in wanted or TRAINING.fullmatch(name))
        and name not in set_anyway
        and not (SESSION.fullmatch(name) or of_another_process(name))
    )


def why_held(missing: Collection[str]) -> str:
    """Return the reason of runs that are held for missing variables; "" if none is missing."""
    if not missing:
        return ""
    names = ", ".join(sorted(missing))
    verb, them = ("was", "it") if len(missing) == 1 else ("were", "them")
    hint = f"set {them} and reconcile, or retry the run to continue without {them}"
    return f"{names} {verb} set where this campaign was submitted, not where it is reconciled: {hint}"
