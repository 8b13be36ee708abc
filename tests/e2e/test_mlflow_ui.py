"""What a user sees in the browser: the runs of the captioners side by side. Needs Playwright and a Chromium."""

import os
import shutil
from pathlib import Path

import pytest

from tests.clone import ROOT
from tests.e2e.services import free_port

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.skipif(not (ROOT / "mlflow.db").exists(), reason="nothing was run here; `dvc repro` first")
def test_both_captioners_stand_side_by_side(tmp_path, monkeypatch):
    """Compares the newest evaluation of each captioner in this workspace; the screenshot is $PROCAP_SCREENSHOT."""
    from flows.servers import mlflow_server, running
    from flows.store import connect

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = connect(ROOT)
    experiments = [e.experiment_id for e in client.search_experiments(filter_string="name LIKE 'procap/%'")]
    newest = {}
    for name in ("evaluate@static", "evaluate@procap"):
        query = f"attributes.run_name = '{name}' and attributes.status = 'FINISHED'"
        runs = client.search_runs(experiments, query, max_results=1)
        if not runs:
            pytest.skip(f"no finished run of {name} here")
        newest[name] = runs[0].info
    server = mlflow_server(ROOT, free_port())
    ids = "[" + ",".join(f'"{run.run_id}"' for run in newest.values()) + "]"
    where = "[" + ",".join(sorted({f'"{run.experiment_id}"' for run in newest.values()})) + "]"
    with running([server], tmp_path / "logs"), playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1500, "height": 1400})
        page.goto(f"{server.address}/#/compare-runs?runs={ids}&experiments={where}")
        for name in newest:
            page.get_by_text(name).first.wait_for(timeout=60_000)
        page.get_by_text("change_accuracy").first.wait_for(timeout=60_000)
        picture = Path(os.environ.get("PROCAP_SCREENSHOT", tmp_path / "side-by-side.png"))
        page.screenshot(path=str(picture), full_page=True)
        browser.close()
    assert picture.stat().st_size > 20_000
