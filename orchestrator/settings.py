"""The settings of a command and their origins: flag, environment, spec, campaign.toml, XDG file, default."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dscampaign.files.ownership import Distrusted, distrust, trusted_bytes

from .errors import UserError, did_you_mean
from .user_files import expanded

FILE_NAME: Final = "campaign.toml"

_DEFAULTS: Final = {
    "dir": "./campaign",
    "store": "",
    "ask_above_runs": "20",
    "ask_above_gpu_hours": "100",
    "detach": "yes",
}
_SWITCH: Final = dict.fromkeys(("yes", "true", "on", "1"), True) | dict.fromkeys(("no", "false", "off", "0"), False)
_IN_SPEC: Final = frozenset({"dir", "store"})
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True)
class Setting:
    """A value and its source."""

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class Settings:
    """The settings of a command."""

    dir: Path  # the shared folder, absolute
    store: str  # the database's URL; it may contain a password, so never print it as is
    ask_above_runs: int  # a larger submission needs confirmation, and so for GPU-hours
    ask_above_gpu_hours: float
    detach: bool  # whether a job of its own goes on reconciling, where it can
    origins: tuple[Setting, ...]  # every value with its source, in the order of the documentation

    @property
    def shown(self) -> list[Setting]:
        """The origins without passwords, for printing."""
        return [replace(o, value=self.store_without_password) if o.name == "store" else o for o in self.origins]

    @property
    def store_without_password(self) -> str:
        """The database's URL without its password, which then comes from ~/.pgpass."""
        from dscampaign.db.engine import shown_address

        return shown_address(self.store)

    def require_dir_of(self, executor: str) -> None:
        """Raise UserError for a `dir` that Slurm writes no log into: it replaces patterns such as `%j` in the path."""
        [origin] = [origin for origin in self.origins if origin.name == "dir"]
        if executor == "slurm" and (found := re.search(r"[%\\]", origin.value)):
            message = f"dir: {origin.value} contains {found[0]}, which Slurm replaces in the paths of logs"
            raise UserError(message, f"name a folder without it; this comes from: {origin.source}")


def resolve(
    flags: Mapping[str, str | None],
    spec: Mapping[str, str | None] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Take each value from the first source that sets it.

    A configuration file that others can write is ignored. It is an error only if `dir` or `store` could come from it:
    else a file in a folder above would stop every command below it. Raises UserError for it, for a file that cannot be
    read, and for an invalid value.
    """
    environ, cwd = os.environ if environ is None else environ, cwd or Path.cwd()
    found: dict[str, Setting] = {}

    def take(source: str, values: Mapping[str, str | None], folder: Path = cwd) -> None:
        for name, value in values.items():
            if value and name not in found:
                found[name] = Setting(name, _absolute(value, folder) if name == "dir" else value, source)

    take("command line", flags)
    for name in _DEFAULTS:
        variable = f"CAMPAIGN_{name.upper()}"
        take(f"environment variable {variable}", {name: environ.get(variable)})
    take("spec", {name: filled(value, environ) for name, value in (spec or {}).items() if value and name in _IN_SPEC})
    for path in _files(environ, cwd):
        try:
            take(str(path), _read(path), path.parent)
        except Distrusted as doubt:  # it may name the store, and what a store holds is run
            if not found.keys() >= _IN_SPEC:
                raise _not_used(path, doubt, cwd) from doubt
    take("default", _DEFAULTS)
    if "store" not in found:
        found["store"] = Setting("store", f"sqlite:///{found['dir'].value}/campaign.db", "default: a file in dir")
    if (detach := _SWITCH.get(found["detach"].value.lower())) is None:
        raise _invalid(found["detach"], "is neither yes nor no")
    return Settings(
        dir=Path(found["dir"].value),
        store=found["store"].value,
        ask_above_runs=int(_number(found["ask_above_runs"])),
        ask_above_gpu_hours=_number(found["ask_above_gpu_hours"]),
        detach=detach,
        origins=tuple(found[name] for name in _DEFAULTS),
    )


def filled(text: str, environ: Mapping[str, str]) -> str:
    """Replace each `${NAME}` by the variable, if it is set."""
    return _VARIABLE.sub(lambda match: environ.get(match[1], match[0]), text)


def _absolute(path: str, folder: Path) -> str:
    if str(whole := expanded(path)).startswith("~"):
        raise UserError(f"dir: {path}: nobody has this home folder", "write the path in full")
    return os.path.abspath(folder / whole)  # noqa: PTH100 - resolve() follows links


def _files(environ: Mapping[str, str], cwd: Path) -> list[Path]:
    nearest = [path for folder in (cwd, *cwd.parents) if (path := folder / FILE_NAME).is_file()][:1]
    home = environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    own = Path(home) / "dscampaign" / FILE_NAME
    return [*nearest, own] if own.is_file() else nearest


def _not_used(path: Path, doubt: Distrusted, cwd: Path) -> UserError:
    ways = ["give `--dir` and `--store`"]
    if path.parent in cwd.parents and not distrust(cwd):  # the nearest one counts
        ways.insert(0, f"make a {FILE_NAME} of your own in this folder (`touch {FILE_NAME}`)")
    if len(ways) == 1 or doubt.owner is None:
        ways.insert(0, doubt.hint)
    reason = doubt.why if str(path) in doubt.why else f"{path}: {doubt.why}"
    return UserError(f"{reason}, so it is not used", ", or ".join(ways))


def _read(path: Path) -> dict[str, str]:
    try:
        values = tomllib.loads(trusted_bytes(path).decode())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}", "expected TOML settings, for example `dir`") from error
    for name, value in values.items():
        if name not in _DEFAULTS:
            hint = did_you_mean(name, _DEFAULTS, f"the settings are {', '.join(_DEFAULTS)}")
            raise UserError(f"{path}: {name}: unknown setting", hint)
        if (isinstance(value, bool) and name != "detach") or not isinstance(value, str | int | float):
            raise UserError(f"{path}: {name}: expected one value")
    return {name: str(value) for name, value in values.items()}


def _number(setting: Setting) -> float:
    try:
        return float(setting.value)
    except ValueError as error:
        raise _invalid(setting, "is not a number") from error


def _invalid(setting: Setting, why: str) -> UserError:
    return UserError(f"{setting.name}: {setting.value!r} {why}", f"it comes from: {setting.source}")
