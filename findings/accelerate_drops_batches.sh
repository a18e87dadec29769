#!/usr/bin/env bash
# Version: accelerate 1.15.0 (with torch 2.13.0)
# Source: https://github.com/huggingface/accelerate/issues/207 (closed) and https://github.com/huggingface/accelerate/pull/3969
# Behaviour: for several processes accelerate deals out the batches of a sampler. If the sampler has an attribute batch_size, only rounds whose
#   last batch has exactly that many records are kept; records of the others are dropped, and the last round is filled up from the first.
#   Without batch_size all batches are kept, but a last round that is not full repeats the first batches.
# Output: seven batches of 0 to 4 records, for two processes and batch_size 3, become four: records 4 to 7 are in none, and record 0 is twice
#   in the last round. Without batch_size the first batch comes again at the end.
# Matters: Poisson batches have varying sizes. Here the sizes decide which records are ever used, and a record counts twice in one step, so
#   neither the rate nor the sensitivity is what the accountant was told. Draw batches inside each rank, from the shared secret stream.
# Guessed: each process gets every second batch as it was drawn; seen: batches are dropped, filled and repeated.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
PYTHONPATH=lib "${PYTHON:-python3}" - <<'PY'
from accelerate.data_loader import BatchSamplerShard

DRAWN = [[0, 1, 2], [3], [], [4, 5, 6, 7], [8, 9], [10, 11, 12], [13]]


class Sampler:
    """Batches of varying sizes, as Poisson sampling draws them."""

    drop_last = False

    def __init__(self, size=None):
        if size is not None:
            self.batch_size = size

    def __iter__(self):
        return iter([list(batch) for batch in DRAWN])

    def __len__(self):
        return len(DRAWN)


def dealt(size=None):
    return [list(BatchSamplerShard(Sampler(size), 2, rank)) for rank in (0, 1)]


print("batch_size 3:", dealt(3), "no batch_size:", dealt())
assert dealt(3) == [[[8, 9], [13, 0, 1]], [[10, 11, 12], [2, 3, 0]]]
assert dealt() == [[[0, 1, 2], [], [8, 9], [13]], [[3], [4, 5, 6, 7], [10, 11, 12], [0, 1, 2]]]
PY
