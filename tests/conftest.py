"""For all tests: one thread of torch, which on two cores is several times faster for tiny networks."""

import pytest
from hypothesis import settings

# The same examples each time, so that a suite seen green stays green; for new ones: pytest --hypothesis-profile default
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)
