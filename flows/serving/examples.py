"""The pairs that the page offers: rendered scenes of the default test split, drawn larger than models see them.

``python -m flows.serving.examples`` draws them again, from params.yaml.
"""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from procap.datasets.pairs import NO_CHANGE
from procap.datasets.rendered import CorpusSettings, RenderedScene, render_scene, split_of
from procap.datasets.scenes.change import CHANGES, kind_of
from procap.files import atomic_folder, write_json

FOLDER = Path(__file__).parent / "page" / "examples"
SIDE = 288
"""Pixels."""

TITLES = {
    "color": "a colour",
    "material": "a material",
    "add": "something new",
    "drop": "something gone",
    "move": "a move",
    NO_CHANGE: "nothing but light",
}


def draw(settings: CorpusSettings, folder: Path) -> None:
    """Write ``examples.json`` and its pictures: the first test scene of each kind of change, and one without any."""
    from PIL import Image

    with atomic_folder(folder) as fresh:
        rows = []
        for kind, number in chosen(settings).items():
            scene = render_scene(settings, number)
            before, after, caption = pictured(scene, kind)
            names = {end: f"{kind}-{end}.png" for end in ("before", "after")}
            for end, picture in (("before", before), ("after", after)):
                Image.fromarray(picture).save(fresh / names[end], optimize=True)
            rows.append({"scene": number, "kind": kind, "title": TITLES[kind], "caption": caption, **names})
        write_json(fresh / "examples.json", rows)


def chosen(settings: CorpusSettings) -> dict[str, int]:
    """Kinds and the scenes that show them."""
    found: dict[str, int] = {}
    numbers = count()
    while len(found) < len(TITLES):
        number = next(numbers)
        kind = kind_of(settings.seed, number)
        if split_of(number, kind, settings.splits) == "test":
            found.setdefault(kind if kind not in found else NO_CHANGE, number)
    return {kind: found[kind] for kind in TITLES}


def pictured(scene: RenderedScene, kind: str) -> tuple[Any, Any, str]:
    """Before, after, and a sentence that says what was drawn."""
    if kind == NO_CHANGE:
        return scene.before, scene.distractor, scene.story.no_change_captions[0]
    return scene.before, scene.changed, scene.story.captions[0]


def settings(root: Path) -> CorpusSettings:
    """The default corpus, drawn larger."""
    from procap.config import load_params
    from procap.steps.prepare import corpus_settings

    return replace(corpus_settings(load_params(root / "params.yaml")), size=SIDE, samples=3)


if __name__ == "__main__":
    assert set(TITLES) == {*CHANGES, NO_CHANGE}
    draw(settings(Path.cwd()), FOLDER)
