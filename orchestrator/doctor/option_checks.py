"""Ask DeepSpeed and Transformers about their options in a spec, in the Python that will train."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any, Final

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.ownership import Distrusted, distrust, trusted_bytes
from dscampaign.files.private_files import make_private
from dscampaign.jobs.shared.process_groups import signal_group
from dscampaign.orchestrator.errors import Finding
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.user_files import cache_folder

_PROGRAM: Final = Path(__file__).parents[2] / "jobs" / "trainer" / "preflight.py"
_VERSIONS_S: Final = 20.0
_ANSWER_S: Final = 240.0
"""A first import over a busy network file system takes minutes."""
_PARTS: Final = {"deepspeed": ("DeepSpeed", "deepspeed"), "models": ("Transformers", "train.model")}
"""For each part of a question: the library that answers, whose package has its name, and its section of the spec."""
_FROM_TRAIN: Final = ("lr", "weight_decay", "betas", "eps")
_ENVIRONMENT: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")

_Question = tuple[str, str]
"""A part, and what is asked about it, as JSON."""
_Interpreter = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class OptionChecks:
    """Checks `deepspeed` and `train.model` of all runs of a spec by a process per Python."""

    tell: Callable[[str], None]  # reports that it takes a while, or why something is not checked

    def __call__(self, configs: Sequence[RunConfig]) -> list[list[Finding]]:
        """Return the findings of each run."""
        asked = [(_interpreter(config), list(_questions(config)), config) for config in configs]
        groups: dict[_Interpreter, dict[_Question, None]] = {}
        for interpreter, questions, _ in asked:
            groups.setdefault(interpreter, {}).update(dict.fromkeys(questions))
        answers = {interpreter: self._answers(interpreter, list(own)) for interpreter, own in groups.items() if own}
        return [
            [
                Finding(
                    tuple((_PARTS[question[0]][1].split(".")[0], *place) for place in item["places"]),
                    item["message"],
                    item["hint"] or None,
                    at_key=item["at_key"],
                )
                for question in questions
                for item in answers[interpreter].get(question, ())
                if not (item["ignored"] and config.command and not item["hint"])  # a script may read it itself
            ]
            for interpreter, questions, config in asked
        ]

    def _answers(self, interpreter: _Interpreter, questions: Sequence[_Question]) -> Mapping[_Question, Any]:
        """Return the findings for each question that this Python could answer."""
        python, variables = interpreter
        parts = {part: [text for name, text in questions if name == part] for part in _PARTS}
        with suppress(OSError):
            if python != sys.executable and (doubt := distrust(Path(python))):
                self._remark(python, parts, f"is not run: {doubt.why}")
                return {}
        env = {"DS_ACCELERATOR": "cpu", **os.environ, "HF_HUB_OFFLINE": "1", **dict(variables)}
        versions = self._run([python, str(_PROGRAM), "versions"], env, parts, _VERSIONS_S)
        if versions is None:
            return {}
        for part in _PARTS:
            if versions[_PARTS[part][0].lower()] is None:
                self._remark(python, {part: parts[part]}, f"has no {_PARTS[part][0]} here")
                parts[part] = []
        if not any(parts.values()):
            return {}
        question = {part: [json.loads(text) for text in texts] for part, texts in parts.items()}
        asked = _json([python, versions, question, _PROGRAM.read_text(encoding="utf-8")])
        path = cache_folder() / f"options-{sha256(asked.encode()).hexdigest()[:32]}.json"
        findings = None
        with suppress(OSError, ValueError, Distrusted):
            findings = json.loads(trusted_bytes(path))
        if findings is None:
            names = " and ".join(_PARTS[part][0] for part, texts in parts.items() if texts)
            self.tell(f"asking {names} about the options of the spec ({python}; takes seconds, once per change)")
            findings = self._run([python, str(_PROGRAM)], env, parts, _ANSWER_S, json.dumps(question))
            if findings is None:
                return {}
            with suppress(OSError):
                make_private(path.parent)
                write_atomically(path, json.dumps(findings), closed=True)
        return {(part, text): found for part in _PARTS for text, found in zip(parts[part], findings[part], strict=True)}

    def _run(
        self, command: Sequence[str], env: Mapping[str, str], parts: Mapping[str, Any], wait_s: float, text: str = ""
    ) -> dict[str, Any] | None:
        try:
            # not in this folder, whose files could pass for packages
            with Popen(
                command, env=env, cwd="/", text=True, start_new_session=True, stdin=PIPE, stdout=PIPE, stderr=PIPE
            ) as child:
                try:
                    out, err = child.communicate(text, timeout=wait_s)
                finally:
                    signal_group(child.pid)  # an interpreter may be a script around another
        except OSError as exc:
            reason = f"cannot be run here ({exc.strerror})"
        except TimeoutExpired:
            reason = f"did not answer within {wait_s:.0f} s"
        else:
            with suppress(ValueError):
                if not child.returncode and isinstance(value := json.loads(out), dict):
                    return value
            reason = f"failed: {(err.strip().splitlines() or ['no output'])[-1]}"
        self._remark(command[0], parts, reason)
        return None

    def _remark(self, python: str, parts: Mapping[str, Any], reason: str) -> None:
        for library, section in (_PARTS[part] for part, texts in parts.items() if texts):
            then = f"{library} checks it when a run starts, and may ignore unknown keys"
            self.tell(f"note: `{section}` not checked: {python} {reason}; {then}")


def _interpreter(config: RunConfig) -> _Interpreter:
    python = None if config.container else config.python  # in an image there may be another version
    return python or sys.executable, tuple((name, config.env[name]) for name in _ENVIRONMENT if name in config.env)


def _questions(config: RunConfig) -> Iterator[_Question]:
    train = config.train
    if config.deepspeed:
        yield "deepspeed", _json([_rendered(config), config.deepspeed])
    if config.command is None and isinstance(train.model, Mapping):
        yield "models", _json([train.model, train.seq_len, train.attention])


def _rendered(config: RunConfig) -> dict[str, Any]:
    """Return the whole configuration without the numbers of `train`: axes vary them, and the spec checks them."""
    rendered = config.rendered_deepspeed()
    params = rendered["optimizer"]["params"]
    own = config.deepspeed.get("optimizer", {}).get("params", {})
    kept = {name: value for name, value in params.items() if name in own or name not in _FROM_TRAIN}
    rendered["optimizer"] = {**rendered["optimizer"], "params": kept}
    del rendered["gradient_clipping"]
    return rendered


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
