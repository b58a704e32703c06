"""`init` and `uninit`: torch.distributed for a training script."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

_started = False


def init() -> None:
    """Starts the process group under ``torchrun`` and sets this rank's device.

    NCCL where CUDA is there, gloo otherwise. The timeout is long, as the first rank plans and
    writes code while the others wait. Not needed where the script starts the group itself. Without
    ``torchrun``, or with ``SINGLE_DEV_MODE=1``, this process is rank 0 of 1.
    """
    global _started
    cuda = torch.cuda.is_available()
    device = None
    if cuda:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    if not launched or os.environ.get("SINGLE_DEV_MODE") == "1" or dist.is_initialized():
        return
    dist.init_process_group(
        "nccl" if cuda else "gloo", timeout=timedelta(hours=6), device_id=device
    )
    _started = True


def uninit() -> None:
    """Ends the process group if `init` started it."""
    global _started
    if _started and dist.is_initialized():
        dist.destroy_process_group()
    _started = False
