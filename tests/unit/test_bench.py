"""``make bench`` runs through, at a size where nothing it prints means anything."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as bench
from tests.benchmarks import cases, measure, show
from tests.steps import preset

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def tiny(monkeypatch):
    def small(name: str) -> dict:
        raw = preset(name)
        raw["tokenizer"] |= {"channels": 32, "multipliers": [1, 1, 1, 1, 1], "blocks": 1, "codes": 8, "code_width": 8}
        raw["pretrain"] |= {"width": 24, "heads": 2}
        raw["caption"] |= {"decoder_width": 16, "decoder_heads": 2}
        return raw

    monkeypatch.setattr(cases, "preset", small)
    monkeypatch.setattr(bench, "Sizes", partial(cases.Sizes, layers=2, grid=2))
    monkeypatch.setattr(bench, "drawing", partial(bench.drawing, batch=2, draws=1))
    monkeypatch.setattr(measure, "SQUARE", 64)
    monkeypatch.setattr(measure, "copy_rate", lambda: 1e9)


def test_all_phases_are_in_the_table(tiny, tmp_path, capsys):
    bench.main(["--only", "phases", "--rounds", "1", "--threads", "1", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert set(bench.TARGETS) < {line.split(" | ")[0].strip("| ") for line in printed.splitlines()}
    found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    for row in found["phases"]:
        assert row["operations"] > 0
        for precision in bench.DTYPES:
            rate = row["operations"] / row[precision]["seconds"]
            assert row[f"{precision} share"] == pytest.approx(rate / found["rates"][precision])
    assert (tmp_path / "bench.md").read_text(encoding="utf-8") == printed.removesuffix("\n")
    assert (tmp_path / "bench.png").stat().st_size > 1000


def test_memory_and_scaling_are_told(tiny, monkeypatch):
    monkeypatch.setattr(bench, "drawing", lambda pairs: measure.Taken(0.001, 0.001))
    found = {"machine": measure.machine(), "rates": bench.rates(), "scaling": bench.scaling()}
    found["memory"] = [{"precision": "float32", "checkpointing": "yes", "batch": 2, **bench.peak("float32", 2, True)}]
    text = show.table(found)
    peak = f"peak {found['memory'][0]['gib']:.1f} GiB"  # of this process, whatever ran in it before
    assert all(name in text for name in ("batch, CPU time: 2:", "frames", "layers", "tokens per frame", peak))


def test_ways_of_a_phase_do_the_same_work(tiny):
    """Else a ratio says nothing."""
    case = cases.Case(bench.Sizes(batch=3))
    plain = bench.runtime("float32")
    assert case.naive_decode()() == case.decode(plain)()
    assert case.naive_caption()() == case.caption(plain)()


def test_the_memory_of_the_process_that_starts_another_does_not_count():
    held = b"x" * 2**30
    code = "from tests.benchmarks.measure import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert 0.05 < float(done.stdout) < 0.8 < measure.peak_memory()
    del held
