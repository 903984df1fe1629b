"""How one token is chosen: temperature, top-k, top-p, and the draw.

test_transformers.py compares distributions with those of transformers.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from tiedgpt.sampling import Sampling

# Distributions
P = [0.1, 0.4, 0.05, 0.3, 0.15]
EVEN = [1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8]
LIKELIEST = [0, 1, 0, 0, 0]  # of P

# A filter, the distribution before it, and that after it, which was computed by hand
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
    # Tokens as likely as the third likeliest stay, too, as in transformers.
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
def test_filters_give_the_distributions_computed_by_hand(sampling, before, after, dtype, rtol):
    logits = np.log(before).astype(dtype)
    p = sampling.probabilities(logits)
    assert p.dtype == np.float64
    np.testing.assert_allclose(p, after, rtol=rtol)


def test_the_least_top_p_keeps_one_of_several_equal_tokens():
    """Rounding may make the probability of each of V tokens a little less than 1 / V."""
    for V in range(1, 200):
        p = Sampling(top_p=1e-300).probabilities(np.zeros(V))
        assert np.count_nonzero(p) == 1


def test_draws_follow_the_distribution():
    """Chi-squared of 20,000 draws is below 23.5, the 0.9999 quantile of 4 degrees of freedom."""
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
    """`number` is the random number from 0 to 1 that decides which token is drawn.

    top_k=3 keeps tokens 1, 2 and 4, each with a probability of 1/3.
    """
    logits = np.array([0.0, 5.0, 5.0, 0.0, 5.0, 0.0])
    rng = SimpleNamespace(random=lambda: number)
    assert Sampling(top_k=3).choose(logits, rng) == token
