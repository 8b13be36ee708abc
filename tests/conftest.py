"""For all tests: one thread of torch, which on two cores is several times faster for tiny networks.

``make test`` must stay under ten minutes on two cores, and it runs on as many processes as there are cores, a file at
a time. So a test of more than ten seconds is marked ``slow``: files with such tests begin first. What starts stages
belongs to tests/pipeline or tests/e2e and takes results from ``built`` (see tests/clone.py), which the file that asks
for it most makes at the very beginning; the others come when it is done. Tests of one step call its ``run`` in
tests/unit. What takes more than half a minute belongs to tests/benchmarks. No test asserts wall-clock
times: all waits are minutes, and only a failure uses them up.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples each time, so that a suite seen green stays green; for new ones: pytest --hypothesis-profile default
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, so that no process is left alone with one at the end, or waits for ``built``."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    takers = Counter(item.path for item in items if "built" in getattr(item, "fixturenames", ()))
    maker = max(takers, key=takers.__getitem__, default=None)
    items.sort(key=lambda item: (item.path not in slow, item.path in takers and item.path != maker, item.path != maker))


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """The whole pipeline of the preset smoke, run from nothing by ``dvc repro``; once, whatever asks for it.

    Tests change it, but leave its cache and parameters; ``first_hashes`` has what it gave at first.
    """
    from tests.clone import clone, lock_hashes, once, run

    def make(folder: Path) -> None:
        run(clone(folder), "dvc", "repro")
        folder.with_suffix(".json").write_text(json.dumps(lock_hashes(folder)))

    return once(tmp_path_factory, "built", make)


@pytest.fixture(scope="session")
def first_hashes(built) -> dict[str, str]:
    """{path: md5} of all outputs of ``built``, the registration's aside."""
    return json.loads(built.with_suffix(".json").read_text())
