"""How well changes are outlined: by a captioner that segments, by the maps of those that do not, by a difference.

python -m tests.benchmarks.outlines <bundle>... [sheet.png]     in a project with a finished run on rendered scenes

A map (``Explanation.change_map``, attention) becomes a mask by Otsu's threshold, where the sentence says that
something changed. The sheet shows 20 test pairs, the types in turn: before, after, what the first bundle outlined.
"""

import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from procap.captioning.captioner import Caption, PictureCaptioner, load_captioner
from procap.datasets.images import overlaid
from procap.datasets.pairs import Pairs
from procap.evaluation.change_words import says_change
from procap.evaluation.segmentation import Outline, difference, otsu, segmentation

DATA = Path("data")
SHOWN, SIDE = 20, 112


def main() -> None:
    named = [Path(name) for name in sys.argv[1:]]
    bundles = [path for path in named if path.suffix != ".png"]
    sheet = next((path for path in named if path.suffix == ".png"), None)
    pairs = Pairs.read(DATA / "prepare").split("test")
    print(row("", {}))
    print(row("difference of the pictures", measured(pairs, list(map(difference, pairs.before(), pairs.after())))))
    first: list[Caption] = []
    for bundle in bundles:
        captioner = load_captioner(bundle)
        segments = getattr(captioner.bundle.captioner, "segments", False)
        ends = zip(pairs.before(), pairs.after(), strict=True)
        said = list(captioner.stream(ends, 64, explain=not segments))
        first = first or said
        for name, masks in drawn(said, segments).items():
            print(row(f"{bundle}: {name}", measured(pairs, masks)))
        if segments:
            print(spent(captioner, pairs))
    if sheet is not None:
        picture(pairs, first).save(sheet, optimize=True)


def drawn(said: Sequence[Caption], segments: bool) -> dict[str, list[np.ndarray | None]]:
    """Masks of all pairs, by what they were made of."""
    if segments:
        return {"mask": [one.change_mask for one in said]}
    maps: dict[str, list[Any]] = {"change map": [], "attention": []}
    for one in said:
        why = one.explanation
        assert why is not None
        maps["change map"].append(why.change_map)
        seen = None if why.attention_before is None else (why.attention_before + why.attention_after).mean(0)
        maps["attention"].append(seen)
    return {
        name: [
            None if values is None or not says_change(one.text) else otsu(values)
            for values, one in zip(each, said, strict=True)
        ]
        for name, each in maps.items()
    }


def measured(pairs: Pairs, masks: Sequence[np.ndarray | None]) -> dict[str, Any]:
    true = pairs.changed(np.arange(len(pairs)))
    known = zip(pairs.table["id"], pairs.table["group"], pairs.table["change_type"], masks, true, strict=True)
    return segmentation([Outline(*one) for one in known], generator=np.random.default_rng(0))


def row(name: str, table: dict[str, Any]) -> str:
    keys = ("segmentability_accuracy", "gIoU", "gIoU_changed", "cIoU", "boundary_F")
    cells = [f"{100 * table[key]:.1f}" if table else key for key in keys]
    kinds = [f"{kind} {100 * of['gIoU']:.1f}" for kind, of in table["per_type"].items()] if table else []
    return " | ".join([f"{name:44}", *cells, ", ".join(kinds)])


def spent(captioner: PictureCaptioner, pairs: Pairs) -> str:
    """Time of a pair, alone and among 64, with pictures that changed and that did not; memory of the process."""
    before, after = pairs.before()[:64], pairs.after()[:64]
    captioner.caption(list(before[:2]), list(after[:2]))
    alone = [seconds(lambda n=n: captioner.caption(before[n], after[n])) for n in range(20)]
    many = seconds(lambda: list(captioner.stream(zip(before, after, strict=True), 64)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"per pair: alone {1e3 * np.median(alone):.1f} ms, of 64 {1e3 * many / 64:.1f} ms; at most {peak:.0f} MB"


def seconds(work: Any) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def picture(pairs: Pairs, said: Sequence[Caption]) -> Any:
    """Two columns of pairs: both pictures, outlines in blue and the true mask's edge in white, and what is said."""
    from PIL import Image, ImageDraw

    kinds = pairs.table["change_type"].to_numpy()
    turns = [np.flatnonzero(kinds == kind) for kind in ("color", "material", "add", "drop", "move")]
    rows = [int(some[n]) for n in range(SHOWN // 5 - 1) for some in turns]
    rows += np.flatnonzero(kinds == "none")[: SHOWN // 4].tolist()
    true = pairs.changed(np.array(rows))
    wide, high = 2 * SIDE + 6, SIDE + 34
    sheet = Image.new("RGB", (4 * wide, -(-len(rows) // 4) * high), "white")
    draw = ImageDraw.Draw(sheet)
    for place, (number, mask) in enumerate(zip(rows, true, strict=True)):
        left, top = place % 4 * wide, place // 4 * high
        for end, pixels in enumerate((pairs.before(np.array([number]))[0], pairs.after(np.array([number]))[0])):
            shown = Image.fromarray(overlaid(pixels, said[number].change_mask, mask if mask.any() else None))
            sheet.paste(shown.resize((SIDE, SIDE), Image.Resampling.LANCZOS), (left + end * (SIDE + 2), top))
        line = said[number].reasoning
        told = f"{line.change}, {line.object or '-'}, {line.where}" if line else ""
        draw.text((left, top + SIDE + 2), told, fill="#22606f")
        draw.text((left, top + SIDE + 16), said[number].text[:42], fill="black")
    return sheet


if __name__ == "__main__":
    main()
