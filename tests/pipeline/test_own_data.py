"""Two folders of JPEGs and a CSV become a trained model with the three commands of the README.

The last one stops at a captioner here: what follows is the same for every corpus (``test_smoke``).
"""

import subprocess

import pytest

from tests import layouts
from tests.clone import clone, read_json, run

pytestmark = pytest.mark.slow

PAIRS = 20


def test_own_pairs_become_a_model_with_three_commands(tmp_path):
    own, folder = tmp_path / "own", clone(tmp_path / "clone", preset=None)
    rows = []
    for number in range(PAIRS):
        files = {end: f"{end}/{number}.jpg" for end in ("before", "after")}
        for seed, file in enumerate(files.values()):
            layouts.picture(own / file, 2 * number + seed, (60, 40))
        rows.append({**files, "caption": layouts.sentence(number)})
    layouts.write(own / "pairs.csv", layouts.csv(rows))

    said = run(folder, "procap", "import", "table", str(own))
    assert "16 train, 2 val, 2 test" in said
    run(folder, "procap", "preset", "smoke")
    run(folder, "procap", "repro", "caption@static")

    assert read_json(folder / "data" / "prepare" / "summary.json")["pairs"]["train"]["all"] == 16
    ends = [str(own / end / "0.jpg") for end in ("before", "after")]
    assert run(folder, "procap", "caption", *ends, "--bundle", "data/caption/static/bundle").strip()
    known = subprocess.run(
        ["git", "status", "--short", "data/raw"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    assert "table.dvc" in known
    assert "table/" not in known, "git leaves the pictures to DVC"
