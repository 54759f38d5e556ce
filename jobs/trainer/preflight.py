"""Ask DeepSpeed and Transformers about the options of a spec. Run by file path: a question on stdin, JSON on stdout.

Runs under the Python of the training: 3.8 syntax, and nothing of this package.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from copy import deepcopy
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
"""The modules beside this file would hide others of their names."""

PACKAGES = ("deepspeed", "torch", "transformers")
NEAR = 0.85


def main() -> None:
    """Print the versions of the packages, or the findings for each part of the question."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    if sys.argv[1:] == ["versions"]:
        found = {name: next(iter(metadata.distributions(name=name)), None) for name in PACKAGES}
        json.dump({name: each and each.version for name, each in found.items()}, answer)
        return
    question = json.load(sys.stdin)
    findings = {
        "deepspeed": [deepspeed_findings(config, own) for config, own in question["deepspeed"]],
        "models": [model_findings(*arguments) for arguments in question["models"]],
    }
    json.dump(findings, answer)
    answer.flush()


def _finding(places: Any, message: str, hint: str = "", *, at_key: bool = False, ignored: bool = False) -> Any:
    return {"places": places, "message": message, "hint": hint, "at_key": at_key or ignored, "ignored": ignored}


# -- DeepSpeed ---------------------------------------------------------------------------------------------------------


def deepspeed_findings(config: dict[str, Any], own: dict[str, Any]) -> list[dict[str, Any]]:
    """Return DeepSpeed's first objections to a configuration, and the keys that it would ignore."""
    findings: list[Any] = []
    for error in _errors(config):
        name, kind, message = error
        fails = f"fails with {name}: " if name in ("TypeError", "AttributeError", "KeyError") else ""
        places = _causes(_errors, config, own, error)
        findings.append(_finding(places, f"DeepSpeed: {fails}{message}", at_key=kind == "extra_forbidden"))
    refused = {place for finding in findings for place in finding["places"]}
    return findings + [finding for finding in _ignored(config, own) if finding["places"][0] not in refused]


def _errors(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The name of the model or exception, the kind of each error, and its message."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        DeepSpeedConfig(deepcopy(config))
    except Exception as exc:  # noqa: BLE001 - any failure of a foreign library is an answer
        raised: Any = exc
        if not hasattr(raised, "errors"):
            return [(type(exc).__name__, "", str(exc).strip())]
        details = raised.errors(include_url=False, include_context=False)  # pydantic's
        return [(".".join(map(str, (raised.title, *each["loc"]))), each["type"], each["msg"]) for each in details]
    return []


def _causes(errors: Any, config: Any, own: Any, error: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the smallest parts of the input without any of which the error disappears."""
    inner = _at(own, place)
    keys = [key for key in inner if error not in errors(_without(config, (*place, key)))] if _is_dict(inner) else []
    causes = [cause for key in keys for cause in _causes(errors, config, own, error, (*place, key))]
    return causes or [place]


def _ignored(config: dict[str, Any], own: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the given keys that DeepSpeed ignores silently: its source does not contain them.

    Only keys of the configuration and of its sections, since below them users may choose names; and parameters of the
    optimizer and of the schedule.
    """
    import deepspeed
    import torch
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    package, optimizers = Path(deepspeed.__file__).parent, Path(torch.optim.__file__).parent
    names = _names_in(package, r"[\"']([A-Za-z]\w*)[\"']|^    (\w+) ?:")  # quoted names, and fields of classes
    parameters = names.union(*(_names_in(folder, r"\b([A-Za-z]\w*)(=|: \w)") for folder in (package, optimizers)))
    places = [(), *((name,) for name in own), ("optimizer", "params"), ("scheduler", "params")]
    findings = []
    for place in places:
        section, known = _at(own, place), parameters if place[1:] else names
        for key in section.keys() & set(_at(config, place) or ()) if _is_dict(section) else ():
            misplaced = not place and key in DeepSpeedZeroConfig.model_fields
            if key in known and not misplaced:
                continue
            near = get_close_matches(str(key).lower().replace("-", "_"), sorted(known), 1, NEAR)
            hint = f'did you mean "{near[0]}"?' if near else ""
            hint = f"move it to deepspeed.zero_optimization.{key}" if misplaced else hint
            message = f"is not read by DeepSpeed {deepspeed.__version__}: it would ignore the key"
            message = "is not a parameter of an optimizer or schedule of DeepSpeed or PyTorch" if place[1:] else message
            findings.append(_finding([(*place, key)], message, hint, ignored=True))
    return findings


def _names_in(package: Path, pattern: str) -> set[str]:
    """Return the names in a package's source that the groups of a pattern find."""
    texts = (file.read_text(errors="replace") for file in package.rglob("*.py"))
    return {name for text in texts for names in re.findall(pattern, text, re.MULTILINE) for name in names if name}


# -- Transformers ------------------------------------------------------------------------------------------------------


def model_findings(fields: dict[str, Any], seq_len: int, attention: str) -> list[dict[str, Any]]:
    """Return the objections of Transformers to a model that it is to build with random weights."""
    import torch
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    kind = fields["model_type"]
    if kind not in CAUSAL:
        problem = "has no causal language model for" if kind in CONFIG_MAPPING else "does not have the model type"
        hint = "use gpt2, llama, qwen2, mistral, ..."
        return [_finding([("model", "model_type")], f"Transformers {problem} {kind}", hint)]
    settings = {name: value for name, value in fields.items() if value != "auto"}
    if misspelt := misspelt_fields(settings):
        message = f"{kind} of Transformers has no such field, and would ignore it"
        meant = {name: f'did you mean "{near}"?' for name, near in misspelt.items()}
        return [_finding([("model", name)], message, hint, at_key=True) for name, hint in meant.items()]

    def errors(tried: dict[str, Any], **options: Any) -> list[str]:
        try:
            config = AutoConfig.for_model(**tried)
            with torch.device("meta"):
                AutoModelForCausalLM.from_config(config, **options)
        except Exception as exc:  # noqa: BLE001 - as above
            return [" ".join(str(exc).split())]
        return []

    if wrong := errors(settings):
        fixed = {name: value for name, value in settings.items() if name != "model_type"}
        places = [("model", *place) for place in _causes(errors, settings, fixed, wrong[0])]
        return [_finding(places, f"Transformers: {wrong[0]}")]
    config = AutoConfig.for_model(**settings)
    positions, findings = getattr(config, "max_position_embeddings", None), []
    if positions is not None and positions < seq_len:
        message = f"{seq_len} is more than the {positions} positions of the model"
        findings.append(_finding([("seq_len",)], message, f"use at most {positions}"))
    # flash_attention_2 needs a package that only nodes may have
    if attention == "sdpa" and (wrong := errors(settings, attn_implementation=attention)):
        findings.append(
            _finding([("attention",)], f"Transformers: {wrong[0]}", "write auto: it takes the model's value")
        )
    return findings


def misspelt_fields(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that a model's configuration would ignore, with the field that is meant.

    A configuration takes any name, so ``n_layers`` for ``n_layer`` would silently train the default model.
    """
    from transformers import AutoConfig

    default = AutoConfig.for_model(fields["model_type"])
    names = {*default.to_dict(), *default.attribute_map}
    near = {name: get_close_matches(name, sorted(names), 1, NEAR) for name in sorted(fields.keys() - names)}
    return {name: match[0] for name, match in near.items() if match}


# -- Mappings ----------------------------------------------------------------------------------------------------------


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _at(value: Any, place: Any) -> Any:
    for key in place:
        value = value.get(key) if _is_dict(value) else None
    return value


def _without(config: dict[str, Any], place: Any) -> dict[str, Any]:
    copy = deepcopy(config)
    *around, key = place
    holder = _at(copy, around)
    if _is_dict(holder):
        holder.pop(key, None)
    return copy


if __name__ == "__main__":
    main()
