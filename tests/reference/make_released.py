"""Writes ``released.npz``: what the public code computes with the weights of ``tests/formula.py``, cut to a megabyte.

    python -m tests.reference.make_released

needs ``../shared``, where the whole of it is; ``tests/unit/test_official_vectors.py`` holds us against the whole.

Stage 1, case a (four procedures), and the first pair of stage 2. Features are those of the places that are not
hidden, as 16-bit integers with a scale for each channel, which moves what follows by a few 1e-5.
"""

import numpy as np
import torch

from tests.formula import formula_pictures
from tests.reference.warps import kept_places, warped_pictures
from tests.released import OFFICIAL, STORED, raw_features, released_vqgan

PLACES = (0, 1, 24, 25, 26, 27, 419, 810)
"""Of the sequence of 811."""


def quantised(name: str, values: torch.Tensor) -> dict[str, np.ndarray]:
    """Rows of features as integers, and what a step is worth in each channel."""
    scale = values.abs().amax(0) / 32767
    return {name: (values / scale).round().to(torch.int16).numpy(), f"{name}_scale": scale.numpy()}


def vectors(name: str) -> dict[str, np.ndarray]:
    with np.load(OFFICIAL / f"vectors_{name}.npz", allow_pickle=False) as stored:
        return dict(stored)


def stage_1() -> dict[str, np.ndarray]:
    whole, vqgan = vectors("stage1"), released_vqgan()
    pictures = torch.stack([formula_pictures(*(f"stage1/{b}/{t}" for t in range(4))) for b in range(4)])
    features, kept = raw_features(vqgan, pictures), kept_places(whole, "a")
    bent = warped_pictures(whole, "a", pictures)
    changed = (bent != pictures).flatten(2).any(-1)
    shown = changed[..., None] & kept
    warped = torch.zeros_like(features)
    for b, t in changed.nonzero().tolist():
        if kept[b, t].any():
            warped[b, t] = raw_features(vqgan, bent[b, t][None])[0]
    at = [int(np.flatnonzero(whole["positions"] == place)[0]) for place in PLACES]
    out = {name: whole[name] for name in ("text_ids", "tokens", "alignment_partner", "a_not_fully_masked", "a_losses")}
    out |= {name: whole[name] for name in ("a_alignment_logits", "a_consistency_logits")}
    for name in ("a_hidden", "a_hidden_negative_alignment", "a_hidden_negative_consistency"):
        out[name] = whole[name][:, at]
    out["a_sequence"] = whole["a_sequence"][:, at]
    out |= {"positions": whole["positions"][at], "msm_positions": whole["msm_positions"][::3]}
    out |= {"a_msm_logits": whole["a_msm_logits"][:, ::3], "a_keep": kept.numpy(), "a_shown": shown.numpy()}
    return out | quantised("a_features", features[kept]) | quantised("a_warped_features", warped[shown])


def stage_2() -> dict[str, np.ndarray]:
    whole, vqgan = vectors("stage2"), released_vqgan()
    seen = raw_features(vqgan, formula_pictures("stage2/0/before", "stage2/0/after"))
    names = ("ids", "hidden", "memory", "logits", "loss_per_pair", "greedy", "greedy_logits", "greedy_eos_raised")
    out = {f"stage2_{name}": whole[name][:1] for name in names}
    out |= {"stage2_positions": whole["positions"], "stage2_sequence_start": whole["sequence_start"][:1, 20:]}
    return out | quantised("stage2_features", seen.flatten(0, 1))


if __name__ == "__main__":
    np.savez_compressed(STORED, **stage_1(), **stage_2())
