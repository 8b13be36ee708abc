"""How near imagined frames are to true ones."""

import numpy as np

from procap.shapes import Float, UInt8

Frames = UInt8[np.ndarray, "n h w 3"]

ROUNDING = 1 / 12
"""Mean squared error, in steps of a byte, that rounding alone makes; a smaller error counts as this one."""


def psnr(made: Frames, true: Frames) -> Float[np.ndarray, " n"]:
    """Peak signal-to-noise ratio of each frame in dB; higher is nearer, 58.9 at most."""
    error = ((made.astype(np.float64) - true) ** 2).mean(axis=(1, 2, 3))
    return 10 * np.log10(255**2 / np.maximum(error, ROUNDING))


def ssim(made: Frames, true: Frames) -> Float[np.ndarray, " n"]:
    """Structural similarity of each frame, 1 where equal (Wang et al., 2004: Gaussian window, deviation 1.5)."""
    from skimage.metrics import structural_similarity

    settings = {"channel_axis": 2, "data_range": 255, "gaussian_weights": True, "use_sample_covariance": False}
    return np.array([structural_similarity(one, other, **settings) for one, other in zip(made, true, strict=True)])
