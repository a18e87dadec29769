import datetime
import os
import random
import secrets
import time
from datetime import datetime as imported
from os import urandom
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from dpzero_theory.audit.sources import known_entropy, noted_seeds, stopped_clocks


def readings() -> list[object]:
    return [
        time.time(),
        time.monotonic_ns(),
        perf_counter_ns(),
        os.getpid(),
        datetime.datetime.now(),
        imported.now(datetime.UTC),
    ]


def test_clocks_stand_still_wherever_they_are_imported_to() -> None:
    with stopped_clocks():
        first, process = readings(), os.getpid()
        second = readings()
    assert first == second
    assert readings()[:3] != first[:3]
    assert os.getpid() != process
    assert imported is datetime.datetime
    assert type(imported.now()) is datetime.datetime


def test_random_bytes_are_known_and_counted() -> None:
    draws = []
    for _ in range(2):
        with known_entropy() as entropy:
            draws.append((os.urandom(4), urandom(2), secrets.randbits(64), np.random.default_rng().normal()))
        assert entropy.taken >= 4 + 2 + 8 + 16
    assert draws[0] == draws[1]


def test_a_stream_begins_again_and_others_are_others() -> None:
    with known_entropy() as entropy:
        found = []
        for number in (1, 2, 1):
            entropy.start(number)
            found.append(os.urandom(8) + secrets.token_bytes(4))
    assert found[0] == found[2] != found[1]
    assert os.urandom(16) != os.urandom(16)


def test_the_bytes_of_one_place_can_be_others() -> None:
    def draw() -> list[bytes]:
        return [os.urandom(8), secrets.token_bytes(4)]

    with known_entropy() as entropy:
        found = []
        for which in range(3):
            entropy.start(1, list(entropy.places)[:1] if which else (), which)
            found.append(draw())
    first, second = zip(*found, strict=True)
    assert len(set(first)) == 3
    assert len(set(second)) == 1


def test_the_bytes_do_not_depend_on_the_folder_of_the_code() -> None:
    drawn = []
    for folder in ("/here", "/somewhere/else"):
        code = compile("import os\ndrawn = os.urandom(8)", f"{folder}/loop.py", "exec")
        names: dict[str, Any] = {"__name__": "loop"}
        with known_entropy() as entropy:
            entropy.start(1)
            exec(code, names)
        drawn.append(names["drawn"])
    assert drawn[0] == drawn[1]


def test_seeds_are_noted_and_generators_are_what_they_were() -> None:
    def draws() -> list[float]:
        generators = np.random.default_rng(3), np.random.RandomState(4), random.Random(5)
        one = torch.Generator().manual_seed(6)
        return [float(each.random()) for each in generators] + [float(torch.rand(1, generator=one))]

    kinds = np.random.default_rng, np.random.RandomState, random.Random, torch.Generator
    with noted_seeds() as noted:
        seen = draws()
        np.random.default_rng()
        np.random.default_rng([1, 2])
    assert noted.noted == [3, 4, 5, 6]
    assert seen == draws()
    assert kinds == (np.random.default_rng, np.random.RandomState, random.Random, torch.Generator)
