"""How one token is chosen: temperature, top-k, top-p, and the draw.

test_transformers.py compares distributions with those of transformers.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from tiedgpt.inference.sampling import Sampling

P = [0.1, 0.4, 0.05, 0.3, 0.15]
EVEN = [1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8]
LIKELIEST = [0, 1, 0, 0, 0]  # of P

# The distribution before and after; those after were computed by hand
FILTERED = [
    pytest.param(Sampling(), P, P, id="no-filter"),
    pytest.param(Sampling(top_k=2), P, [0, 4 / 7, 0, 3 / 7, 0], id="top-k"),
    # 0.4 + 0.3 is less than 0.75, so 0.15 stays.
    pytest.param(Sampling(top_p=0.75), P, [0, 8 / 17, 0, 6 / 17, 3 / 17], id="top-p"),
    pytest.param(Sampling(top_k=3, top_p=0.5), P, [0, 4 / 7, 0, 3 / 7, 0], id="top-k-and-top-p"),
    # P is 2, 8, 1, 6 and 3 twentieths. The squares of these numbers add up to 114.
    pytest.param(
        Sampling(0.5), P, [4 / 114, 64 / 114, 1 / 114, 36 / 114, 9 / 114], id="temperature-squares"
    ),
    pytest.param(
        Sampling(0.5, top_p=0.6), P, [0, 16 / 25, 0, 9 / 25, 0], id="temperature-before-top-p"
    ),
    pytest.param(Sampling(top_p=1e-9), P, LIKELIEST, id="least-top-p"),
    pytest.param(Sampling(top_k=1), P, LIKELIEST, id="least-top-k"),
    pytest.param(Sampling(1e-300), P, LIKELIEST, id="least-temperature"),
    # All that tie with the last one stay, as in transformers.
    pytest.param(Sampling(top_k=3), EVEN, EVEN, id="top-k-of-equal-tokens"),
    pytest.param(
        Sampling(top_p=0.5),
        EVEN,
        [1 / 4, 1 / 4, 1 / 4, 1 / 4, 0, 0, 0, 0],
        id="top-p-of-equal-tokens-keeps-the-fewest",
    ),
    pytest.param(
        Sampling(top_p=0.5), [0.2, 0.4, 0.2, 0.2], [1 / 3, 2 / 3, 0, 0], id="top-p-ends-in-a-tie"
    ),
    pytest.param(Sampling(top_k=100, top_p=1.0), EVEN, EVEN, id="filters-that-keep-all"),
]


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-6), (np.float64, 1e-14)])
@pytest.mark.parametrize(("sampling", "before", "after"), FILTERED)
def test_filters_on_distributions_checked_by_hand(sampling, before, after, dtype, rtol):
    logits = np.log(before).astype(dtype)
    p = sampling.probabilities(logits)
    assert p.dtype == np.float64
    np.testing.assert_allclose(p, after, rtol=rtol)


def test_of_equal_tokens_top_p_keeps_one_at_least():
    """1 / V, summed and divided, may come out a little below 1 / V."""
    for V in range(1, 200):
        p = Sampling(top_p=1e-300).probabilities(np.zeros(V))
        assert np.count_nonzero(p) == 1


def test_draws_follow_the_distribution():
    """Chi-squared over 20,000 draws; the 0.9999 quantile of 4 degrees of freedom is 23.5."""
    rng = np.random.default_rng(0)
    draws = [Sampling().choose(np.log(P), rng) for _ in range(20_000)]
    counts = np.bincount(draws, minlength=5)
    expected = 20_000 * np.array(P)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 23.5


@pytest.mark.parametrize(
    ("number", "token"),
    [
        pytest.param(0.0, 1, id="lowest-number"),
        pytest.param(1 / 3 + 1e-9, 2, id="a-third"),
        pytest.param(np.nextafter(1.0, 0.0), 4, id="highest-number"),
    ],
)
def test_no_draw_falls_on_a_dropped_token_or_off_the_end(number, token):
    """`number` is from 0 to 1, as the draw is. Tokens 1, 2 and 4 stay, with a third each."""
    logits = np.array([0.0, 5.0, 5.0, 0.0, 5.0, 0.0])
    stream = SimpleNamespace(random=lambda: number)
    assert Sampling(top_k=3).choose(logits, stream) == token
