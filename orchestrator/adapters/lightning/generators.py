"""Generators of random numbers, from which code draws that names none."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy
import torch


def keep() -> Callable[[], None]:
    """Returns a function that puts every generator of this process back to where it is now."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    of_torch = (torch.default_generator, *(torch.cuda.default_generators if started else ()))
    states = [(generator, generator.get_state()) for generator in of_torch]
    of_python, of_numpy = random.getstate(), numpy.random.get_state()

    def put_back() -> None:
        for generator, state in states:
            generator.set_state(state)
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)

    return put_back
