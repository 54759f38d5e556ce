"""The `forward:` section: tools that runs forward their metrics to."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from dscampaign.orchestrator.errors import did_you_mean
from dscampaign.orchestrator.formatting import shorten
from dscampaign.orchestrator.user_files import expanded

from .field_types import Hint, SpecSection, Text

TOOLS: Final = ("wandb", "tensorboard", "mlflow")


class WandbConfig(SpecSection):
    """Weights & Biases. Credentials come from `WANDB_API_KEY` or `wandb login`, never from here."""

    project: Text | None = None
    """Default: `WANDB_PROJECT`, or the campaign's name."""
    entity: Text | None = None
    """Team or user. Default: `WANDB_ENTITY`, or your own."""
    group: Text | None = None
    """Default: `WANDB_RUN_GROUP`, or the campaign's name."""
    mode: Literal["online", "offline"] | None = None
    """`offline` keeps the run in files, for `wandb sync` to upload later. Default: `WANDB_MODE`, or online."""
    tags: tuple[Text, ...] = ()
    """Tags in addition to the campaign's name."""


class TensorBoardConfig(SpecSection):
    """TensorBoard: one folder per run."""

    dir: Text | None = None
    """Absolute path of a folder that all nodes see; each run writes to `<campaign>/<run>` in it. Default:
    `tensorboard/<run>` in the campaign's folder."""

    @field_validator("dir")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not expanded(value).is_absolute():
            raise Hint("is not an absolute path", "jobs do not run in this folder; leave it out for the campaign's own")
        return value


class MlflowConfig(SpecSection):
    """MLflow. Credentials come from `MLFLOW_TRACKING_USERNAME` and the like, never from here."""

    tracking_uri: Text | None = None
    """The tracking server, such as `https://mlflow.example.org`. Required. Default: `MLFLOW_TRACKING_URI`."""
    experiment: Text | None = None
    """Default: `MLFLOW_EXPERIMENT_NAME`, or the campaign's name."""

    @field_validator("tracking_uri")
    @classmethod
    def _nameless(cls, value: str | None) -> str | None:
        if value and not re.match(r"[a-z][a-z0-9+-]*:|databricks$", value):
            raise Hint("is not a URL", "write https://HOST, or sqlite:////absolute/path for runs on one machine")
        return value


class ForwardConfig(SpecSection):
    """Tools that get each run's metrics while it trains: `[wandb, tensorboard]`, or a mapping with their options."""

    wandb: WandbConfig | None = None
    """Weights & Biases, see below."""
    tensorboard: TensorBoardConfig | None = None
    """TensorBoard, see below."""
    mlflow: MlflowConfig | None = None
    """MLflow, see below."""

    @model_serializer(mode="wrap")
    def _named_ones(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the tools that are not named: a null would name a tool without options."""
        return {tool: options for tool, options in dump(self).items() if options is not None}

    def options(self) -> dict[str, dict[str, Any]]:
        """The tools that are named, each with the options that are given."""
        given = self.model_dump(mode="json", exclude_none=True)
        return {tool: given[tool] for tool in TOOLS if tool in given}


def _as_mapping(value: Any) -> Any:
    """`wandb`, `[wandb, mlflow]` and `{wandb: }` name tools without options."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list):
        return {k: {} if v is None else v for k, v in value.items()} if isinstance(value, dict) else value
    tools: dict[str, Any] = {}
    for item in listed:
        for name, options in (item if isinstance(item, dict) else {str(item): None}).items():
            if name not in TOOLS:
                hint = did_you_mean(str(name), TOOLS, "write [wandb, tensorboard], or a mapping with options")
                raise Hint(f"{shorten(str(name), 40)} is not one of {', '.join(TOOLS)}", hint)
            tools[name] = {} if options is None else options
    return tools


Forward = Annotated[ForwardConfig, BeforeValidator(_as_mapping)]
"""The section in any of its forms."""
