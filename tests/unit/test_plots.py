"""The pictures of `dvc plots`: each plot of dvc.yaml has a template, and the template finds its columns in the file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.lineage import read_yaml
from procap.evaluation import java
from procap.evaluation.scores import Told, score_all, summary, type_rows
from procap.training.history import write_history

ROOT = Path(__file__).parents[2]
CONFUSION = "actual,predicted"


def named(tree: Any, keys: tuple[str, ...]) -> set[str]:
    """All words under these keys, at any depth."""
    if isinstance(tree, list):
        return {name for value in tree for name in named(value, keys)}
    if not isinstance(tree, dict):
        return set()
    own = {name for key in keys for name in ([tree[key]] if isinstance(tree.get(key), str) else tree.get(key, []))}
    return {name for name in own if isinstance(name, str)} | {n for value in tree.values() for n in named(value, keys)}


@pytest.fixture
def columns(tmp_path, monkeypatch):
    """File name -> columns, as the steps write them; ``rev`` is DVC's."""
    monkeypatch.setattr(java, "why_no_java", lambda: "there is no java in this test")
    told = [Told(kind, kind, kind, "a cube appeared", 0.5, (f"a cube {kind}",)) for kind in ("add", "none")]
    table = summary(told, score_all(told), generator=np.random.default_rng(0))
    write_history(tmp_path / "history.csv", [{"step": 1, "split": "val", "loss": 0.5}])
    heads = {"per_type.csv": type_rows(table)[0], "confusion.csv": CONFUSION.split(",")}
    heads["history.csv"] = (tmp_path / "history.csv").read_text().splitlines()[0].split(",")
    return {name: {*head, "rev"} for name, head in heads.items()}


def test_every_plot_has_a_template_whose_columns_the_file_has(columns):
    stages = read_yaml(ROOT / "dvc.yaml")["stages"].values()
    plots = [(path, how) for stage in stages for one in stage.get("plots", ()) for path, how in one.items()]
    assert {Path(path).name for path, _ in plots} == set(columns)
    for path, how in plots:
        template = json.loads((ROOT / ".dvc" / "plots" / f"{how['template']}.json").read_text(encoding="utf-8"))
        has = columns[Path(path).name] | named(template, ("as",))
        wanted = named(template, ("field", "groupby"))
        assert "rev" in wanted, "without it two commits cannot be told apart"
        assert wanted <= has, (path, wanted - has)
        if "history" in path:  # DVC would count the rows and call them step
            assert (how["x"], how["y"]) == ("step", "value")
