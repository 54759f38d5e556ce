"""Read a spec: overrides, `${NAME}`, inputs, secrets, its runs; and report all errors, each with its line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from dscampaign.orchestrator.errors import FieldPath, Finding, InvalidSpec, Problem, SpecError, concerns, did_you_mean
from dscampaign.orchestrator.user_files import expanded

from .command_line import START, launch_line, words_of
from .expand import CheckOptions, Run, expand
from .field_types import Hint
from .follow_up import findings as stage_findings
from .matrix import ENTRIES, axis_of, field_path, near_field
from .model import Spec
from .slurm_section import SlurmConfig, option_findings
from .yaml_source import YamlDocument, load, parse_value

_STORE: Final = re.compile(r"\$\{|sqlite:///.|postgres(ql)?(\+psycopg)?://")
INPUTS: Final = frozenset(
    {
        *(("train", "model"), ("train", "tokenizer"), ("train", "dataset"), ("python",), ("workdir",)),
        *(("train", "dataset", "path"), ("train", "dataset", "eval_path"), ("container", "image")),
    }
)
"""Fields that name files, or names on the hub."""
_AT_HOME: Final = INPUTS.union(
    [("dir",), ("store",), ("train", "nvme_path"), ("forward", "tensorboard", "dir"), ("container", "mounts")]
)
"""Fields in which a `~` at the beginning is the home folder, or has an error of its own."""
_FILES: Final = (".txt", ".jsonl", ".json", ".parquet", ".sif", ".sqsh")
"""How a relative path ends that is no name on the hub."""


def runs_of_text(
    text: str,
    path: Path,
    overrides: Iterable[str] = (),
    *,
    local_gpus: Callable[[], int] = int,
    check_options: CheckOptions | None = None,
) -> tuple[Spec, tuple[Run, ...]]:
    """Read and check a spec, and every run that it expands to; of a search the first trial.

    Args:
        path: The file that the text is in, or is to be in.
        overrides: Values that replace the text's, for example `train.steps=10` or `nodes=2`.
        local_gpus: Counts the GPUs of this machine, for `executor: local`.
        check_options: See `expand`.

    Raises:
        SpecError: With all wrong fields; without any, with all that contradict each other.
    """
    source = _overridden(load(text, str(path)), overrides)
    prepared = _Prepared(Path(_absolute(path)).parent, os.environ)
    data = prepared.spec(source.data)
    # The store keeps everything as it is after filling in, but for its own address.
    kept = data | {"store": source.data["store"]} if "store" in source.data else data
    findings = prepared.findings
    findings += _news(secrets_in(kept), findings)
    if isinstance(slurm := data.get("slurm"), dict):
        options = {name.replace("-", "_"): value for name, value in slurm.items() if value is not None}
        others = {name: value for name, value in options.items() if name not in SlurmConfig.model_fields}
        findings += _news(option_findings(others), findings)
    spec, runs = None, tuple[Run, ...]()
    try:
        spec = Spec.read(data)
        gpus = local_gpus() if spec.executor == "local" else 0
        if spec.search:
            # imported here: few specs have a search
            from .trials import first_trial

            runs = (first_trial(spec, gpus),)
        else:
            runs = expand(spec, gpus, None if findings else check_options)
        findings += stage_findings(spec, runs) if spec.then and not findings else []
    except InvalidSpec as error:
        findings += _news(error.findings, findings)
    if findings or spec is None:
        raise SpecError(list(dict.fromkeys(source.problem(finding) for finding in findings)))
    return spec, runs


def settings_of(overrides: Iterable[str]) -> dict[tuple[str, ...], Any]:
    """Return the fields that values from the command line set, of a spec that was read with them."""
    pairs = (text.partition("=") for text in overrides)
    return {_field(key) or (key,): parse_value(value, key) for key, _, value in pairs}


def with_inputs_of(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the content of a spec as its runs have it: with variables filled in, and inputs by absolute paths."""
    return _Prepared(folder, os.environ).spec(data)


def _field(key: str) -> tuple[str, ...] | None:
    top = tuple(key.split("."))
    if top[0] == "matrix":
        return top[0], *filter(None, [key.partition(".")[2]])
    return top if top[0] in Spec.model_fields else field_path(key)


def _news(findings: Iterable[Finding], earlier: Sequence[Finding]) -> list[Finding]:
    """Return the first finding about each field: a cause has a single error."""
    places = {place for finding in earlier for place in finding.places}
    inner = {finding.places[0][:length] for finding in earlier for length in range(1, len(finding.places[0]))}
    return [finding for finding in findings if not concerns(finding, places) and finding.places[0] not in inner]


def _overridden(source: YamlDocument, overrides: Iterable[str]) -> YamlDocument:
    data, texts, problems = deepcopy(source.data), dict[FieldPath, str](), list[Problem]()
    for text in overrides:
        key, equals, value = text.partition("=")
        path = _field(key)
        if not equals or not key:
            error = "", "expected FIELD=VALUE", f"write --set {key or 'FIELD'}=VALUE"
        elif path is None:
            error = key, "unknown field", did_you_mean(key, Spec.model_fields, near_field(key))
        elif axis := axis_of(path, data.get("matrix")):
            error = key, f"is set by the axis matrix.{axis}", f"write --set 'matrix.{axis}=[{value}]'"
        elif not _put(data, path, parse_value(value, key)):
            error = key, "is below a field that is not a mapping", f"set {'.'.join(path[:-1])} as a whole"
        else:
            texts[path] = text
            continue
        problems.append(Problem(f"--set {text}", 0, 0, *error))
    if problems:
        raise SpecError(problems)
    return replace(source, data=data, overridden=texts)


def _put(data: Any, path: tuple[str, ...], value: Any) -> bool:
    for key in path[:-1]:
        data = data.setdefault(key, {}) if isinstance(data, dict) else None
    if not isinstance(data, dict):
        return False
    data[path[-1]] = value
    return True


def _field_at(place: FieldPath) -> tuple[str, ...] | None:
    """Return the field of a run that a place of the spec sets; None for a parameter of the command's own."""
    base: tuple[str, ...] | None = ()
    if place[0] == "matrix":
        base = field_path(str(place[1])) if place[2:] and place[1] not in ENTRIES else None
        place = place[3:]
        if base is None and place:
            base, place = field_path(str(place[0])), place[1:]
    elif place[:2] == ("search", "parameters"):
        base, place = field_path(str(place[2])) if place[4:] else None, place[5:]
    return None if base is None else (*base, *(part for part in place if isinstance(part, str)))


@dataclass
class _Prepared:
    folder: Path
    environ: Mapping[str, str]
    local: bool = False
    image: bool = False
    in_image: bool = False
    findings: list[Finding] = field(default_factory=list)
    unset: dict[str, tuple[FieldPath, ...]] = field(default_factory=dict)

    def spec(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole content of a spec, its matrix too."""
        self.local = data.get("executor") == "local"
        matrix, own = data.get("matrix"), data.get("container")
        axes = matrix if isinstance(matrix, dict) else ()
        self.image = bool(own) or any(name.startswith("container") for name in axes)
        self.in_image = isinstance(own, dict) and bool(own.get("workdir"))
        prepared = {key: self._value(value, (key,)) for key, value in data.items()}
        for name, places in self.unset.items():  # once for all its places
            self.findings.append(Finding(places, f"${{{name}}} is not set", f"export {name}, or write the value"))
        return prepared

    def _value(self, value: Any, place: FieldPath) -> Any:
        field = _field_at(place)
        if field and (field == ("command",) or (field[0] == "then" and field[-1] == "command")):
            return self._command(value, place)
        if isinstance(value, dict):
            return {key: self._value(item, (*place, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._value(item, (*place, index)) for index, item in enumerate(value)]
        return self._text(value, field, place) if isinstance(value, str) and field and _asks(field) else value

    def _text(self, value: str, path: tuple[str, ...], place: FieldPath) -> str:
        if path == ("store",) and secret_in(value):
            hint = "put it in ~/.pgpass, or write ${NAME} for it: the spec's text is kept in the store"
            self.findings.append(Finding((place,), "contains a password", hint))
        new = _filled(value, self.environ, home=path in _AT_HOME)
        if new.shell:
            hint = "write ${HOME}" if new.shell == "~" else f"write ${{NAME}}, or ${new.shell} if the dollar is meant"
            self.findings.append(Finding((place,), f"{new.shell} is not expanded: no shell reads it", hint))
        for name in new.unset:
            self.unset[name] = (*self.unset.get(name, ()), place)
        if new.shell or new.unset:
            return value  # its other errors depend on the variable
        if path == ("store",) and not _STORE.match(new.text):
            self.findings.append(
                Finding((place,), "is not a database URL", "use sqlite:///FILE or postgresql://HOST/NAME")
            )
        if path not in INPUTS or not new.text.strip():
            return new.text
        try:
            return self._input(new.text, path, place)
        except OSError as error:  # a name that no file can have
            self.findings.append(Finding((place,), f"{error.strerror}: {new.text}", "write a shorter name"))
            return value

    def _input(self, text: str, field: tuple[str, ...], place: FieldPath) -> str:
        """Return an absolute path for a file beside the spec; a name on the hub stays."""
        path = self.folder / (location := expanded(text))
        # A node of a cluster may have the file of an absolute path, though this machine does not.
        elsewhere = location.is_absolute() and not self.local and field != ("container", "image")
        if self.image and field == ("python",):
            return str(location)
        if place == ("workdir",) and path.is_file():
            self.findings.append(Finding((place,), f"is not a folder: {path}", "name its folder"))
        if field == ("python",) and (program := path / "bin/python").exists():
            path = program
        if path.exists() or elsewhere:
            return _absolute(path)
        if text.startswith(("/", "~", "./", "../")) or text.endswith(_FILES) or place == ("workdir",):
            message = f"no such file or folder: {path}"
            self.findings.append(Finding((place,), message, "paths start at the spec's folder"))
        return text

    def _command(self, value: Any, place: FieldPath) -> Any:
        try:
            words = words_of(value)
            line = launch_line([str(word) for word in words])
        except Hint:
            return value  # the model has the error
        if not isinstance(words[0], str):
            return value
        if wrong := _shell_word([*line.options, *line.script] if line else words):
            self.findings.append(Finding((place,), *wrong))
            return value
        words = [_filled(word, {}).text if isinstance(word, str) else word for word in words]
        at = line.at if line else 0
        if line and line.python:
            words[0] = _absolute(self.folder / expanded(words[0]))
        if line and line.script[0] == "-m":
            return words
        inside = self.in_image or (self.image and words[at].startswith("/"))
        script = self.folder / expanded(words[at])
        if (problem := _script_problem(words[at], script)) and not (inside and words[at].endswith(".py")):
            self.findings.append(Finding((place,), *problem))
            return value
        return [*words[:at], _absolute(script), *words[at + 1 :]] if script.exists() else words


def _script_problem(text: str, script: Path) -> tuple[str, str] | None:
    """Return the error in the file that a command starts with, and a hint. Only nodes may have an absolute path."""
    if text == "-m" or "{" in text:
        return None
    is_script = script.exists() and (script.is_file() or (script / "__main__.py").exists())
    if text.endswith(".sh") or script.is_dir() > is_script or not (is_script or "/" in text or text.endswith(".py")):
        return f"{text} is not a Python script", START
    elsewhere = text.startswith(("/", "~")) and not text.endswith(".py")
    return None if elsewhere or is_script else (f"no such script: {script}", "paths start at the spec's folder")


def _absolute(path: Path) -> str:
    """Return an absolute path that keeps symbolic links: a node may see another folder behind the same link."""
    return os.path.abspath(path)  # noqa: PTH100


def _asks(path: tuple[str, ...]) -> bool:
    """Return whether `${NAME}` is filled in: only if a value differs between users, clusters or secrets."""
    if path[0] == "slurm":
        return path[:2] != ("slurm", "setup")
    return path[0] in ("store", "dir", "env", "forward", "container") or path in (*INPUTS, ("train", "nvme_path"))


# Variables: `${NAME}`, and forms for a shell

_FORM: Final = re.compile(r"\$\$(?=[\w{(])|\$\{(?P<name>[A-Za-z_]\w*)\}|(?P<shell>\$(?:\w+|\{[^{}]*\}?|\())")
"""A dollar that is meant, as in `$$NAME`; a variable; and a form for a shell."""


class _Filled(NamedTuple):
    """A text with the values of its variables, the variables without a value, and the first form for a shell."""

    text: str
    unset: tuple[str, ...]
    shell: str


def _filled(text: str, environ: Mapping[str, str], *, home: bool = True) -> _Filled:
    """Fill in the variables of a text; with `home`, a `~` at its beginning is the home folder."""
    forms = list(_FORM.finditer(text))
    shell = [form["shell"] for form in forms if form["shell"]] + ["~"] * (text.startswith("~") and not home)
    unset = [form["name"] for form in forms if form["name"] and form["name"] not in environ]
    value = _FORM.sub(lambda f: "$" if f[0] == "$$" else environ.get(f["name"] or "", f[0]), text)
    return _Filled(value, tuple(unset), next(iter(shell), ""))


def _shell_word(words: Sequence[Any]) -> tuple[str, str] | None:
    """Return the part of a command that a shell would expand, and a hint; `$$NAME` is a dollar that is meant."""
    texts = (_filled(word, {}) for word in words if isinstance(word, str))
    form = next((text.shell or f"${{{text.unset[0]}}}" for text in texts if text.shell or text.unset), None)
    if form is None:
        return None
    hint = "write the value itself, or read the variable in the script; write $$ for a dollar that is meant"
    return f"{form} is not expanded: no shell reads it", hint


# Secrets, which the store would keep

_NAME: Final = re.compile(
    r"""(?:^|_)(?:
      pass|pgpass|passwd|\w*password|passphrase|sshpass|\w+_pwd|secret|credentials?|auth|authorization|bearer|apikey
      |(?:api|access|private|secret)_key
      |(?:^|hf_|hub_|git(?:hub|lab)?_|api_|access_|auth_|bearer_|wandb_)token
    )$""",
    re.VERBOSE,
)
"""Names of secrets, in lower case with underscores."""

_TOKEN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|sk-|gh[oprsu]_|github_pat_|glpat-|xox[abp]-|AKIA|AIza)[\w.-]{12,}"
    r"|\blogin\s+[0-9a-f]{40}|BEGIN [A-Z ]*PRIVATE KEY"
)
"""Tokens whose makers publish their form."""

_ADDRESS: Final = re.compile(r"://(?:[^/\s:@'\"]*:(?!\$|\d+/)[^\s@'\"]+|(?=[^/@]*\d)[A-Za-z0-9_]{20,})@")
"""A password, or a token as the user, in an address; `${NAME}` in its place is filled in elsewhere."""

_VALUE: Final = r"""(?:(?:bearer|basic)\s+)?("[^"]*"|'[^']*'|[^\s"',;&|)}]+)"""
_GIVEN: Final = re.compile(
    rf"(?:(?<![\w-])(-{{0,2}}[A-Za-z][\w.-]*)[\"']?\s*[=:]\s*|(?<!\S)(--[A-Za-z][\w.-]*)\s+)(?={_VALUE})", re.IGNORECASE
)
"""`NAME=value`, `--name value`, `name: value`, `?name=value`; the value may hold further secrets."""

_REFERENCE: Final = re.compile(
    r"[\"']?(?:\$|\{|<|\[|~?/|\.{1,2}/|-{1,2}[a-z]|(?:true|false|none|null|\d+)$)", re.IGNORECASE
)
"""A value that is not secret: a variable, a placeholder, a path, an option, a switch, a number."""

HINT: Final = "export it in your shell instead, and where the reconciler runs: jobs inherit their environment"


def secrets_in(data: Any, place: FieldPath = (), name: str = "") -> Iterator[Finding]:
    """Return the secrets in a value of a spec and in all that it holds, each with its place."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from secrets_in(value, (*place, str(key)), str(key))
    elif isinstance(data, list):
        for index, item in enumerate(data):
            before = str(data[index - 1]) if index else ""  # of a command in words
            yield from secrets_in(item, (*place, index), before if before.startswith("--") else name)
    elif isinstance(data, str) and (secret := name if _is_secret(name, data) else secret_in(data)):
        yield Finding((place,), f"{secret} looks like a secret, and a spec is kept in the store", HINT)


def secret_in(text: str) -> str:
    """Return the kind of an apparent secret in a text, without the secret itself; "" for none."""
    if _TOKEN.search(text):
        return "a part of it"
    if _ADDRESS.search(text):
        return "the password in an address"
    pairs = ((match[1] or match[2], match[3]) for match in _GIVEN.finditer(text))
    return next((name for name, value in pairs if _is_secret(name, value)), "")


def _is_secret(name: str, value: str) -> bool:
    words = re.sub(r"[^a-z0-9]+", "_", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()).strip("_")
    return bool(value) and _NAME.search(words) is not None and not _REFERENCE.match(value)
