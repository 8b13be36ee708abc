"""Randomness: the same place in the work draws the same, other places draw otherwise."""

import itertools

import numpy as np
import pytest
import torch

from procap.training.randomness import batch_rows, derived_seed, torch_generator


def test_every_place_has_a_seed_of_its_own():
    names = ("pretrain", "caption", "caption procap", "caption static", "tokenizer", "", "a", "aa")
    places = [(seed, name, step) for seed in range(5) for name in names for step in range(50)]
    places += [(seed, name) for seed in range(5) for name in names]
    seeds = [derived_seed(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_do_not_depend_on_the_process():
    assert derived_seed(1, "pretrain", 0) == 2815890884137585040


def test_generators_start_anew():
    first, second, other = (torch.rand(3, generator=torch_generator(1, "a", step)) for step in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("rows", "batch"), [(10, 4), (10, 10), (7, 16), (12, 4)])
def test_an_epoch_has_every_row_once(rows, batch):
    steps = rows * 6 // batch + 1
    drawn = np.concatenate([batch_rows(step, rows, batch, 3) for step in range(steps)])
    epochs = [drawn[start : start + rows] for start in range(0, len(drawn) - rows + 1, rows)]
    assert all(sorted(epoch) == list(range(rows)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1, "each epoch has an order of its own"


def test_a_batch_depends_on_seed_and_step_alone():
    assert np.array_equal(batch_rows(5, 100, 8, 1), batch_rows(5, 100, 8, 1))
    for one, other in itertools.combinations([(5, 1), (6, 1), (5, 2)], 2):
        assert not np.array_equal(batch_rows(one[0], 100, 8, one[1]), batch_rows(other[0], 100, 8, other[1]))
