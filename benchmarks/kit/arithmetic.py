"""Names for the way in which this machine's libraries compute, so that rows of two machines can be compared.

Numerical libraries pick routines by the type of the processor, and add numbers in another order when they use more
threads. Both change the last digits of a result.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special
import torch
from numpy.typing import NDArray

COMMITTED = {"math": "a7f2709ef27f", "numpy": "64579f8b77fc", "scipy": "359b4e6fad56", "torch": "c5bae1d88bc6"}
"""What `arithmetic()` returned on the machine that made the committed rows, on one thread."""


def arithmetic() -> dict[str, str]:
    """Return for each library a name of how this process computes with it: a digest of its results on fixed numbers.

    For `math` these are results of the functions of the C library; for numpy and scipy sums, functions, products and
    factorisations, since each brings a BLAS of its own; for torch the same in both precisions, with random normal
    numbers and with layers of networks. If all names are equal, the same program gives the same digits. If one differs,
    the last digits may differ, and with them whatever a run makes of small differences.
    """
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((130, 2000)), rng.standard_normal((2000, 77))
    parts = {"math": _math(left[0]), "numpy": _numpy(left, right), "scipy": _scipy(left), "torch": _torch(left, right)}
    return {name: _digest(values) for name, values in parts.items()}


def others() -> list[str]:
    """Return the names of the libraries that compute in another way here than on the machine that made the committed
    rows, which shows in other digests from `arithmetic`."""
    return [name for name, found in arithmetic().items() if found != COMMITTED[name]]


def _digest(parts: Iterator[Any]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:12]


def _math(values: NDArray[Any]) -> Iterator[list[float]]:
    for function in (math.exp, math.expm1, math.sin, math.cos, math.tanh, math.erf, math.erfc):
        yield [function(value) for value in values]
    for function in (math.log, math.log1p, math.lgamma, lambda value: math.pow(value, 1.3)):
        yield [function(abs(value)) for value in values]


def _numpy(left: NDArray[Any], right: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for dtype in (np.float64, np.float32):
        x: NDArray[Any] = left.astype(dtype)
        y: NDArray[Any] = right.astype(dtype)
        yield from (x @ y, x @ y[:, 0], y.T @ x[0], np.vecdot(x[:, :7], x[:, 7:14]), x.mean(axis=0), x.sum(axis=1))
        yield from (np.exp(x), np.log(np.abs(x)), np.tanh(x), np.abs(x) ** -0.5, np.abs(x) ** 1.3)
        yield from (np.expm1(x), np.log1p(np.abs(x)), np.sin(x), np.cos(x), np.einsum("ij,ij->i", x, x))
    square = left[:, :130]
    yield from (np.linalg.eigvalsh(square + square.T), np.linalg.svd(square, compute_uv=False))
    yield from (np.linalg.solve(square, right[:130]), np.linalg.qr(square)[0], np.fft.rfft(left[0]))


def _scipy(left: NDArray[Any]) -> Iterator[NDArray[Any]]:
    square = left[:, :130]
    yield scipy.linalg.eigh(square + square.T, eigvals_only=True)
    for function in (scipy.special.ndtr, scipy.special.log_ndtr, scipy.special.gammaln, scipy.special.erfcx):
        yield function(left)
    yield scipy.special.ndtri(scipy.special.ndtr(left))


def _torch(left: NDArray[Any], right: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for dtype in (torch.float64, torch.float32):
        x, y = (torch.from_numpy(values).to(dtype) for values in (left, right))
        size, square = x.abs(), x[:, :130]
        found = [x @ y, x @ y[:, 0], y.T @ x[0], y[:, :3].T @ x[:1].T, torch.dot(x[0], y[:, 0])]
        found += [x.sum(), x.sum(dim=1), x.sum(dim=0), x.cumsum(dim=1), x.var(dim=0), torch.linalg.vector_norm(x)]
        found += [x.exp(), size.log(), x.tanh(), x.sigmoid(), x.erf(), x.sin(), size.pow(1.3), size.rsqrt()]
        found += [torch.add(x, x.flip(0), alpha=0.3), torch.addcmul(x, x, x, value=0.3), torch.lerp(x, x.flip(0), 0.3)]
        found += [x.softmax(dim=1), x.log_softmax(dim=1), torch.nn.functional.gelu(x)]
        found += [torch.nn.functional.layer_norm(x, (2000,)), torch.nn.functional.linear(x, y.T.contiguous(), y[0])]
        found += [torch.linalg.eigvalsh(square + square.T)]
        found += [torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=dtype)]
        yield from (value.numpy() for value in found)
