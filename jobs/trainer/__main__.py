"""``python -m dscampaign.jobs.trainer``: one rank of the built-in trainer, started by the DeepSpeed launcher."""

import sys

from dscampaign.jobs import report  # noqa: F401  first: a wish to stop during the slow imports must not kill the rank

# DeepSpeed's autotuner loads MLflow where it is installed, as for `forward`: a second of each start and 0.3 GB of
# address space that a rank has no use for.
sys.modules.setdefault("mlflow", None)  # type: ignore[arg-type]

if __name__ == "__main__":
    from .engine import leave_process_group
    from .train import main

    main()
    leave_process_group()
