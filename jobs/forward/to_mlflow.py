"""A run in MLflow: one MLflow run for all attempts, found again by its id."""

from __future__ import annotations

import json
import os
import posixpath
import re
import time
from itertools import islice
from typing import Any

os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
# Above: MLflow's own patience is longer than an attempt's end, and what fails is tried again here anyway.

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from .processes import FINISHED
from .tool import Steps, Tool, flat, metrics_of, settings_of, sizes_of, without_password

METRICS_A_REQUEST = 1000
PARAMS_A_REQUEST = 100
_LONGEST = 500
_ENDED = {FINISHED: "FINISHED", "stop": "KILLED", "signal": "KILLED", "superseded": "KILLED"}


class ToMlflow(Tool):
    """One MLflow run."""

    keeps_first = True  # it keeps every value that it is sent

    _client: Any

    def open(self) -> str:
        """Find or create the run, and describe it."""
        uri = self._options.get("tracking_uri") or os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            hint = "write forward.mlflow.tracking_uri into the spec, or export MLFLOW_TRACKING_URI"
            raise MlflowException(f"no tracking server: {hint}")
        self._client = MlflowClient(tracking_uri=uri)
        name = self._options.get("experiment") or os.environ.get("MLFLOW_EXPERIMENT_NAME") or self._payload.campaign
        try:
            experiment = self._client.create_experiment(name)
        except MlflowException:
            if not (known := self._client.get_experiment_by_name(name)):
                raise
            experiment = known.experiment_id
        state, run = self._state, self._payload.run
        tags = {"campaign": self._payload.campaign, "run": run}
        state.run_id = state.run_id or self._client.create_run(experiment, tags=tags, run_name=run).info.run_id
        self._client.update_run(state.run_id, status="RUNNING")
        texts = {_named(name): _text(value) for name, value in flat(settings_of(self._payload)).items()}
        logged = self._client.get_run(state.run_id).data.params
        params = (Param(name, value) for name, value in texts.items() if name not in logged)
        while some := list(islice(params, PARAMS_A_REQUEST)):
            self._client.log_batch(state.run_id, params=some)
        sizes = [RunTag(name, _text(value)) for name, value in sizes_of(self._payload).items()]
        self._client.log_batch(state.run_id, tags=sizes)
        web = f"/#/experiments/{experiment}/runs/{state.run_id}" if uri.startswith("http") else ""
        state.where = without_password(uri).rstrip("/") + web
        return ""

    def send(self, steps: Steps) -> None:
        """Log the values, as many in a request as the server takes."""
        metrics = (
            Metric(_named(name), value, int(values.get("ts", time.time()) * 1000), step)
            for step, values in steps.items()
            for name, value in metrics_of(values).items()
        )
        while some := list(islice(metrics, METRICS_A_REQUEST)):
            self._client.log_batch(self._state.run_id, metrics=some)

    def close(self, how: str) -> None:
        """Record how the attempt ended; a later attempt sets the run back to running."""
        self._client.set_terminated(self._state.run_id, _ENDED.get(how, "FAILED"))


def _named(name: str) -> str:
    """Return a name that MLflow takes."""
    return posixpath.normpath("/" + re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)).lstrip("/")


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, default=str))[:_LONGEST]
