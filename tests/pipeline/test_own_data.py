"""Two folders of JPEGs and a CSV become a trained model with the three commands of the README.

The last one stops at ``interpolate`` here, and the steps up to a captioner run in this process: what DVC does from
there on is the same for every corpus (``test_smoke``).
"""

import subprocess
import sys
from importlib import import_module

import pytest

from procap.config import load_params
from procap.steps import STEPS, caption
from tests import layouts
from tests.clone import clone, environment, ran, read_json, run

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
    assert ran(run(folder, "procap", "repro", "interpolate")) == ["prepare", "validate", "interpolate"]
    params = load_params(folder / "params.yaml")
    for step in STEPS[STEPS.index("sample") : STEPS.index("caption")]:
        import_module(f"procap.steps.{step}").run(params, folder / "data")
    caption.run(params, folder / "data", captioner="static")

    assert read_json(folder / "data" / "prepare" / "summary.json")["pairs"]["train"]["all"] == 16
    ends = [str(own / end / "0.jpg") for end in ("before", "after")]
    assert run(folder, "procap", "caption", *ends, "--model", "data/caption/static/bundle").strip()
    known = subprocess.run(
        ["git", "status", "--short", "data/raw"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    assert "table.dvc" in known
    assert "table/" not in known, "git leaves the pictures to DVC"


def test_an_import_is_tracked_copied_or_linked_and_keeps_the_comments_of_params(tmp_path):
    own, folder = layouts.table(tmp_path / "own"), clone(tmp_path / "clone", preset=None)
    before = (folder / "params.yaml").read_text().splitlines()
    tracked, cache = folder / "data" / "raw" / "table.dvc", folder / ".dvc" / "cache" / "files"
    run(folder, "procap", "import", "table", str(own), "--link")
    assert "cache: false" in tracked.read_text()
    run(folder, "dvc", "commit", "-f", "data/raw/table.dvc")
    assert not list(cache.rglob("??/*")), "DVC has no copy of linked pictures"
    digest = tracked.read_text().split("md5: ")[1].split()[0]
    run(folder, "procap", "import", "table", str(own))
    assert "cache: false" not in tracked.read_text()
    assert digest in tracked.read_text(), "the same corpus"
    assert len([path for path in cache.rglob("??/*") if path.is_file()]) == 2 * layouts.PAIRS + 3
    after = (folder / "params.yaml").read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [new.split("#")[0].strip() for _, new in changed] == ["name: table"]
    assert [old.split("#")[1] for old, _ in changed] == [new.split("#")[1] for _, new in changed]
    (own / "after" / "0.jpg").write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "import", "table", str(own)],
        cwd=folder, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "0.jpg" in done.stderr
    assert "Traceback" not in done.stderr
    assert digest in tracked.read_text()
