"""How well changes are outlined: segmentability accuracy, gIoU, cIoU and boundary F, per change type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from procap.evaluation.bootstrap import interval
from procap.evaluation.scores import TYPES, rounded

NEAR = 2.0
"""Pixels between two boundaries that count as one."""

OUTLINES = ("IoU", "boundary-F")
"""Of a pair, x100 like the caption metrics."""

Mask = Bool[np.ndarray, "h w"]


@dataclass(frozen=True)
class Outline:
    """What was outlined in one pair, beside the truth."""

    id: str
    group: str
    actual: str
    """The true change type."""
    drawn: Mask | None
    """None: it was said that there is nothing to outline."""
    true: Mask

    @property
    def segmentable(self) -> bool:
        return bool(self.true.any())

    @property
    def decided(self) -> bool:
        """Whether it is right about there being something to outline."""
        return (self.drawn is not None) is self.segmentable

    @property
    def shown(self) -> Mask:
        return np.zeros_like(self.true) if self.drawn is None else self.drawn


def iou(drawn: Mask, true: Mask) -> float:
    """Intersection over union; 1 where both are empty."""
    union = (drawn | true).sum()
    return float((drawn & true).sum() / union) if union else 1.0


def boundary_f(drawn: Mask, true: Mask) -> float:
    """F of the boundaries' pixels that lie within NEAR of the other boundary; 1 where both masks are empty.

    A boundary is the pixels of a mask that touch what is outside it (the picture's edge is no boundary).
    """
    from scipy.ndimage import distance_transform_edt
    from skimage.segmentation import find_boundaries

    if not drawn.any() or not true.any():
        return float(drawn.any() == true.any())
    edges = [find_boundaries(mask, mode="inner") for mask in (drawn, true)]
    if not edges[0].any() or not edges[1].any():
        return float(edges[0].any() == edges[1].any())
    precision, recall = (
        float((distance_transform_edt(~other)[edge] <= NEAR).mean()) for edge, other in (edges, edges[::-1])
    )
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def pair_scores(outlines: Sequence[Outline]) -> dict[str, dict[str, float]]:
    """metric of OUTLINES -> pair -> score."""
    measures = zip(OUTLINES, (iou, boundary_f), strict=True)
    return {name: {one.id: 100 * of(one.shown, one.true) for one in outlines} for name, of in measures}


def segmentation(outlines: Sequence[Outline], *, generator: np.random.Generator) -> dict[str, Any]:
    """What ``metrics.json`` holds of outlines; all shares in [0, 1].

    segmentability_accuracy   share of the pairs in which it is right about there being something to outline
    gIoU                      mean of the pairs' IoU; nothing drawn where nothing is counts 1
    gIoU_changed              the same of the pairs that show a change
    cIoU                      pixels in both over pixels in either, of all pairs together
    boundary_F                mean over the pairs that show a change, at NEAR pixels
    ..._interval              95 % bootstrap bounds, pairs that share a picture drawn together
    per_type                  the same of each change type
    """
    table = {**_means(outlines), **_intervals(outlines, generator)}
    kinds = {kind: [one for one in outlines if one.actual == kind] for kind in TYPES}
    return rounded({**table, "per_type": {kind: _means(some) for kind, some in kinds.items() if some}})


def _means(outlines: Sequence[Outline]) -> dict[str, Any]:
    changed = [one for one in outlines if one.segmentable]
    both = sum(int((one.shown & one.true).sum()) for one in outlines)
    either = sum(int((one.shown | one.true).sum()) for one in outlines)
    means: dict[str, Any] = {
        "pairs": len(outlines),
        "segmentability_accuracy": float(np.mean([one.decided for one in outlines])),
        "gIoU": float(np.mean([iou(one.shown, one.true) for one in outlines])),
        "cIoU": both / either if either else 1.0,
    }
    if changed:
        means["gIoU_changed"] = float(np.mean([iou(one.shown, one.true) for one in changed]))
        means["boundary_F"] = float(np.mean([boundary_f(one.shown, one.true) for one in changed]))
    return means


_BOUNDED: Mapping[str, Callable[[Outline], float]] = {
    "segmentability_accuracy": lambda one: float(one.decided),
    "gIoU": lambda one: iou(one.shown, one.true),
}


def _intervals(outlines: Sequence[Outline], generator: np.random.Generator) -> dict[str, list[float]]:
    changed = [one for one in outlines if one.segmentable]
    chosen = [(f"{name}_interval", of, outlines) for name, of in _BOUNDED.items()]
    chosen += [("gIoU_changed_interval", _BOUNDED["gIoU"], changed)] if changed else []
    bounds = {}
    for name, of, some in chosen:
        clusters = np.unique([one.group for one in some], return_inverse=True)[1]
        values = np.array([of(one) for one in some])
        bounds[name] = list(interval(values, generator=generator, clusters=clusters))
    return bounds


def otsu(values: Float[np.ndarray, "h w"]) -> Mask:
    """Where values are above the threshold that splits them best (Otsu, 1979); nowhere where all are alike."""
    from skimage.filters import threshold_otsu

    return values > threshold_otsu(values) if np.ptp(values) else np.zeros(values.shape, bool)


def difference(before: UInt8[np.ndarray, "h w 3"], after: UInt8[np.ndarray, "h w 3"]) -> Mask:
    """The baseline: the difference of two pictures, thresholded."""
    return otsu(np.abs(before.astype(np.float64) - after).mean(-1))
