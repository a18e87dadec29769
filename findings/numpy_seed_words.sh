#!/usr/bin/env bash
# Version: numpy 2.4.6
# Source: https://github.com/numpy/numpy/pull/16551 and https://github.com/numpy/numpy/issues/16539 (short entropy is filled with zeros; the
#   collision with spawned children was mended, the one of lists was kept for the sake of old streams)
# Behaviour: SeedSequence writes a list of integers as 32-bit words in a row and fills up to four words with zeros. So [7], [7, 0] and
#   [7, 0, 0, 0] are one seed, [2**32] is [0, 1], and [5, 2**32] is [5, 0, 1].
# Output: equal states, and equal normal numbers, for each of these; [7, 0, 0, 0, 0] is the first that differs.
# Matters: a stream that is keyed by (run key, step) draws at step 0 what the stream of the key alone draws, and pairs with a large part
#   meet triples. A direction that was drawn twice spends a step; noise or batches that share a stream with the directions are public. Give
#   every word a fixed place: hash the tuple first, or spawn.
# Guessed: different lists are different seeds; seen: these are equal.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib numpy==2.4.6
PYTHONPATH=lib "${PYTHON:-python3}" - <<'PY'
import numpy as np


def drawn(seed):
    return np.random.default_rng(seed).standard_normal(4).tolist()


for one, other in [([7], [7, 0]), ([7], [7, 0, 0, 0]), (7, [7, 0]), ([2**32], [0, 1]), ([5, 2**32], [5, 0, 1])]:
    print(one, other, drawn(one) == drawn(other))
    assert drawn(one) == drawn(other)
assert drawn([7]) != drawn([7, 0, 0, 0, 0])
PY
