"""The published VFIformer (Lu et al., CVPR 2022), full version."""

import re
from pathlib import Path

import torch

from procap.checkpoints.reader import read_state
from procap.models.build import build, frozen
from procap.models.vfiformer import VFIformer
from procap.procedure.interpolation import Midpoint, in_multiples
from procap.shapes import Pictures

MULTIPLE = 64
"""Sides of what the network sees must be multiples of this."""

COMPUTED = re.compile(r".*(attn_mask(_x|_y)?|relative_position_index)$")
"""Tables in the file that follow from the size of the pictures and of a window."""


def load_vfiformer(path: Path, device: torch.device) -> VFIformer:
    """The network, frozen; ``path`` is the published file, or a folder that `procap import-weights` wrote.

    Raises BadInput for a file that is not there or cannot be read, and for keys that are missing, unknown or of
    another shape.
    """
    net = build(VFIformer, torch.Generator())
    state = read_state(
        path / "vfiformer.safetensors" if path.is_dir() else path,
        expected="the weights of VFIformer, full version",
        do="mend interpolate.checkpoint in params.yaml, or set interpolate.method to rife",
        under=("state_dict",),
    ).without(COMPUTED)
    state.check({key: tuple(value.shape) for key, value in net.state_dict().items()})
    net.load_state_dict(dict(state.tensors))
    return frozen(net).to(device)


def midpoint(net: VFIformer) -> Midpoint:
    """Of pictures of any size."""

    @torch.inference_mode()
    def half_way(before: Pictures, after: Pictures) -> Pictures:
        return net(before, after)

    return in_multiples(half_way, MULTIPLE)
