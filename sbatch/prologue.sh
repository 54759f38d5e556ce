# What every job of a campaign does first. Only defaults: what the user or the cluster has set already wins, and the spec's
# `setup` comes after these lines (module load, source .venv/bin/activate, NCCL_SOCKET_IFNAME: what only your cluster knows).

# A dead rank of a large model would fill the shared folder with its core.
ulimit -c 0

# Since Slurm 22.05 srun does not take --cpus-per-task over from sbatch: every rank would share one core.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi

# NCCL says why it fails. INFO would bury the first error under thousands of lines.
export NCCL_DEBUG="${NCCL_DEBUG:-WARN}"
# A collective that hangs ends its rank instead of the job's time, and leaves each rank's last calls in /tmp on its node
# (TORCH_NCCL_DEBUG_INFO_TEMP_FILE moves them).
export TORCH_NCCL_ASYNC_ERROR_HANDLING="${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}"
export TORCH_NCCL_TRACE_BUFFER_SIZE="${TORCH_NCCL_TRACE_BUFFER_SIZE:-2000}"
export TORCH_NCCL_DUMP_ON_TIMEOUT="${TORCH_NCCL_DUMP_ON_TIMEOUT:-1}"
