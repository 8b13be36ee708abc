"""For all tests: one thread of torch, which on two cores is several times faster for tiny networks."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)
