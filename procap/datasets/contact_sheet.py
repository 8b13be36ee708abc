"""Scenes to look at: a row each, from before over the true procedure to the pictures after."""

from typing import Any

import numpy as np

from procap.datasets.images import outlined
from procap.datasets.rendered import SHIFT_START, CorpusSettings, RenderedScene, render_scene

LINE = 14
"""Pixels of a line of text."""
GAP = 2


def contact_sheet(settings: CorpusSettings, count: int) -> Any:
    """A PIL image of the first ``count`` scenes, and of as many of the split test_shift where there are any.

    A row is: before, every frame of ``settings.truth``, changed, distractor; what changed is outlined in white, in
    before and in changed separately. Above it stand number, change type and the first caption.
    """
    from PIL import Image, ImageDraw

    numbers = [*range(count), *range(SHIFT_START, SHIFT_START + min(count, settings.shift_count))]
    rows = [(scene, _pictures(scene)) for scene in (render_scene(settings, number) for number in numbers)]
    width, height = rows[0][1][0].size
    size = len(rows[0][1]) * (width + GAP) - GAP, len(rows) * (height + LINE + GAP)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for row, (scene, pictures) in enumerate(rows):
        top = row * (height + LINE + GAP)
        text = f"{scene.group} {scene.split}, {scene.story.change_type}: {scene.story.captions[0]}"
        draw.text((GAP, top), text, fill="black")
        for column, picture in enumerate(pictures):
            sheet.paste(picture, (column * (width + GAP), top + LINE))
    return sheet


def _pictures(scene: RenderedScene) -> list[Any]:
    from PIL import Image

    before, after = (
        outlined(Image.fromarray(picture), mask.astype(np.uint8) * 255)
        for picture, mask in zip((scene.before, scene.changed), scene.masks, strict=True)
    )
    return [before, *map(Image.fromarray, scene.truth[0]), after, Image.fromarray(scene.distractor)]
