"""Which processor a step computes on."""

import torch

from procap.errors import BadInput


def choose_device(device: str, threads: int) -> torch.device:
    """Turn ``hardware.device`` (auto, cpu or cuda) and ``hardware.threads`` (0: all cores) into a device to use.

    Sets the number of CPU threads of this process.
    """
    if threads:
        torch.set_num_threads(threads)
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "no CUDA device was found",
            where="params.yaml: hardware.device",
            expected="a GPU that torch can use",
            do="set hardware.device to auto or cpu, or install a torch build for your GPU",
        )
    return torch.device(device)
