import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio

from procap.evaluation.frame_quality import psnr, ssim


@pytest.fixture
def frames():
    draw = np.random.default_rng(0)
    true = draw.integers(0, 256, (3, 16, 20, 3), dtype=np.uint8)
    noise = draw.integers(-20, 21, true.shape) * np.array([1, 2, 0])[:, None, None, None]
    return np.clip(true + noise, 0, 255).astype(np.uint8), true


def test_noise_per_frame_as_the_library_counts_it_and_equal_frames_at_the_limit_of_bytes(frames):
    made, true = frames
    found = psnr(made, true)
    np.testing.assert_allclose(found[:2], [peak_signal_noise_ratio(true[i], made[i]) for i in (0, 1)])
    assert found[2] == pytest.approx(10 * np.log10(255**2 * 12))


def naive_ssim(one: np.ndarray, other: np.ndarray) -> float:
    """Window by window, as the paper defines it; windows that leave the picture do not count."""
    at = np.arange(-5, 6)
    weights = np.exp(-(at[:, None] ** 2 + at**2) / (2 * 1.5**2))
    weights /= weights.sum()
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    found = []
    for channel in range(3):
        for y in range(5, one.shape[0] - 5):
            for x in range(5, one.shape[1] - 5):
                a, b = (each[y - 5 : y + 6, x - 5 : x + 6, channel].astype(float) for each in (one, other))
                m, n = (weights * a).sum(), (weights * b).sum()
                u, v, both = ((weights * (p - i) * (q - j)).sum() for p, i, q, j in
                              ((a, m, a, m), (b, n, b, n), (a, m, b, n)))
                found.append((2 * m * n + c1) * (2 * both + c2) / ((m * m + n * n + c1) * (u + v + c2)))
    return float(np.mean(found))


def test_structure_as_the_paper_defines_it(frames):
    made, true = frames
    np.testing.assert_allclose(ssim(made, true)[:2], [naive_ssim(made[i], true[i]) for i in (0, 1)], atol=1e-6)
    assert ssim(made, true)[2] == pytest.approx(1)
