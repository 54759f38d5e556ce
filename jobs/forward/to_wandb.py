"""A run in Weights & Biases: one W&B run for all attempts, online or kept for `wandb sync`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import wandb

from dscampaign.files.private_files import make_below

from .processes import FINISHED
from .tool import Steps, Tool, metrics_of, settings_of, sizes_of

INIT_TIMEOUT_S = 30.0  # for a server that does not answer, before the attempt is kept offline
_TAG_LENGTH = 64


class ToWandb(Tool):
    """One W&B run."""

    keeps_first = True  # its steps only ever rise

    _run: Any

    def open(self) -> str:
        """Resume the run; if the server does not take it, keep it in files, for `wandb sync`."""
        trouble, mode = "", self._options.get("mode") or os.environ.get("WANDB_MODE") or "online"
        try:
            self._run = self._init(mode)
        except wandb.errors.Error as exc:
            if mode == "offline":
                raise
            self._run = self._init("offline")
            first = str(exc).strip().partition("\n")[0]
            trouble = f"{first}; this attempt is kept offline, `wandb sync {self._folder}` sends it"
        self._run.config.update({**settings_of(self._payload), **sizes_of(self._payload)}, allow_val_change=True)
        self._state.run_id, self._state.where = self._run.id, self._folder if self._run.offline else self._run.url or ""
        return trouble

    def send(self, steps: Steps) -> None:
        """Log each step; W&B refuses steps before its last."""
        for step, values in sorted(steps.items()):
            if step >= self._run.step and (metrics := metrics_of(values)):
                stamp = {"_timestamp": values["ts"]} if "ts" in values else {}
                self._run.log({**metrics, **stamp}, step=step)

    def close(self, how: str) -> None:
        """Wait until W&B has everything: offline its own process still writes after ``finish``."""
        self._run.finish(exit_code=int(how != FINISHED))
        wandb.teardown()

    @property
    def _folder(self) -> str:
        return str(Path(self._run.dir).parent)

    def _init(self, mode: Any) -> Any:
        settings: dict[str, Any] = {
            "console": "off",
            "disable_git": True,
            "disable_job_creation": True,
            "save_code": False,
            "x_disable_stats": True,  # of this process, which computes nothing
        }
        if "WANDB_DIR" not in os.environ:
            root = self._payload.run_paths.forward
            make_below(root.parent, root, closed=True)
            settings["root_dir"] = str(root)
        if "WANDB_INIT_TIMEOUT" not in os.environ:
            settings["init_timeout"] = INIT_TIMEOUT_S
        return wandb.init(
            entity=self._options.get("entity"),
            project=self._options.get("project") or os.environ.get("WANDB_PROJECT") or self._payload.campaign,
            group=self._options.get("group") or os.environ.get("WANDB_RUN_GROUP") or self._payload.campaign,
            name=self._payload.run,
            id=self._state.run_id or self._state.key,
            resume="allow",
            tags=[tag[:_TAG_LENGTH] for tag in (self._payload.campaign, *self._options.get("tags", ()))],
            mode=mode,
            settings=wandb.Settings(**settings),
        )
