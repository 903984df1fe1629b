"""The complementary error function, which NumPy lacks and only the exact gelu needs. GPT-2's own does not.

For z >= 0, erfc(z) = t exp(P(t) - z^2) with t = 2 / (2 + z), where P is so smooth that a short Chebyshev
series gives it to 14 digits [the form is that of Numerical Recipes, "Error function"]. The series is
fitted to the standard library's math.erfc, which takes one number at a time: too slow for arrays.
"""

import math
from functools import lru_cache

import numpy as np

Z_END = 8.0  # erfc(8) is 1e-29: beyond it nothing changes
T_END = 2.0 / (2.0 + Z_END)  # so t lies in [T_END, 1], on which Chebyshev's [-1, 1] is laid
TERMS = 23


@lru_cache
def series() -> np.ndarray:
    """P's Chebyshev coefficients."""

    def P(u: np.ndarray) -> list[float]:  # u in [-1, 1]
        ts = (0.5 * (u * (1.0 - T_END) + (1.0 + T_END))).tolist()
        zs = [2.0 / t - 2.0 for t in ts]
        return [math.log(math.erfc(z) / t) + z * z for t, z in zip(ts, zs, strict=True)]

    return np.polynomial.chebyshev.chebinterpolate(P, TERMS - 1)


def erfc(z: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """erfc(z) for z >= 0, in z's dtype, to 14 digits."""
    z = np.minimum(z, Z_END)
    t = 2.0 / (2.0 + z)
    u = (2.0 * t - (1.0 + T_END)) / (1.0 - T_END)
    return (t * np.exp(np.polynomial.chebyshev.chebval(u, series()) - z * z)).astype(z.dtype)
