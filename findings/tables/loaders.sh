#!/usr/bin/env bash
# Version: torch 2.13.0, accelerate 1.15.0, opacus 1.6.0, opake-dpsgd 0.16.1, jax-privacy 2.0.0 (on Python 3.11 or newer)
# Source: https://docs.pytorch.org/docs/stable/data.html, https://huggingface.co/docs/accelerate/package_reference/torch_wrappers,
#   https://opacus.ai/api/data_loader.html, https://pypi.org/project/opake-dpsgd (sampling) and https://jax-privacy.readthedocs.io (batch selection)
# Output: the table "What a data loader draws" of docs/results/others.md, from 2,000 epochs of each loader; ends with another status than 0 if a
#   row differs.
set -euo pipefail
page=$(realpath "$(dirname "$0")/../../docs/results/others.md")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib torch==2.13.0 accelerate==1.15.0 opacus==1.6.0 opake-dpsgd==0.16.1 jax-privacy==2.0.0
PYTHONPATH=lib "${PYTHON:-python3}" -W ignore - <<'PY' | tee rows.md
import logging
from collections import Counter

import numpy as np
import torch
from accelerate.data_loader import BatchSamplerShard
from jax_privacy import batch_selection as jp
from opacus.data_loader import DPDataLoader
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from opake.dpsgd.sampling import KOutOfTSampler, PoissonSampler
from opake.random import key
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, TensorDataset

logging.disable(logging.WARNING)  # Opacus, about first batches that are empty
EPOCHS, N, B = 2000, 10, 3
told, numbers = torch.Generator().manual_seed(0), np.random.default_rng(0)
data = TensorDataset(torch.arange(N))


def row(name, epoch):
    """epoch: a function of the epoch's number that returns its batches, each with the numbers of its records."""
    batches, never, again = [], 0, 0
    for number in range(EPOCHS):
        found = [[int(record) for record in batch] for batch in epoch(number)]
        used = Counter(record for batch in found for record in batch)
        never += N - len(used)
        again += sum(count > 1 for count in used.values())
        batches += found
    steps, sizes = len(batches), sorted({len(batch) for batch in batches})
    span = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"{sizes[0]}"
    rate, empty = sum(map(len, batches)) / N / steps, sum(not batch for batch in batches) / steps
    twice = sum(len(set(batch)) < len(batch) for batch in batches) / steps
    shares = (empty, never / N / EPOCHS, again / N / EPOCHS, twice)
    print(f"| {name} | {steps / EPOCHS:g} | {span} | {rate:.3f} |", *(f"{share:.1%} |" for share in shares))


def in_batches(replacement=False, drop=False):
    return lambda _: BatchSampler(RandomSampler(data, replacement, generator=told), B, drop)


def together(parts):
    """The steps of several processes: what each is given in a step, as one batch."""
    return [sum(map(list, step), []) for step in zip(*parts)]


def four(drop):
    def epoch(number):
        samplers = [DistributedSampler(data, 4, rank, drop_last=drop) for rank in range(4)]
        for sampler in samplers:
            sampler.set_epoch(number)
        return together([[record] for record in sampler] for sampler in samplers)

    return epoch


class Drawn(list):
    batch_size, drop_last = B, False


def two(drawn, even=True):
    def epoch(number):
        batches = Drawn(drawn(number))
        return together(BatchSamplerShard(batches, 2, rank, even_batches=even) for rank in range(2))

    return epoch


def poisson(_):
    return UniformWithReplacementSampler(num_samples=N, sample_rate=B / N, generator=told)


def opacus(_):
    loader = DPDataLoader.from_data_loader(DataLoader(data, batch_size=B), generator=told)
    return (batch[0] for batch in loader)


def opake(kind, **settings):
    return lambda number: kind(data, key=key(number), **settings)


def jax(kind, **settings):
    return lambda _: kind(iterations=3, **settings).batch_iterator(N, rng=numbers)


row("torch `RandomSampler`", in_batches())
row("the same, `drop_last`", in_batches(drop=True))
row("the same, `replacement`", in_batches(replacement=True))
row("torch `DistributedSampler`, 4 processes of 1 record", four(False))
row("the same, `drop_last`", four(True))
row("accelerate, 2 processes, batches of `RandomSampler`", two(in_batches()))
row("the same, `even_batches=False`", two(in_batches(), even=False))
row("the same, Poisson batches of rate 0.3", two(poisson, even=False))
row("Opacus `UniformWithReplacementSampler`, rate 0.3", poisson)
row("Opacus `DPDataLoader`, batches of 3", opacus)
row("opake `PoissonSampler`, rate 0.3", opake(PoissonSampler, sample_rate=0.3, n_steps=3))
row("the same, at most 3 records", opake(PoissonSampler, sample_rate=0.3, n_steps=3, truncated_batch_size=3))
row('opake `KOutOfTSampler`, 2 of 7 steps, "total"', opake(KOutOfTSampler, k=2, t=7, allocation="total"))
row('the same, "block"', opake(KOutOfTSampler, k=2, t=7, allocation="block"))
row("jax_privacy `CyclicPoissonSampling`, rate 0.3", jax(jp.CyclicPoissonSampling, sampling_prob=0.3))
row("the same, at most 3 records", jax(jp.CyclicPoissonSampling, sampling_prob=0.3, truncated_batch_size=3))
row("the same, cycles of 3, rate 0.9", jax(jp.CyclicPoissonSampling, sampling_prob=0.9, cycle_length=3))
row("jax_privacy `BallsInBinsSampling`, cycles of 3", jax(jp.BallsInBinsSampling, cycle_length=3))
row("jax_privacy `FixedBatchSampling`", jax(jp.FixedBatchSampling, batch_size=3))
row("the same, `replace`", jax(jp.FixedBatchSampling, batch_size=3, replace=True))
PY
! grep -vxFf "$page" rows.md
