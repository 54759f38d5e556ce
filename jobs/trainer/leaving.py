"""The end of a rank."""

from __future__ import annotations

import time
from typing import Final

import torch.distributed as dist

LET_GO_S: Final = 0.1


def leave_process_group() -> None:
    """Ends this rank's communication, as the last thing that it does.

    On CPUs a thread of gloo's still lets go of the last operation's tensors, for which it needs the interpreter: one
    that is shutting down by then ends the thread, and with it, by SIGABRT, a rank that has done all its work (PyTorch
    2.13).
    """
    dist.destroy_process_group()
    time.sleep(LET_GO_S)
