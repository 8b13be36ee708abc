"""Released confidence scores: ``{clevr,spot,edit}_similarity_scores.json`` of the reference implementation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from procap.errors import BadInput

Kind = Literal["visual_text", "visual"]

KEYS = {
    "visual_text": ("bef_inter_sim", "inter_aft_sim"),
    "visual": ("bef_inter_dino_score", "inter_aft_dino_score"),
}
"""Of before and of after: a row per caption, or one row of visual scores."""

FORM = (
    "{id of a pair: {bef_inter_sim: [[a number per frame], ...a row per caption], inter_aft_sim: likewise}}, for "
    "CLEVR-Change {'000123.png': {sc_sim_matrixes: {...}, nsc_sim_matrixes: {...}}}; visual scores are called "
    "bef_inter_dino_score and inter_aft_dino_score"
)


def read_released_scores(
    path: Path, ids: Sequence[str], kind: Kind, frames: int
) -> tuple[Float[np.ndarray, "b t"], Float[np.ndarray, "b t"]]:
    """Similarity of every frame to before and to after, for these pairs; rows of several captions are averaged.

    ``frames`` counts both pictures. Raises BadInput that names file and pair.
    """
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _complaint(path, f"the scores cannot be read ({error})") from None
    if not isinstance(scores, dict):
        raise _complaint(path, f"a {type(scores).__name__} at the top")
    rows = [[_row(scores, name, key, frames, path) for key in KEYS[kind]] for name in ids]
    both = np.array(rows, np.float32).reshape(-1, 2, frames)
    return both[:, 0], both[:, 1]


def _row(scores: dict[str, Any], name: str, key: str, frames: int, path: Path) -> Float[np.ndarray, " t"]:
    entry = scores.get(name)
    if entry is None:  # CLEVR-Change: 000123c and 000123nc share one entry
        scene, part = (name[:-2], "nsc") if name.endswith("nc") else (name[:-1], "sc")
        both = scores.get(f"{scene}.png")
        entry = both.get(f"{part}_sim_matrixes") if isinstance(both, dict) else None
    if not isinstance(entry, dict):
        raise _complaint(path, f"pair '{name}' has no scores")
    try:
        values = np.atleast_2d(np.array(entry[key], np.float64))
    except KeyError:
        raise _complaint(path, f"pair '{name}' has no '{key}', only {sorted(entry)}") from None
    except (TypeError, ValueError):
        raise _complaint(path, f"pair '{name}': '{key}' is no table of numbers") from None
    if values.ndim != 2 or values.shape[1] != frames or not len(values) or not np.isfinite(values).all():
        raise _complaint(
            path, f"pair '{name}': '{key}' has the shape {values.shape}, not finite rows of {frames} frames"
        )
    return values.mean(axis=0)


def _complaint(path: Path, what: str) -> BadInput:
    return BadInput(
        what,
        where=f"{path} (sample.scores)",
        expected=FORM,
        do="take the file that belongs to this corpus and to interpolate.frames, or set sample.scores: null",
    )
