"""The reference of all fields, made from their docstrings, so that it cannot say anything else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ..spec.forward_section import ForwardConfig, MlflowConfig, TensorBoardConfig, WandbConfig
from ..spec.model import DatasetConfig, LimitsConfig, LocalConfig, RetryConfig, RetryRule, RunConfig, Spec, TrainConfig
from ..spec.slurm_section import OWNED_OPTIONS, PASSED_OPTIONS, SlurmConfig

_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "train": TrainConfig,
    "train.dataset": DatasetConfig,
    "slurm": SlurmConfig,
    "local": LocalConfig,
    "retry": RetryConfig,
    "retry.rules": RetryRule,
    "limits": LimitsConfig,
    "forward": ForwardConfig,
    "forward.wandb": WandbConfig,
    "forward.tensorboard": TensorBoardConfig,
    "forward.mlflow": MlflowConfig,
}
_TOP_ORDER: Final = tuple(name for name in Spec.model_fields if name not in RunConfig.model_fields)


def reference() -> str:
    """All fields of a spec in Markdown, section by section."""
    parts = [*_table("Top level", Spec, [*_TOP_ORDER, *RunConfig.model_fields])]
    for name, model in _SECTIONS.items():
        parts += _table(f"`{name}`", model, list(model.model_fields))
    return "\n".join([*parts, *_options()])


def _table(title: str, model: type[BaseModel], names: list[str]) -> Iterator[str]:
    yield f"### {title}\n"
    if model is not Spec and model.__doc__:
        yield f"{model.__doc__.strip()}\n"
    yield "| field | default | meaning |\n|---|---|---|"
    for name in names:
        field = model.model_fields[name]
        yield f"| `{name}` | {_default(field)} | {_meaning(field)} |"
    yield ""


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ({}, ()) or isinstance(value, BaseModel):
        return ""
    text = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{text}`"


def _meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


def _options() -> Iterator[str]:
    yield "### Other options of sbatch\n"
    names = ", ".join(f"`{name}`" for name in sorted(PASSED_OPTIONS))
    yield f"Passed through, written with dashes or underscores: {names}.\n"
    yield "Refused, because this program sets them or does without:\n\n| option | why |\n|---|---|"
    yield from (f"| `{name}` | {why} |" for name, why in OWNED_OPTIONS.items())
    yield ""


if __name__ == "__main__":
    print(reference())  # noqa: T201
