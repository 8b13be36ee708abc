"""Frozen networks over many batches."""

from threading import Barrier

import pytest
import torch

from procap.training.batches import each_batch

CPU = torch.device("cpu")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_two_threads_work_on_two_batches_at_once_and_results_keep_their_order(two_threads):
    both = Barrier(2, timeout=30)

    def work(number):
        both.wait()  # nobody passes alone
        return number, torch.get_num_threads()

    assert list(each_batch(work, range(6), CPU)) == [(number, 1) for number in range(6)]


def test_the_number_of_threads_is_what_it_was_also_after_an_error(two_threads):
    def work(number):
        raise OSError(f"batch {number}")

    with pytest.raises(OSError, match="batch 0"):
        list(each_batch(work, range(3), CPU))
    assert torch.get_num_threads() == 2


def test_one_thread_and_other_devices_take_a_batch_at_a_time():
    at_work: list[int] = []

    def work(number):
        at_work.append(number)
        return len(at_work)

    taken = each_batch(work, range(3), torch.device("meta"))
    assert [(next(taken), len(at_work)) for _ in range(3)] == [(1, 1), (2, 2), (3, 3)]
