"""Generators that a program makes without a seed begin alike in all runs with one seed."""

import subprocess
import sys

DRAWS = """
import pickle, random, tempfile
import numpy as np, numpy.random
import torch
from dpaudit.recorder import player, ranks

def drawn(number):
    for name in player.SEEDED:
        player.seed(name, number)
    of_numpy = [np.random.default_rng(), np.random.RandomState(), np.random.default_rng()]
    python = random.Random()
    next(tempfile._RandomNameSequence())
    random.seed()
    np.random.seed()
    of_torch = [torch.Generator(), torch.Generator(device="cpu")]
    seeds = [one.seed() for one in of_torch]
    assert seeds == [one.initial_seed() for one in of_torch]
    return [
        *(float(torch.rand(1, generator=one, dtype=torch.float64)) for one in of_torch),
        *(one.standard_normal() for one in of_numpy), python.random(), random.random(),
        np.random.rand(), torch.seed(), float(torch.rand(1)),
    ]

one, again, other = drawn(1), drawn(1), drawn(2)
assert one == again
assert not {*one} & {*other}
assert len({*one}) == len(one)
assert isinstance(torch.default_generator, torch.Generator)
assert isinstance(torch.Generator(), torch.Generator) and not isinstance(3, torch.Generator)
assert torch.Generator().initial_seed() == torch._C.Generator().initial_seed()
for made in (torch.Generator().manual_seed(3), torch._C.Generator().manual_seed(3)):
    assert pickle.loads(pickle.dumps(made)).initial_seed() == 3
assert torch.Generator().manual_seed(3).initial_seed() == 3
assert list(torch.utils.data.RandomSampler(range(3), generator=torch.Generator()))
assert random.Random(3).random() == 0.23796462709189137
ranks.be(1)
assert not {*one} & {*drawn(1)}
ranks.be(0)
names = tempfile._RandomNameSequence(), tempfile._RandomNameSequence()
assert next(names[0]) != next(names[1])
"""


def test_generators_without_a_seed_follow_that_of_the_world() -> None:
    """And differ between seeds, processes and generators: of 64 bits none are equal by chance."""
    subprocess.run([sys.executable, "-c", DRAWS], check=True)
