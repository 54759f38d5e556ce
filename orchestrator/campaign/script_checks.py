"""Mistakes in a `command` that its files show: settings that reach no script, files that are missing or shared."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from dscampaign.jobs.shared.code_copy import WRITTEN
from dscampaign.jobs.shared.placeholders import names_in, variables_in
from dscampaign.orchestrator.errors import Finding, SpecError
from dscampaign.orchestrator.formatting import some
from dscampaign.orchestrator.spec.matrix import AxisSetting, entries, short_name
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.orchestrator.spec.yaml_source import load

from .code_copies import Code
from .submission import Submission

_SIZES: Final = frozenset({"global_batch", "micro_batch", "accumulation"})
_STRATEGY: Final = frozenset({"strategy", "engine", "zero_stage", "offload"})
_IN_CONFIG: Final = frozenset(
    "precision grad_clip deepcompile nvme_path tensor_parallel lr weight_decay beta1 beta2 eps".split()  # noqa: SIM905
).union(_SIZES, _STRATEGY)
"""Fields of `train` in the DeepSpeed configuration."""
_IN_VARIABLES: Final = frozenset({*_SIZES, "seed", "steps"})
_WRITTEN: Final = "outputs?|save|saves|results?|ckpts?|checkpoints?|out"
_OUTPUT: Final = re.compile(rf"(?:.*_)?(?:{_WRITTEN})(?:_to)?")
_OUTPUT_FOLDER: Final = re.compile(
    rf"(?:.*_)?(?:{_WRITTEN}|logs?|logging|work|runs?|sweep|exp|experiment|default_root|tensorboard|tb)"
    r"_?(?:(?<=save_)\w+_|(?<=output_)\w+_)?(?:dir|directory|path|folder)"
)
"""Names of options for a folder to write to, in common scripts."""
_INPUT: Final = re.compile(
    r"(?:.*_)?(?:load|resume|restore|restart|pretrained|init|initial|from|input|teacher)(?:_.*)?"
)
_FILE: Final = re.compile(r".*\.[A-Za-z]\w+")
_PATH: Final = re.compile(rf".*/.*|{_FILE.pattern}|{_WRITTEN}|logs|runs|models?", re.IGNORECASE)
"""Values that can only be a path, as after `--save`, which may also name a kind, or a flag."""
_OPTION: Final = re.compile(rb"--deepspeed|add_config_arguments|HfArgumentParser|TrainingArguments")
"""The text of a script that has an option for a DeepSpeed configuration."""
_CONFIGURATIONS: Final = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf")


def checked_code(submission: Submission) -> tuple[dict[str, Code], tuple[Code, ...]]:
    """Return the code of each run, by the hash of its configuration, and all distinct code; nothing is copied.

    Raises SpecError if the command has mistakes, as far as this machine has its files; UserError as `CodeCopies.of`.
    """
    if not any(run.config.command for run in submission.runs):
        return {}, ()
    copies = submission.codes(make=False)
    codes = {run.config_hash: copies.of(run.config) for run in submission.runs}
    findings = [*_unused(submission, copies.seen), *_shared_folders(submission), *_missing(submission)]
    if findings:
        document = load(submission.source or submission.text, str(submission.spec_path))
        raise SpecError([document.problem(finding) for finding in findings])
    return codes, copies.seen


def variables_read(codes: Sequence[Code]) -> frozenset[str] | None:
    """Return the names after `CAMPAIGN_` in all files of the code; None if not all of it is known."""
    return variables_in(_texts(codes)) if codes and all(code.tree for code in codes) else None


def _texts(codes: Sequence[Code]) -> Iterator[bytes]:
    return ((code.tree.root / path).read_bytes() for code in codes if code.tree for path in code.tree.files)


def _unused(submission: Submission, codes: Sequence[Code]) -> Iterator[Finding]:
    spec, settings = submission.spec, dict[str, AxisSetting]()
    for point in entries(spec.matrix):
        # an entry may say in one field what another passes on, as `{zero_stage: 2, config: zero2.json}`
        by_others = {s.place[:-1] for s in point.settings if s.path is None or s.path[0] in ("command", "env")}
        for setting in point.settings:
            if _section(setting) and setting.place[:-1] not in by_others:
                settings.setdefault(setting.key, setting)
    names = frozenset(names_in(json.dumps([spec.command, spec.launcher_options, spec.env, spec.matrix], default=str)))
    open_ones = [setting for setting in settings.values() if not _names_of(setting) & {*names, *map(short_name, names)}]
    if not open_ones or (read := variables_read(codes)) is None:
        return
    configured = "ds_config" in names or "DS_CONFIG" in read
    has_option = any("--deepspeed" in word for word in spec.command or ()) or any(map(_OPTION.search, _texts(codes)))
    for setting in open_ones:
        section, name = _section(setting), short_name(setting.key)
        in_config = section == "deepspeed" or name in _IN_CONFIG
        if not (in_config and configured) and not {name.upper() for name in _names_of(setting) & _IN_VARIABLES} & read:
            place = setting.place[:-1] if isinstance(setting.place[-1], int) else setting.place
            options = [f"--{name} {{{name}}}"] * (section == "train")
            options += ["--deepspeed {ds_config}"] * (in_config and has_option)
            hint = f"add {' or '.join(options)} to `command`, in the script's own spelling"
            hint = hint if options else "let the script pass the file in CAMPAIGN_DS_CONFIG to deepspeed.initialize"
            yield Finding((place,), "does not reach the script: all its values would run the same", hint, at_key=True)


def _section(setting: AxisSetting) -> str:
    """Return `train` or `deepspeed` if it sets a field of that; "" if not."""
    path = setting.path or ("",)
    return path[0] if path[0] == "deepspeed" or (path[0] == "train" and len(path) > 1) else ""


def _names_of(setting: AxisSetting) -> set[str]:
    """Return the placeholders that carry a setting."""
    name = short_name(setting.key)
    return {name, *next((group for group in (_SIZES, _STRATEGY) if name in group), ())}


def _arguments(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the arguments of a command that have a value, each with its option."""
    for before, word in pairwise(words):
        option, equals, value = word.partition("=")
        if equals:
            yield option, value
        elif not word.startswith("-") and before.startswith("-") and "=" not in before:
            yield before, word
        elif not word.startswith("-"):
            yield "", word


def _shared_folders(submission: Submission) -> Iterator[Finding]:
    users: dict[tuple[str, str], list[str]] = defaultdict(list)
    for run in submission.runs:
        for argument in _arguments(run.config.command or ()):
            users[argument].append(run.name)
    for (option, value), names in users.items():
        if len(set(names)) > 1 and _is_output(option, value) and not Path(submission.workdir, value).is_file():
            is_file = bool(_FILE.fullmatch(value))
            kind, own = (
                ("file", f"{{run_dir}}/{Path(value).name}") if is_file else ("folder", f"{value.rstrip('/')}/{{run}}")
            )
            message = f"{option} {value} is the same {kind} for several runs: {some(names, 3)}"
            yield Finding((("command",),), message, f"write {own}" + ", or {checkpoint_dir}" * (not is_file))


def _is_output(option: str, value: str) -> bool:
    name = re.sub(r"[-.]", "_", option.lstrip("-+")).lower()
    if not name or _INPUT.fullmatch(name) or names_in(value) or "$" in value or value.startswith(("/dev/", "-")):
        return False
    if re.search("ckpt|checkpoint", name) and "save" not in name and value.startswith(("/", "~")):
        return False  # as likely the weights to start from
    return bool(_OUTPUT_FOLDER.fullmatch(name) or (_OUTPUT.fullmatch(name) and _PATH.fullmatch(value)))


def _missing(submission: Submission) -> Iterator[Finding]:
    runs = [run for run in submission.runs if not run.config.container]  # an image has files of its own
    pythons = dict.fromkeys(run.config.python for run in runs if run.config.python)
    hint = "write the path of the environment's Python: /envs/train/bin/python"
    for name in pythons:
        if _lacks(name, submission.spec):
            yield Finding((("python",),), f"no such program: {name}", hint)
    paths: dict[Path, str] = {}
    for run in (run for run in runs if run.config.command is not None):
        for option, value in _arguments((*run.config.launcher_options, *(run.config.command or ()))):
            if not value.endswith(_CONFIGURATIONS):
                continue
            path = Path(submission.workdir, value)
            written = WRITTEN.match(option) or option.endswith("name") or run.name in value or names_in(value)
            if not written and path.parent.is_dir() and not path.exists():
                paths.setdefault(path, run.name)
    for path, name in paths.items():
        yield Finding((("command",),), f"no such file: {path} (run {name})", "paths start at `workdir`")


def _lacks(python: str, spec: Spec) -> bool:
    """Return whether neither this machine nor, as far as it can tell, a node has the program."""
    path = Path(python)
    if "/" in python:  # a node may have what this machine lacks, but not in a folder that both have
        return path.is_dir() or (path.parent.is_dir() and not path.exists())
    prepared = spec.slurm.setup if spec.executor == "slurm" else spec.local.setup
    return not prepared and not shutil.which(python)
