"""Registry of environment variables by their purpose. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Final

PER_TASK: Final = re.compile(
    r"OMPI_(MCA_(ess|orte)_|(?!MCA_))\w+|PMI(2|X)?_(?!MCA_)\w+|MPI_(RANK|SIZE|WORLD_SIZE|NRANKS)|MPIRUN_\w+"
    r"|ALPS_APP_PE|FLUX_TASK_\w+|PALS_\w+|JSM_NAMESPACE_\w+|MPI_LOCAL\w+|MV2_COMM_\w+|TORCHELASTIC_\w+"
    r"|RANK|LOCAL_RANK|CROSS_RANK|WORLD_SIZE|LOCAL_SIZE|CROSS_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_(RANK|WORLD_SIZE|NAME)|NODE_RANK"
    r"|MASTER_ADDR|MASTER_PORT"
)
"""A launcher sets these for a process: another process that inherits them takes itself for that rank."""

_OF_A_JOB: Final = re.compile(r"(SLURM|SLURMD|SBATCH|SRUN)_\w+")

_OF_A_RUN: Final = re.compile(
    r"WANDB_(RUN_ID|RESUME|SERVICE|SWEEP_ID|SWEEP_PARAM_PATH|LAUNCH\w*|AGENT_\w+)|_WANDB_\w+"
    r"|MLFLOW_(RUN_ID|RUN_CONTEXT)|_MLFLOW_\w+|COMET_(EXPERIMENT_KEY|OPTIMIZER_ID|START_\w+)|NEPTUNE_(CUSTOM_)?RUN_ID"
    r"|(CLEARML|TRAINS)_(TASK_ID|PROC_MASTER_ID)|ACCELERATE_\w+"
    r"|CAMPAIGN_(PYTHON|METRICS_FILE|PROGRESS_DIR|AGENT_PID|STOP_FILE|RUN_DIR|ATTEMPT_DIR|VISIBLE_DEVICES|(GPU_)?MEM_PER_PROCESS)"
)
"""A tool leaves these to the processes of a run, sweep or service; another run would take them for its own."""

_PERFORMANCE: Final = re.compile(
    r"(G?OMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|CUDA|CUBLAS|CUDNN|NCCL|NVSHMEM|GLOO|UCX|FI|IBV|HSA|ROCM|HIP|MIOPEN"
    r"|TORCH|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|TRITON|DS|DEEPSPEED|XLA|XFORMERS|FLASH_ATTENTION|MALLOC)_\w+"
    r"|NVIDIA_TF32_OVERRIDE|TOKENIZERS_PARALLELISM|LD_PRELOAD|PYTHON(DEVMODE|MALLOC|OPTIMIZE)"
)
_PLACES: Final = re.compile(
    r"\w+_(HOME|PATH|ROOT|DIR|CACHE|FILE|VISIBLE_DEVICES|LOG_?LEVEL|LOGS?)|NCCL_DEBUG\w*|DS_ACCELERATOR"
)
"""Folders, files and device numbers, which differ between jobs that run alike; logging; and the agent's own choice."""

TRAINING: Final = re.compile(
    r"(HF|HUGGING|TRANSFORMERS|DATASETS|WANDB|MLFLOW|COMET|NEPTUNE|CLEARML"
    r"|CUDA|NVIDIA|NVSHMEM|NCCL|GLOO|UCX|FI|IBV|HSA|ROCM|HIP|ROCR"
    r"|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|DS|DEEPSPEED|XFORMERS|FLASH_ATTENTION|OMP|MKL|OPENBLAS)_\w+"
    r"|PYTHON(PATH|HOME|USERBASE|HASHSEED)|(LD_LIBRARY|LIBRARY|LD_RUN)_PATH|LD_PRELOAD|C(PLUS_INCLUDE_)?PATH"
    r"|LOADEDMODULES|PGPASSFILE|PGSERVICE(FILE)?|(HTTPS?|ALL|NO)_PROXY|CC|CXX|\w+_(TOKEN|API_KEY)",
    re.IGNORECASE,
)
"""Variables that training software reads by itself."""

SESSION: Final = re.compile(
    r"SSH_\w+|XDG_\w+|DBUS_\w+|LC_\w+|LANG(UAGE)?|LS_COLORS|TERM\w*|COLORTERM|COLUMNS|LINES|DISPLAY|WAYLAND\w*|XAUTHORITY"
    r"|SHLVL|SHELL|PWD|OLDPWD|_|PS[1-4]|PROMPT_COMMAND|HIST\w+|EDITOR|VISUAL|PAGER|LESS\w*|MAIL|TMUX\w*|STY|WINDOW"
    r"|USER|LOGNAME|HOME|HOSTNAME|PATH|TMP(DIR)?|TEMP|TZ|VSCODE_\w+|JPY_\w+|CI|GIT_\w+|VIRTUAL_ENV\w*|CONDA_\w+|PYENV_\w+"
    r"|SCRONTAB_\w+|CAMPAIGN_\w+|PYTHON(UNBUFFERED|FAULTHANDLER|DONTWRITEBYTECODE|SAFEPATH)"
    r"|\w+_(DEBUG(_\w+)?|VERBOSITY|LOG_?LEVEL|LOGS?|PROGRESS_BARS?)"
)
"""Variables that belong to a session or that this program sets, and variables of logging.

Variables of an active Python environment are here because the interpreter is recorded by itself.
"""


def of_another_process(name: str) -> bool:
    """Return whether a variable belongs to a job, rank or run, and misleads any other that inherits it."""
    return any(pattern.fullmatch(name) for pattern in (_OF_A_JOB, PER_TASK, _OF_A_RUN))


def inheritable(env: Mapping[str, str], kept: Collection[str] = ()) -> dict[str, str]:
    """Return an environment without the variables of another job, rank or run, except ``kept``."""
    kept = {"SLURM_CONF", *kept}
    return {name: value for name, value in env.items() if name in kept or not of_another_process(name)}


def digests(env: Mapping[str, str], explicit: Collection[str]) -> dict[str, str]:
    """Return a short hash of each inherited variable that may change the speed, except ``explicit`` variables."""
    return {
        name: hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:12]
        for name, value in sorted(env.items())
        if _PERFORMANCE.fullmatch(name) and not _PLACES.fullmatch(name) and name not in explicit
    }
