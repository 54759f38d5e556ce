"""``python -m dscampaign.jobs.trainer``: one rank of the built-in trainer, started by the DeepSpeed launcher."""

from .. import report  # noqa: F401  first: a wish to stop during the slow imports must not kill the rank

if __name__ == "__main__":
    import torch.distributed

    from .train import main

    main()
    torch.distributed.destroy_process_group()
