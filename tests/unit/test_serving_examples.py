"""The page's examples are scenes that the default model has not seen, as they are drawn today."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flows.serving.examples import FOLDER, SIDE, TITLES, chosen, pictured, settings
from procap.datasets.rendered import render_scene

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return json.loads((FOLDER / "examples.json").read_text())


def test_they_are_test_scenes_of_each_kind(rows):
    assert {row["kind"]: row["scene"] for row in rows} == chosen(settings(ROOT))
    assert [row["kind"] for row in rows] == list(TITLES)


def test_they_are_drawn_as_committed(rows):
    row = rows[-1]
    before, after, caption = pictured(render_scene(settings(ROOT), row["scene"]), row["kind"])
    assert caption == row["caption"]
    for end, drawn in (("before", before), ("after", after)):
        kept = np.array(Image.open(FOLDER / row[end]).convert("RGB"))
        assert kept.shape == (SIDE, SIDE, 3)
        np.testing.assert_array_equal(kept, drawn)


def test_they_are_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000
