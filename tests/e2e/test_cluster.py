"""Shards of a table on a cluster of two processes, as a flow: the captions are those of one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.clone import ROOT, environment
from tests.small import shaken, small_captioner
from tests.unit.test_captioning import VOCABULARY, photograph, write

pytestmark = pytest.mark.e2e

CALL = """
import sys
from flows.batch import batch_caption
if __name__ == "__main__":
    pairs, out, model, engine, workers = sys.argv[1:]
    batch_caption(pairs=pairs, out=out, model=model, shard=2, engine=engine, workers=int(workers), device="cpu")
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("untrained") / "bundle"
    write(folder, shaken(small_captioner("procap", vocabulary=len(VOCABULARY), words=9), 0.3), "procap")
    return folder


@pytest.fixture
def table(tmp_path) -> Path:
    lines = ["before,after"]
    for number in range(7):
        Image.fromarray(photograph(number)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{(number + 1) % 7}.png")
    (tmp_path / "pairs.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "pairs.csv"


def captions(table: Path, bundle: Path, engine: str, workers: int) -> tuple[str, str]:
    """(captions.jsonl, what was printed)."""
    out = table.parent / engine
    script = table.parent / "call.py"
    script.write_text(CALL)
    more = {
        "PREFECT_HOME": str(table.parent / "prefect"), "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "900",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script), str(table), str(out), str(bundle), engine, str(workers)],
        cwd=table.parent, env=environment(more), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return (out / "captions.jsonl").read_text(), done.stdout + done.stderr


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_two_processes_of_a_cluster_say_what_one_process_says(table, bundle, engine):
    pytest.importorskip(f"prefect_{engine}", reason=f"needs the extra procap[{engine}]")
    spread, told = captions(table, bundle, engine, 2)
    assert engine in told.lower()
    alone, _ = captions(table, bundle, "local", 1)
    assert spread == alone
    lines = [json.loads(line) for line in spread.splitlines()]
    assert [line["row"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert all(line["caption"] for line in lines)
