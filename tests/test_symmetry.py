"""The floor of a symmetric A; the fits, chains and calibrated paths of the tying experiment.

A [V, V] has the score of each next token after each token. Its excess is the mean KL of the shares
of next tokens in a text from softmax(A). The floor is the lowest excess of a symmetric A. It is the
JSD, the Jensen-Shannon divergence of the pairs of neighbours in the text and the reversed pairs. A
fit finds the A of the lowest excess that one form allows: "tied" is W_E W_E^T, for one.

A chain is a Markov chain P [V, V], whose rows are the shares of next tokens; its JSD is chosen. A
path is a function from tokens to logits. The unigram is the share of each token in a text. A path
is calibrated by a scale of its logits, and a weight of the logarithm of the unigram.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from support.models import SMALL, random_model, some_corpus
from tying import calibrated, chains, fits  # of scripts/

from tiedgpt import GPT2, Config
from tiedgpt.gpt2.ops import softmax
from tiedgpt.study import paths
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.direct_path import jsd_floor

V = SMALL.vocab_size


def random_pairs(V=9, seed=0) -> np.ndarray:
    """Counts of pairs of neighbours, some of them frequent, in a closed walk of 400 tokens.

    In a closed walk each token is as often the first of a pair as the second.
    """
    rng = np.random.default_rng(seed)
    steps = (V * rng.random(400) ** 2).astype(int)  # the square makes short ones likelier
    walk = (steps.cumsum() + rng.integers(0, 2, 400)) % V
    pairs = np.zeros((V, V))
    for first, second in zip(walk, np.roll(walk, -1), strict=True):
        pairs[first, second] += 1
    return pairs


def excess_of(pairs, A) -> float:
    """The mean KL(p(b|a) || softmax(A)[a]) from its definition; each pair has its share."""
    shares = pairs / pairs.sum()
    p = shares / shares.sum(axis=1, keepdims=True)
    occurs = shares > 0
    log_ratios = np.log(p[occurs] / softmax(A)[occurs])
    return float(shares[occurs] @ log_ratios)


def corpus_of(pairs, counts) -> Corpus:
    """A text with these counts, or shares, of pairs and of tokens. It has no ids."""
    first, second = np.nonzero(pairs)  # in the order of the first tokens
    starts = np.searchsorted(first, np.arange(len(pairs) + 1))  # where each first token's begin
    no_ids = np.empty(0)
    return Corpus(no_ids, counts, starts, second, pairs[first, second])


def floor_of(pairs) -> float:
    return jsd_floor(corpus_of(pairs, pairs.sum(axis=1)))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_best_symmetric_matrix_in_closed_form_has_the_floor(seed):
    pairs = random_pairs(6, seed) + 1  # no count is 0, so each has a logarithm
    A = np.log(pairs + pairs.T)
    assert floor_of(pairs) > 0.005
    assert excess_of(pairs, A) == pytest.approx(floor_of(pairs), abs=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_fit_of_all_symmetric_matrices_finds_the_floor(seed):
    """The loss is convex. A bias for each next token does not help."""
    pairs = random_pairs(6, seed) + 1
    shares = pairs / pairs.sum()
    token_shares = shares.sum(axis=1, keepdims=True)
    A = np.zeros((6, 6))
    bias = np.random.default_rng(seed).standard_normal(6)
    for _ in range(2_000):
        gradient = token_shares * softmax(A + bias) - shares
        symmetric_gradient = gradient + gradient.T
        # A gradient is in proportion to the share of its tokens, so it is divided by that.
        A -= symmetric_gradient / (token_shares + token_shares.T)
        bias -= gradient.sum(axis=0) / (4 * token_shares[:, 0])
    assert excess_of(pairs, A + bias) == pytest.approx(floor_of(pairs), abs=1e-9)


def test_the_floor_by_its_definition():
    """The KL of the shares of pairs from their mean with those of the reversed pairs."""
    pairs = random_pairs()
    M = pairs / pairs.sum()
    mean = (M + M.T) / 2
    occurs = M > 0
    definition = (M[occurs] * np.log(M[occurs] / mean[occurs])).sum()
    assert floor_of(pairs) == pytest.approx(definition)


def test_the_floor_depends_on_the_shares_of_pairs_alone():
    pairs = random_pairs()
    assert floor_of(7 * pairs) == pytest.approx(floor_of(pairs))


def test_the_floor_is_the_same_for_the_reversed_text():
    pairs = random_pairs()
    assert floor_of(pairs.T) == pytest.approx(floor_of(pairs))


def test_the_floor_of_a_text_that_is_its_own_mirror_image_is_0():
    pairs = random_pairs()
    assert floor_of(pairs + pairs.T) == 0


def test_the_floor_of_pairs_in_one_order_only_is_ln_2():
    circle = np.roll(np.eye(7), 1, axis=1)  # token n is followed by token n + 1
    assert floor_of(circle) == pytest.approx(math.log(2))


def test_the_floor_without_pairs_is_0():
    assert floor_of(np.zeros((3, 3))) == 0


def test_the_floor_of_a_sparse_corpus_is_that_of_its_table():
    text = some_corpus()
    table = text.table(np.arange(V), np.arange(V)).astype(np.float64)
    assert jsd_floor(text) == pytest.approx(floor_of(table), rel=1e-12)
    assert 0.05 < jsd_floor(text) < math.log(2)


@pytest.mark.parametrize(
    ("D", "seed"),
    [
        pytest.param(2, 0, id="rank-2"),
        pytest.param(12, 0, id="full-rank"),
        pytest.param(12, 1, id="full-rank-of-another-text"),
    ],
)
def test_no_symmetric_fit_is_below_the_floor(D, seed):
    pairs = random_pairs(12, seed)
    kls = fits.fit_families(pairs, D, seed=seed, steps=600)
    assert list(kls) == list(fits.FAMILIES)
    # "tied" is W_E W_E^T, and "signed" is W_E G W_E^T, where G has a gain for each dimension.
    rounding = 1e-5
    assert kls["signed"] > floor_of(pairs) - rounding
    assert kls["tied"] > floor_of(pairs) - rounding
    assert kls["untied"] > -rounding


@pytest.mark.parametrize("seed", [0, 1])
def test_at_full_rank_each_freedom_helps(seed):
    pairs = random_pairs(12, seed)
    floor = floor_of(pairs)
    kls = fits.fit_families(pairs, D=12, seed=seed, steps=600)
    # "untied" is any table, and "signed", W_E G W_E^T with gains of either sign, any symmetric one.
    # But "tied", W_E W_E^T, has no negative eigenvalue.
    assert kls["untied"] < 5e-3
    assert kls["signed"] == pytest.approx(floor, abs=0.02)
    assert kls["tied"] > floor + 0.02


def test_a_tied_model_without_layers_is_not_bound_by_the_floor_because_of_ln_f():
    """Its position embedding is 0, and it has a dimension for each of its 12 tokens."""
    pairs = random_pairs(12, seed=1)
    shares = pairs / pairs.sum()
    parts, kl = fits.fit("ln_f", shares, D=12, steps=600)
    parameters = {
        "wte.weight": parts["W_E"],
        "wpe.weight": np.zeros((8, 12)),
        "ln_f.weight": parts["gains"],
        "ln_f.bias": parts["bias"],
    }
    model = GPT2(Config(vocab_size=12, n_embd=12, n_head=1, n_layer=0, n_ctx=8), parameters)
    every_token = np.arange(12)
    logits = model(every_token[:, np.newaxis])[:, 0]
    assert excess_of(pairs, logits) == pytest.approx(kl)
    assert kl < floor_of(pairs) / 2
    assert excess_of(pairs, paths.raw(model, every_token)) > floor_of(pairs)


each_chain = pytest.mark.parametrize(
    ("size", "jsd"),
    [
        pytest.param(24, 0, id="24-reversible"),
        pytest.param(33, 0.05, id="33-nearly-reversible"),
        pytest.param(24, 0.3, id="24-middle"),
        pytest.param(33, 0.6, id="33-nearly-one-sided"),
        pytest.param(24, math.log(2), id="24-one-sided"),
    ],
)


def chain_of(size, jsd) -> np.ndarray:  # -> [size, size]
    return chains.markov_chain(size, jsd, np.random.default_rng(4))


@each_chain
def test_a_chain_has_shares_whose_rows_and_columns_add_up_to_1(size, jsd):
    P = chain_of(size, jsd)
    assert P.min() >= 0
    np.testing.assert_allclose(P.sum(axis=0), 1, atol=1e-9)
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-9)


@each_chain
def test_a_chain_has_the_chosen_jsd(size, jsd):
    assert floor_of(chain_of(size, jsd)) == pytest.approx(jsd, abs=1e-9)


def entropies_of_rows(P) -> list[float]:
    """The entropy of each row of shares, in nats."""
    entropies = []
    for row in P:
        p = row[row > 0]
        entropies.append(-(p * np.log(p)).sum())
    return entropies


@each_chain
def test_all_chains_of_a_size_have_one_entropy(size, jsd):
    """The entropy of the next token is half of log(size), which is that of equal shares."""
    P = chain_of(size, jsd)
    assert np.mean(entropies_of_rows(P)) == pytest.approx(math.log(size) / 2, abs=1e-9)


@each_chain
def test_the_entropy_of_a_table_is_the_sum_of_those_of_its_rows(size, jsd):
    P = chain_of(size, jsd)
    assert chains.entropy(P) == pytest.approx(sum(entropies_of_rows(P)))


def test_chains_of_one_seed_have_the_same_pairs():
    """`tournament` allows one order of each pair. A one-sided chain has no pair in the other."""
    reversible = chain_of(17, 0)
    one_sided = chain_of(17, math.log(2))
    np.testing.assert_allclose(reversible, reversible.T)
    occurs = one_sided > 1e-12
    assert (reversible[occurs] > 0).all()
    allowed = chains.tournament(17, np.random.default_rng(4))
    assert allowed[occurs].all()


@pytest.mark.parametrize("size", [17, 24])
def test_the_allowed_pairs_are_in_one_order_and_as_many_for_each_token(size):
    allowed = chains.tournament(size, np.random.default_rng(4))
    assert not (allowed & allowed.T).any()
    half_of_the_others = (size - 1) // 2
    assert set(allowed.sum(axis=0)) == {half_of_the_others}
    assert set(allowed.sum(axis=1)) == {half_of_the_others}


@pytest.mark.parametrize("size", [17, 24])
def test_the_allowed_pairs_do_not_follow_a_circle(size):
    """On a circle, the tokens after a token are in one order: no three of them are a triangle."""
    allowed = chains.tournament(size, np.random.default_rng(4))
    for is_successor in allowed:
        among_successors = allowed[np.ix_(is_successor, is_successor)].astype(int)
        closed_walks_of_three_steps = np.trace(np.linalg.matrix_power(among_successors, 3))
        assert closed_walks_of_three_steps > 0


def test_a_long_sample_has_the_chains_pairs():
    P = chains.markov_chain(16, 0.4, np.random.default_rng(0))
    ids = chains.sample(P, 100_000, np.random.default_rng(1))
    text = Corpus.of(ids, 16)
    shares = text.table(np.arange(16), np.arange(16)) / text.pair_counts.sum()
    # All 16 tokens are equally often the first of a pair.
    np.testing.assert_allclose(shares, P / 16, atol=0.003)
    assert jsd_floor(text) == pytest.approx(0.4, abs=0.01)


def path_and_unigram() -> tuple[np.ndarray, np.ndarray]:
    """Logits of a path [40, 9], and the logarithm of each token's share, up to a constant [9]."""
    rng = np.random.default_rng(0)
    # Large logits, so that the scales in these tests are small.
    x = 50 * rng.standard_normal((40, 9)).astype(np.float32)
    log_u = rng.standard_normal(9).astype(np.float32)
    return x, log_u


def test_the_scale_and_the_weight_are_those_that_made_the_table():
    x, log_u = path_and_unigram()
    Q = softmax(0.03 * x + 0.7 * log_u)
    scale, weight = calibrated.fit(x, log_u, Q)
    assert scale == pytest.approx(0.03, rel=0.01)
    assert weight == pytest.approx(0.7, rel=0.01)


def test_a_path_that_does_not_help_gets_the_scale_0_and_the_unigram_its_best_weight():
    x, log_u = path_and_unigram()
    Q = softmax(0.03 * x + 0.7 * log_u)
    scale, weight = calibrated.fit(-x, log_u, Q)
    assert scale == 0
    weights = np.linspace(0, 2, 401)
    excesses = []
    for other_weight in weights:
        logits_of_each_row = np.tile(other_weight * log_u, (40, 1))  # [40, 9]
        excesses.append(excess_of(Q, logits_of_each_row))
    best_weight = weights[np.argmin(excesses)]
    assert weight == pytest.approx(best_weight, abs=0.01)


def test_each_half_of_the_tokens_is_calibrated_by_the_other():
    model = random_model(SMALL.with_head("untied"))
    text = some_corpus()
    tokens = text.frequent()
    first_half = slice(0, None, 2)  # every second one of the frequent tokens
    second_half = slice(1, None, 2)
    before = calibrated.calibrate(paths.raw, model, text)(model, tokens)

    # Shuffle what follows each token of the second half; the counts of tokens stay.
    table = text.table(np.arange(V), np.arange(V)).astype(int)
    seen = text.frequent(1)
    rng = np.random.default_rng(0)
    for token in tokens[second_half]:
        table[token, seen] = rng.permutation(table[token, seen])
    shuffled = corpus_of(table, text.counts)
    after = calibrated.calibrate(paths.raw, model, shuffled)(model, tokens)
    np.testing.assert_array_equal(before[second_half], after[second_half])
    assert not np.allclose(before[first_half], after[first_half])


def model_with_the_pairs_at_another_scale(text) -> GPT2:
    """Its raw path lacks the counts of the second tokens, which the unigram adds.

    Its scores are seven times as large as the logarithms of the pairs.
    """
    seen = text.frequent(1)
    ratios = text.table(seen, seen) / text.counts[seen]  # to the count of the second token
    A = np.zeros((V, V))
    A[np.ix_(seen, seen)] = 7 * np.log(ratios + 1e-3)  # some pairs do not occur: 0 has no logarithm
    config = Config(vocab_size=V, n_embd=V, n_head=1, n_layer=0, n_ctx=8, tied=False)
    parameters = dict(random_model(config, dtype=np.float64).parameters)
    parameters["wte.weight"] = np.eye(V)
    parameters["lm_head.weight"] = A.T.copy()
    return GPT2(config, parameters)


@dataclass
class Calibrated:
    """A text, a model whose raw path has the text's pairs, and its calibrated paths by name."""

    text: Corpus
    model: GPT2
    paths: dict[str, paths.Path]


@pytest.fixture(scope="module")
def calibrated_model() -> Calibrated:
    text = some_corpus()
    model = model_with_the_pairs_at_another_scale(text)
    return Calibrated(text, model, calibrated.calibrated_paths(model, text))


def test_a_path_that_has_the_pairs_at_another_scale_has_no_kl_left(calibrated_model):
    """The kl is compared with that of the path itself, and top1 with that of the unigram."""
    scores = bigrams(calibrated_model.model, calibrated_model.text, others=calibrated_model.paths)
    assert scores["raw"]["kl"] > 1
    assert scores["raw+unigram"]["kl"] < 0.05
    assert scores["raw+unigram"]["top1"] > 0.95
    assert scores["unigram"]["top1"] < 0.95


def test_each_path_of_the_model_is_calibrated(calibrated_model):
    """The model has no layers, so there is no path "mlp0"."""
    names = list(calibrated_model.paths)
    assert names == ["raw+unigram", "normed+unigram", "model+unigram"]


def test_tokens_that_are_not_in_the_text_are_impossible(calibrated_model):
    text = calibrated_model.text
    path = calibrated_model.paths["raw+unigram"]
    logits = path(calibrated_model.model, text.frequent())  # [n, V]
    tokens_of_the_text = text.frequent(1)
    logits_of_absent_tokens = np.delete(logits, tokens_of_the_text, axis=1)
    assert logits_of_absent_tokens.size > 0
    assert np.isneginf(logits_of_absent_tokens).all()
