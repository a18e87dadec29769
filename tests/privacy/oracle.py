"""delta of one subsampled release in closed form, to 40 digits."""

import mpmath

__all__ = ["closed_form"]


def closed_form(kind: str, q: float, s: float, epsilon: float) -> float:
    """delta(epsilon) of one release of the pair `kind`: the optimal event is a half-line in x."""
    with mpmath.workdps(40):
        q, s, e = mpmath.mpf(q), mpmath.mpf(s), mpmath.exp(mpmath.mpf(epsilon))
        tail = lambda c: mpmath.erfc(c / (s * mpmath.sqrt(2))) / 2  # noqa: E731
        if kind == "remove":
            c = mpmath.mpf(1) / 2 + s**2 * mpmath.log((e - 1 + q) / q)
            return float((1 - q) * tail(c) + q * tail(c - 1) - e * tail(c))
        if kind == "add":
            c = mpmath.mpf(1) / 2 + s**2 * mpmath.log((1 / e - 1 + q) / q)
            return float(1 - tail(c) - e * ((1 - q) * (1 - tail(c)) + q * (1 - tail(c - 1))))
        mixture = lambda x: 1 - q + q * mpmath.exp((2 * x - 1) / (2 * s**2))  # noqa: E731
        low, high = mpmath.mpf(-1), 1 + 2 * s**2 * (mpmath.log(1 / q) + epsilon + 2)
        for _ in range(200):
            c = (low + high) / 2
            low, high = (c, high) if mixture(c) < e * mixture(-c) else (low, c)
        return float((1 - q) * tail(c) + q * tail(c - 1) - e * ((1 - q) * tail(c) + q * tail(c + 1)))
