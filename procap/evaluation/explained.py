"""A pair with what its captioner said, imagined and looked at, as part of an HTML page."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from procap.captioners.explanation import Explanation
from procap.evaluation.embedded import picture

SIDE = 48
"""Longest side of a map inside a page, in pixels; the browser enlarges it smoothly."""
LEVELS = 32
LOOKS, CHANGES = ((255, 196, 0), (214, 40, 10)), ((150, 90, 255), (120, 0, 170))
"""Colours of low and of high values: where the decoder looks, what speaks for a change."""


def heat(values: Float[np.ndarray, "h w"], colours: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    """A map in [0, 1] as the address of a small image, the more transparent the lower."""
    from PIL import Image

    levels = Image.fromarray(np.rint(values.clip(0, 1) * (LEVELS - 1)).astype(np.uint8))
    if max(levels.size) > SIDE:
        levels.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    ramp = np.linspace(*np.array(colours, np.float64), LEVELS)  # type: ignore[call-overload]
    levels.putpalette(np.rint(ramp).astype(np.uint8).tobytes())
    out = io.BytesIO()
    alpha = np.rint(np.linspace(0, 1, LEVELS) ** 1.2 * 225).astype(np.uint8).tobytes()
    levels.save(out, "PNG", transparency=alpha, bits=8, optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def explained(
    before: UInt8[np.ndarray, "h w 3"],
    after: UInt8[np.ndarray, "h w 3"],
    words: Sequence[str],
    chances: Sequence[float],
    why: Explanation | None,
) -> dict[str, Any]:
    """What the macros of ``explained_template`` show: pictures, words with their ``chances``, and maps where known."""
    between = [] if why is None else list(why.frames[1:-1])
    names = ["before", *(f"imagined {number}" for number in range(1, len(between) + 1)), "after"]
    frames: list[dict[str, Any]] = [
        {"name": name, "src": picture(pixels), "looks": [], "shares": [], "real": name in ("before", "after")}
        for name, pixels in zip(names, [before, *between, after], strict=True)
    ]
    if why is not None and why.attention_before is not None and why.attention_after is not None:
        for frame, maps in ((frames[0], why.attention_before), (frames[-1], why.attention_after)):
            frame["looks"] = [heat(one, LOOKS) for one in maps]
    if why is not None and why.attention_frames is not None:
        for number, frame in enumerate(frames):
            frame["shares"] = [f"{100 * share:.0f} %" for share in why.attention_frames[:, number]]
    return {
        "frames": frames,
        "looks": bool(frames[0]["looks"]),
        "changes": None if why is None or why.change_map is None else heat(why.change_map, CHANGES),
        "drafts": [] if why is None else [
            {"text": one.text or "(no words)", "chance": f"{100 * one.probability:.0f} %"} for one in why.drafts
        ],
        "words": [
            {"text": word, "chance": f"{100 * chance:.0f} %", "width": f"{100 * chance:.0f}"}
            for word, chance in zip(words, chances or [1.0] * len(words), strict=True)
        ],
        "known": bool(chances),
        "aspect": f"{before.shape[1]} / {before.shape[0]}",
    }
