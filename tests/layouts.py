"""Small corpora in every layout that can be imported, their pictures drawn at random."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from procap.datasets.birds_to_words import FILE as BIRDS

SPLITS = ("train", "val", "test")
PAIRS = 6
"""In every corpus: four to train, one each for the rest."""


def picture(path: Path, seed: int, size: tuple[int, int] = (20, 16), **options: object) -> Path:
    """A file of (width, height) pixels in the format that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return path


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def split_of(number: int) -> str:
    return SPLITS[max(0, number - PAIRS + 3)]


def sentence(number: int) -> str:
    return "nothing has changed" if number % 2 else f"the red cube number {number} is gone"


def rows(folder: Path, splits: bool = True, suffix: str = "jpg") -> list[dict[str, str]]:
    """Rows of a table, whose pictures are drawn; a row per pair."""
    found = []
    for number in range(PAIRS):
        files = {end: f"{end}/{number}.{suffix}" for end in ("before", "after")}
        for seed, file in enumerate(files.values()):
            picture(folder / file, 2 * number + seed)
        found.append({**files, "caption": sentence(number), **({"split": split_of(number)} if splits else {})})
    return found


def csv(found: list[dict[str, str]], separator: str = ",", end: str = "\n") -> str:
    lines = [list(found[0]), *([*row.values()] for row in found)]
    return "".join(separator.join(line) + end for line in lines)


def table(folder: Path) -> Path:
    write(folder / "pairs.csv", csv(rows(folder)))
    return folder


def clevr_change(folder: Path) -> Path:
    names = {number: f"CLEVR_default_{number:06d}.png" for number in range(PAIRS)}
    for number, name in names.items():
        for part, other in (("images", name), ("sc_images", "semantic"), ("nsc_images", "nonsemantic")):
            picture(folder / part / name.replace("default", other.split("_")[1] if "_" in other else other), number)
    write(folder / "change_captions.json", {name: ["the cube turned red", "it is red now"] for name in names.values()})
    write(folder / "no_change_captions.json", {name: ["nothing has changed"] for name in names.values()})
    write(folder / "splits.json", {split: [n for n in names if split_of(n) == split] for split in SPLITS})
    write(folder / "type_mapping.json", {"texture": list(names.values())})
    return folder


def clevr_dc(folder: Path) -> Path:
    for number in range(PAIRS):
        picture(folder / "bef" / f"{number}.png", 2 * number)
        picture(folder / "aft" / f"{number}.png", 2 * number + 1)
    write(folder / "captions.json", {str(number): [sentence(number)] for number in range(PAIRS)})
    write(folder / "split.json", {split: [n for n in range(PAIRS) if split_of(n) == split] for split in SPLITS})
    return folder


def spot_the_diff(folder: Path) -> Path:
    entries: dict[str, list] = {split: [] for split in SPLITS}
    for number in range(PAIRS):
        for seed, end in enumerate(("", "_2")):
            picture(folder / "resized_images" / f"{number}{end}.png", 2 * number + seed)
        for said in ([sentence(number), ""], [f"a man {number} walks", "1", "none", sentence(number).upper()]):
            entries[split_of(number)].append({"img_id": str(number), "sentences": said})
    entries["train"].append({"img_id": "99", "sentences": ["", "car"]})
    for split, content in entries.items():
        write(folder / "annotations" / f"{split}.json", content)
    return folder


def image_editing_request(folder: Path) -> Path:
    entries: dict[str, list] = {split: [] for split in SPLITS}
    for number in range(PAIRS):
        files = {f"img{end}": f"a.com_{number}_{end}.jpg" for end in (0, 1)}
        for seed, file in enumerate(files.values()):
            picture(folder / "images" / file, 2 * number + seed)
        entries[split_of(number)].append({"uid": f"u{number}", **files, "sents": ["brighten ", "make it bright"]})
    for split, content in entries.items():
        write(folder / f"{split.replace('val', 'valid')}.json", content)
    return folder


def birds_to_words(folder: Path) -> Path:
    columns = (
        "img1ObservationURL", "img1ImgURL", "img1Species", "img1Selection", "img2ObservationURL", "img2ImgURL",
        "img2Species", "img2Selection", "split", "annN", "description",
    )  # fmt: skip
    lines = ["\t".join(columns)]
    for number in range(PAIRS):
        ends = [100 + 2 * number + end for end in (0, 1)]
        for end in ends:
            picture(folder / "images" / f"{end}.{'jpg' if end % 3 else 'png'}", end)
        one, two = (f"https://example.org/photos/{end}/large.jpg?1" for end in ends)
        for person in (1, 2):
            said = f'Animal {person} has a "white" breast, animal two has none.'
            cells = ["x", one, "a", "base", "x", two, "b", "visual", split_of(number), str(person), said]
            lines.append("\t".join(cells))
    write(folder / BIRDS, "\n".join(lines) + "\n")
    return folder


def _levir(folder: Path, parts: Mapping[str, int]) -> Path:
    entries = []
    for number in range(PAIRS):
        split = split_of(number)
        file = f"{split}_{number:06d}.png"
        for part, seed in parts.items():
            picture(folder / "images" / split / part / file, 2 * number + seed)
        said = [{"raw": f" {sentence(number)} .", "tokens": []}] * 5
        flags = {"split": split, "changeflag": 1 - number % 2}
        entries.append({"filename": file, "filepath": split, **flags, "sentences": said})
    write(folder / "LevirCCcaptions.json", {"dataset": "LEVIR", "images": entries})
    return folder


def levir_cc(folder: Path) -> Path:
    return _levir(folder, {"A": 0, "B": 1})


def levir_mci(folder: Path) -> Path:
    _levir(folder, {"A": 0, "B": 1})
    for number in range(PAIRS):
        mask = np.zeros((16, 20), np.uint8)
        if number % 2 == 0:
            mask[2:8, 2:10], mask[8:14, 2:10] = 128, 255
        split = split_of(number)
        path = folder / "images" / split / "label" / f"{split}_{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(path)
    return folder


LAYOUTS: Mapping[str, Callable[[Path], Path]] = {
    each.__name__: each
    for each in (
        clevr_change, clevr_dc, spot_the_diff, image_editing_request, birds_to_words, levir_cc, levir_mci, table,
    )
}  # fmt: skip
