"""Each number of the study against a plain computation of it, and on inputs with a known answer.

A corpus has the counts of a text's tokens and of its pairs of neighbours. A token that occurs in it
100 times or more is frequent. A path is a function from tokens to logits, which uses a part of the
model: "raw" is A = W_E W_U; "normed" has ln_f between the two matrices; "mlp0" has the first MLP,
and then ln_f, between them; and "model" is the whole model. The path "unigram" uses no model: after
every token, it predicts the shares of all tokens in the text.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.checks import refuses
from support.models import SMALL, random_model, some_corpus

from tiedgpt import GPT2, evaluation
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.gpt2.parameters import parameter_shapes
from tiedgpt.study import bigrams, embeddings, paths, predictions
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.reports import end_of_text, losses

V = SMALL.vocab_size
UNTIED = SMALL.with_head("untied")
TOKENS = np.array([3, 100, 0, 57, 3])  # a text of SMALL's tokens


def table_of(ids, vocab_size) -> np.ndarray:
    """How often each token (a column) follows each token (a row): [vocab_size, vocab_size]."""
    table = np.zeros((vocab_size, vocab_size), int)
    np.add.at(table, (ids[:-1], ids[1:]), 1)
    return table


def test_each_row_of_a_corpus_has_the_successors_of_a_token():
    text = some_corpus()
    for token, row in enumerate(table_of(text.ids, V)):
        successors, counts = text.row(token)
        assert successors.tolist() == np.flatnonzero(row).tolist()
        assert counts.tolist() == row[row > 0].tolist()


def test_the_table_of_a_corpus_has_the_chosen_rows_and_columns():
    text = some_corpus()
    table = table_of(text.ids, V)
    every_token = np.arange(V)
    np.testing.assert_array_equal(text.table(every_token, every_token), table)
    rows = np.array([60, 3, 100, 0])
    columns = np.array([3, 100, 0])
    np.testing.assert_array_equal(text.table(rows, columns), table[np.ix_(rows, columns)])


def test_the_count_and_the_share_of_a_pair():
    text = some_corpus()
    table = table_of(text.ids, V)
    assert table[0, 1] > 0
    assert text.count(0, 1) == table[0, 1]
    assert text.share(0, 1) == table[0, 1] / table[0].sum()


def test_a_token_that_is_not_in_the_corpus_has_no_pairs():
    text = some_corpus()
    assert text.count(V - 1, 0) == 0
    assert text.share(V - 1, 0) == 0


def test_nothing_follows_the_last_token_of_a_text():
    """So the share is one of two pairs, though the token is there three times."""
    text = Corpus.of([0, 1, 0, 2, 0], 3)
    assert text.share(0, 1) == 1 / 2


def test_frequent_tokens_occur_at_least_100_times():
    text = some_corpus()
    counts = np.bincount(text.ids, minlength=V)
    assert text.counts.tolist() == counts.tolist()
    assert text.frequent().tolist() == np.flatnonzero(counts >= 100).tolist()
    assert text.frequent(1).tolist() == np.flatnonzero(counts >= 1).tolist()
    # Some tokens are frequent, some occur but are not frequent, and some do not occur.
    assert len(text.frequent()) > 1
    assert len(text.frequent(1)) > len(text.frequent())
    assert len(text.frequent(1)) < V


@pytest.mark.parametrize("ids", [pytest.param([], id="empty"), pytest.param([4], id="one-token")])
def test_a_corpus_without_pairs(ids):
    text = Corpus.of(ids, 5)
    successors, counts = text.row(4)
    assert successors.size == 0
    assert counts.size == 0
    assert text.counts.sum() == len(ids)
    assert text.frequent().size == 0
    assert text.self_prediction() is None


@pytest.mark.parametrize("token", [-1, V])
def test_ids_of_another_vocabulary_are_refused(token):
    """The first of them is named."""
    message = f"^token id {token} of the corpus is outside the vocabulary of 101$"
    refuses(message, Corpus.of, [0, token, -2, V + 7, 1], V, error=ArgumentError)


def test_a_text_that_is_not_encoded_is_refused():
    refuses("^expected token ids, got text: ", Corpus.of, "a text", V, error=ArgumentError)


def test_the_share_of_frequent_tokens_whose_commonest_successor_is_themselves():
    """Tokens 0 to 9 of the frequent tokens 0 to 13."""
    ids = []
    for token in range(9):
        ids += [token] * 120  # it follows itself
    ids += [9, 9, 10] * 60  # after 9, 9 is as common as 10
    ids += [10, 11, 12, 13] * 150  # none of them follows itself
    ids += [14] * 80  # 14 is not frequent
    text = Corpus.of(np.array(ids), 15)
    assert text.frequent().tolist() == list(range(14))
    assert text.self_prediction() == 10 / 14


def corpus_with_frequent(is_frequent) -> Corpus:  # [V] bool
    """A text in which frequent tokens occur 100 times, and all other tokens 99 times."""
    counts = np.where(is_frequent, 100, 99)
    return Corpus.of(np.repeat(np.arange(V), counts), V)


def test_with_nine_frequent_tokens_no_mean_over_them_is_reported(model):
    text = corpus_with_frequent(np.arange(V) < 9)
    assert paths.direct_path(model, text)["self_prediction_frequent"] is None
    assert text.self_prediction() is None
    assert bigrams.bigrams(model, text) is None


def test_with_ten_frequent_tokens_the_means_over_them_are_reported(model):
    text = corpus_with_frequent(np.arange(V) < 10)
    assert paths.direct_path(model, text)["self_prediction_frequent"] is not None
    assert text.self_prediction() is not None
    assert bigrams.bigrams(model, text) is not None


def first_layers(model: GPT2, n_layer: int) -> GPT2:
    """A model with only the first `n_layer` layers, and the same embeddings, ln_f and head."""
    config = replace(model.config, n_layer=n_layer)
    return GPT2(config, {name: model.parameters[name] for name in parameter_shapes(config)})


def without_position_and_attention(model: GPT2) -> GPT2:
    """A copy of which wpe and the first layer's attention add nothing."""
    parameters = dict(model.parameters)
    for name in ("wpe.weight", "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias"):
        parameters[name] = np.zeros_like(parameters[name])
    return GPT2(model.config, parameters)


def logits_of_single_tokens(model: GPT2) -> np.ndarray:  # -> [n, V]
    """The logits after each of TOKENS, where each token is a text of its own."""
    return model(TOKENS[:, np.newaxis])[:, 0]


each_head = pytest.mark.parametrize("head", ["tied", "untied"])


@each_head
def test_the_raw_path_is_the_product_of_embedding_and_output_matrix(head):
    model = random_model(SMALL.with_head(head), dtype=np.float64)
    expected = (model.W_E @ model.W_U)[TOKENS]
    np.testing.assert_allclose(paths.PATHS["raw"](model, TOKENS), expected, rtol=1e-12, atol=1e-12)


@each_head
@pytest.mark.parametrize(
    ("path", "n_layer"),
    [pytest.param("normed", 0, id="normed"), pytest.param("mlp0", 1, id="mlp0")],
)
def test_normed_and_mlp0_are_models_without_positions_and_attention(head, path, n_layer):
    """The path "normed" is such a model without layers, "mlp0" such a model with the first one."""
    model = random_model(SMALL.with_head(head), dtype=np.float64)
    smaller = first_layers(without_position_and_attention(model), n_layer)
    logits = paths.PATHS[path](model, TOKENS)
    np.testing.assert_allclose(logits, logits_of_single_tokens(smaller), rtol=1e-12, atol=1e-12)


@each_head
def test_the_path_model_has_all_layers_and_the_first_position(head):
    model = random_model(SMALL.with_head(head), dtype=np.float64)
    logits = paths.PATHS["model"](model, TOKENS)
    for row, token in zip(logits, TOKENS, strict=True):
        np.testing.assert_allclose(row, model([token])[0], rtol=1e-12, atol=1e-12)

    # Without layers, the position embedding is all that "model" has and "normed" has not.
    normed = paths.PATHS["normed"](model, TOKENS)
    without_layers = paths.whole_model(first_layers(model, 0), TOKENS)
    assert np.abs(without_layers - normed).max() > 0.1, "the position changes nothing"


@pytest.mark.parametrize("start", [0, 5])
def test_a_token_that_begins_a_document_is_read_before_each_token(start):
    model = random_model(dtype=np.float64)
    logits = paths.whole_model(model, TOKENS, start=start)
    expected = [model([start, token])[-1] for token in TOKENS]
    np.testing.assert_allclose(logits, expected, rtol=1e-9)


@pytest.mark.parametrize("path", paths.PATHS)
def test_a_float32_model_has_float32_paths(model, path):
    assert paths.PATHS[path](model, TOKENS).dtype == np.float32


def test_a_model_without_layers_has_no_path_mlp0(model):
    assert list(paths.paths_of(model)) == ["raw", "normed", "mlp0", "model"]
    assert list(paths.paths_of(first_layers(model, 1))) == ["raw", "normed", "mlp0", "model"]
    assert list(paths.paths_of(first_layers(model, 0))) == ["raw", "normed", "model"]


def test_the_parts_that_reports_name_are_those_that_a_path_uses():
    model = random_model(UNTIED)
    names = {
        "W_E": "wte.weight",
        "first MLP": "h.0.mlp.c_fc.weight",
        "ln_f": "ln_f.weight",
        "W_U": "lm_head.weight",
    }
    changing = {path: [] for path in paths.PATHS}
    for part, name in names.items():
        changed = GPT2(UNTIED, {**model.parameters, name: 2 * model.parameters[name]})
        for path, function in paths.PATHS.items():
            if not np.array_equal(function(model, TOKENS), function(changed, TOKENS)):
                changing[path].append(part)
    assert changing.pop("model") == list(names)
    of_reports = {path: parts.split(", ") for path, parts in paths.PATH_PARTS.items()}
    assert of_reports == {**changing, "model": ["the whole model"]}


def test_log_softmax_of_very_large_logits():
    logits = np.array([[0.0, -5000.0, 0.0], [-np.inf, 1.0, 1.0]], np.float32)
    log_half = math.log(1 / 2)
    expected = [[log_half, -5000 + log_half, log_half], [-np.inf, log_half, log_half]]
    log_p = paths.log_probabilities(logits)
    np.testing.assert_allclose(log_p, expected)
    assert log_p.dtype == np.float64


@pytest.mark.parametrize("row", [[1.0, np.nan], [1.0, np.inf], [-np.inf, -np.inf]], ids=str)
def test_log_softmax_of_logits_that_are_not_finite(row):
    with pytest.raises(TiedGPTError, match="not finite numbers: its checkpoint is damaged"):
        paths.log_probabilities(np.array([[0.0, 0.0], row]))


def relative_asymmetry(model: GPT2) -> float:
    """|A - A^T| / |A|, from the whole matrix in float64."""
    A = model.W_E.astype(np.float64) @ model.W_U.astype(np.float64)
    return np.linalg.norm(A - A.T) / np.linalg.norm(A)


def test_asymmetry_computed_in_blocks_of_rows_is_that_of_the_whole_matrix(monkeypatch):
    monkeypatch.setattr(paths, "ROWS_AT_ONCE", 17)
    model = random_model(UNTIED)
    asymmetry = paths.asymmetry(model.W_E, model.W_U)
    assert asymmetry == pytest.approx(relative_asymmetry(model), rel=1e-12)
    for scale in (1e-6, 1e6):
        assert paths.asymmetry(scale * model.W_E, model.W_U) > 0.1
    A = model.W_E.astype(np.float64) @ model.W_U
    assert paths.matrix_asymmetry(A) == pytest.approx(asymmetry, rel=1e-6)


def test_asymmetry_of_a_nearly_tied_model_is_not_lost_in_rounding(monkeypatch):
    """In this model, one number of W_U differs from that of W_E^T, by 1e-6."""
    monkeypatch.setattr(paths, "ROWS_AT_ONCE", 17)
    model = random_model(UNTIED)
    model.parameters["lm_head.weight"][:] = model.W_E
    model.parameters["lm_head.weight"][5, 3] += 1e-6
    expected = relative_asymmetry(model)
    assert 1e-9 < expected < 1e-7
    assert paths.asymmetry(model.W_E, model.W_U) == pytest.approx(expected, rel=1e-6)


def test_the_asymmetry_of_a_symmetric_product_may_be_rounding_and_no_error():
    """Of some of these seeds, rounding makes the square of |A - A^T| less than 0."""
    scales = np.float32(2.0) ** np.arange(7)
    for seed in range(50):
        W_E = np.random.default_rng(seed).normal(size=(30, 7)).astype(np.float32)
        W_U = (W_E * scales).T  # each of its numbers is exact, so W_E @ W_U is symmetric
        assert paths.asymmetry(W_E, W_U) < 1e-6


def test_the_asymmetry_is_0_if_W_U_is_the_transposed_W_E_or_zeros(model):
    """`model` is tied."""
    for symmetric in (model, model.untie("copy"), model.untie("zeros")):
        assert paths.asymmetry(symmetric.W_E, symmetric.W_U) == 0.0


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(random_model(), id="tied"),
        pytest.param(random_model(UNTIED), id="untied"),
        pytest.param(random_model(seed=2), id="another-tied"),
    ],
)
def test_self_prediction_is_that_of_the_whole_matrix(monkeypatch, model):
    """A token predicts itself if it has the highest score of its row of A."""
    monkeypatch.setattr(paths, "MAX_LOGITS", 7 * V)  # seven rows of A at a time
    predicts_itself = (model.W_E @ model.W_U).argmax(axis=1) == np.arange(V)
    is_odd = np.arange(V) % 2 == 1
    tokens_done = []  # the numbers of tokens that are reported as done
    report = paths.direct_path(model, corpus_with_frequent(is_odd), tokens_done.append)
    assert report["self_prediction"] == predicts_itself.mean()
    assert report["self_prediction_frequent"] == predicts_itself[is_odd].mean()
    assert sum(tokens_done) == V


def test_a_damaged_matrix_is_an_error(model):
    model.parameters["wte.weight"][7, 2] = np.nan
    message = "^wte or lm_head holds a number that is not finite: the checkpoint is damaged$"
    with pytest.raises(TiedGPTError, match=message):
        paths.direct_path(model)
    large = np.full((3, 2), 1e200)  # whose squares are infinite
    for W_U in (large.T, -large.T):
        with np.errstate(all="ignore"), pytest.raises(TiedGPTError, match=message):
            paths.asymmetry(large, W_U)


def measures_by_definition(logits, counts):
    """How well the logits after a token [V] predict the counts of its successors [V]."""
    p = np.exp(logits - logits.max())
    p /= p.sum()
    q = counts / counts.sum()
    larger = [np.count_nonzero(p > p_of_token) for p_of_token in p]
    ranks = 1 + np.array(larger)  # 1 for the likeliest token
    follows = counts > 0
    kl = q[follows] * np.log(q[follows] / p[follows])
    return {
        "top1": share_of_most_common(p, counts, 1),
        "top5": share_of_most_common(p, counts, 5),
        "mrr": (q / ranks).sum(),
        "kl": kl.sum(),
    }


def share_of_most_common(p, counts, k):
    """The share of the k most common successors that are among the k likeliest tokens.

    All successors that are as common as the k-th most common one count as most common.
    """
    kth_count = np.sort(counts)[-k]
    hits = 0
    for token in np.argsort(-p)[:k]:
        if counts[token] > 0 and counts[token] >= kth_count:
            hits += 1
    number_of_successors = np.count_nonzero(counts)
    return hits / min(k, number_of_successors)


PATHS_WITH_UNIGRAM = ["unigram", "raw", "normed", "mlp0", "model"]


def logits_of_path(path, model, text, token):
    if path == "unigram":
        with np.errstate(divide="ignore"):  # log(0) = -inf for a token that does not occur
            return np.log(np.bincount(text.ids, minlength=V))
    return paths.PATHS[path](model, np.array([token]))[0]


@pytest.fixture(scope="module", params=[pytest.param("tied", marks=pytest.mark.slow), "untied"])
def model_and_scores(request):
    """A model, and its scores for some_corpus()."""
    model = random_model(SMALL.with_head(request.param), dtype=np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "MAX_LOGITS", 4 * V)  # the logits of four tokens at a time
        return model, bigrams.bigrams(model, some_corpus())


@pytest.mark.parametrize("path", PATHS_WITH_UNIGRAM)
def test_the_scores_of_a_path_are_the_means_of_its_measures_for_each_frequent_token(
    model_and_scores, path
):
    text = some_corpus()
    table = table_of(text.ids, V)
    model, all_scores = model_and_scores
    scores = all_scores[path]
    expected = []
    counts = np.bincount(text.ids, minlength=V)
    tokens = sorted(text.frequent(), key=lambda token: (-counts[token], token))
    for place, token in enumerate(tokens):
        logits = logits_of_path(path, model, text, token)
        measures = measures_by_definition(logits, counts=table[token])
        other = tokens[place - len(tokens) // 2]
        for k in (1, 5):
            measures[f"top{k}_chance"] = share_of_most_common(logits, table[other], k)
        expected.append(measures)
    assert list(scores) == ["top1", "top5", "mrr", "kl", "top1_chance", "top5_chance"]
    for measure, score in scores.items():
        mean = np.mean([measures[measure] for measures in expected])
        assert score == pytest.approx(mean, rel=1e-9), measure


def test_bigrams_reports_each_frequent_token_once_for_each_path(model, monkeypatch):
    monkeypatch.setattr(paths, "MAX_LOGITS", 4 * V)  # the logits of four tokens at a time
    text = some_corpus()
    tokens_done = []  # the numbers of tokens that are reported as done
    report = bigrams.bigrams(model, text, tokens_done.append)
    assert list(report) == PATHS_WITH_UNIGRAM
    assert sum(tokens_done) == len(PATHS_WITH_UNIGRAM) * len(text.frequent())


@pytest.mark.parametrize(
    ("successors", "k", "expected"),
    [
        pytest.param([1, 5], 1, 0, id="none-is-the-likeliest"),
        pytest.param([0, 3], 1, 1, id="either-is-the-most-common"),
        pytest.param([1, 5], 5, 1 / 2, id="one-of-two-is-among-the-likeliest-five"),
    ],
)
def test_overlap_with_two_successors_that_are_equally_common(successors, k, expected):
    """The overlap is the share of the k most common successors among the k likeliest tokens."""
    log_p = np.log([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])  # so token 0 is the likeliest, 5 the last
    counts = np.array([50, 50])
    assert bigrams.overlap(log_p, np.array(successors), counts, k) == expected


@pytest.fixture
def table_of_logits():
    """A path of random logits, which know the bigrams of `some_corpus` a little."""
    known = np.log1p(table_of(some_corpus().ids, V))
    return known + 2 * np.random.default_rng(0).standard_normal((V, V))


def gain_of(logits):
    """What a path gains whose logits after each token are the rows of [V, V]."""
    paths = {"path": lambda model, tokens: logits[tokens]}
    return bigrams.gains(random_model(), some_corpus(), paths)["path"]


def test_the_gain_is_found_by_trying_weights(table_of_logits):
    """Every second frequent token chooses the weights, and the others measure the gain."""
    text = some_corpus()
    counts = np.bincount(text.ids, minlength=V)
    seen = np.flatnonzero(counts)
    by_count = sorted(text.frequent(), key=lambda token: (-counts[token], token))
    chosen = by_count[0::2]
    measured = by_count[1::2]
    successors = table_of(text.ids, V)

    def nats(a, b, tokens):
        """The cross entropy after each token, for the weights a and b."""
        scores = a * table_of_logits[np.ix_(tokens, seen)] + b * np.log(counts[seen])
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        q = successors[np.ix_(tokens, seen)] / successors[tokens].sum(axis=1, keepdims=True)
        return -(q * log_p).sum(axis=1)

    def best_weights(a, b, step_of_a):
        """From a and b on, smaller and smaller steps to where the mean is lowest."""
        step_of_b = 0.25
        while step_of_b > 1e-5:
            tried = [(a, b)]
            for sign in (-1, 1):
                tried += [(a + sign * step_of_a, b), (a, b + sign * step_of_b)]
                tried.append((a + sign * step_of_a, b - sign * step_of_b))
            lowest = min(tried, key=lambda weights: nats(*weights, chosen).mean())
            if lowest == (a, b):
                step_of_a /= 2
                step_of_b /= 2
            a, b = lowest
        return a, b

    by_counts = nats(*best_weights(0, 1, step_of_a=0), measured)
    gains = by_counts - nats(*best_weights(0, 1, step_of_a=0.25), measured)
    figures = gain_of(table_of_logits)
    assert figures["gain"] == pytest.approx(gains.mean(), abs=1e-5)
    assert figures["gain"] > 0.1
    error = gains.std(ddof=1) / math.sqrt(gains.size)
    assert figures["gain_error"] == pytest.approx(error, abs=1e-5)


def test_cross_entropies_do_not_depend_on_the_rows_at_once(monkeypatch, table_of_logits):
    log_counts = np.log(np.arange(1, V + 1))
    by_text = np.random.default_rng(0).standard_normal((V, 2))
    arguments = (np.array([0.3, 0.7]), table_of_logits, log_counts, by_text)
    expected = bigrams.cross_entropies(*arguments)
    for numbers_at_once in (7 * V, V - 1):  # the latter are less than a row
        monkeypatch.setattr(bigrams, "BLOCK", numbers_at_once)
        for found, whole in zip(bigrams.cross_entropies(*arguments), expected, strict=True):
            np.testing.assert_allclose(found, whole, rtol=1e-9)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("scale", [0.01, 1, 30])
def test_the_weights_are_where_the_gradient_is_0_though_a_step_goes_too_far(seed, scale):
    """With few rows and shares near 0 and 1, Newton's step may lead to a higher cross entropy."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.standard_normal((4, 6))
    log_counts = np.log(rng.integers(1, 1000, 6))
    q = rng.dirichlet(np.full(6, 0.05), 4)
    by_text = np.stack([(q * logits).sum(axis=1), q @ log_counts], axis=1)

    def mean_nats(weights):
        scores = weights[0] * logits + weights[1] * log_counts
        return (np.log(np.exp(scores).sum(axis=1)) - by_text @ weights).mean()

    best = bigrams.fit(logits, log_counts, by_text)
    for change in ((1e-3 / scale, 0), (-1e-3 / scale, 0), (0, 1e-3), (0, -1e-3)):
        assert mean_nats(best) < mean_nats(best + change)
    assert mean_nats(best) < mean_nats(np.array([0.0, 1.0]))


def test_the_gain_does_not_depend_on_scale_and_sign_of_the_logits(table_of_logits):
    """Nor on a number that is added to a whole row of them."""
    figures = gain_of(table_of_logits)
    changed = -300 * table_of_logits + np.arange(V)[:, None]
    assert gain_of(changed) == pytest.approx(figures, abs=1e-4)


def test_what_the_counts_say_and_a_constant_gain_nothing():
    log_counts = np.log(np.maximum(1, np.bincount(some_corpus().ids, minlength=V)))
    for row in (np.zeros(V), np.ones(V), log_counts):
        figures = gain_of(np.tile(row, (V, 1)))
        assert figures["gain"] == pytest.approx(0, abs=1e-6)


def test_spearman_is_the_pearson_correlation_of_ranks():
    """Equal numbers all have the mean of their ranks. Only x has equal numbers."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, 60)
    y = rng.standard_normal(60)
    ranks_of_x = []
    for number in x:
        smaller = (x < number).sum()
        equal = (x == number).sum()
        # The equal numbers have the ranks smaller + 1 to smaller + equal.
        ranks_of_x.append(smaller + (1 + equal) / 2)
    ranks_of_y = []
    for number in y:
        ranks_of_y.append(1 + (y < number).sum())
    pearson = np.corrcoef(ranks_of_x, ranks_of_y)[0, 1]
    assert embeddings.spearman(x, y) == pytest.approx(pearson, rel=1e-12)


def test_spearman_of_a_falling_function_is_minus_1():
    x = np.random.default_rng(0).standard_normal(60)
    assert embeddings.spearman(x, -(x**3)) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        pytest.param(np.arange(60), np.ones(60), id="second-constant"),
        pytest.param(np.ones(60), np.arange(60), id="first-constant"),
        pytest.param(np.empty(0), np.empty(0), id="empty"),
    ],
)
def test_spearman_that_is_not_defined(x, y):
    assert embeddings.spearman(x, y) is None


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_cosines_do_not_depend_on_the_lengths_of_the_rows(scale):
    rows = np.random.default_rng(0).normal(size=(5, 3))
    norms = np.linalg.norm(rows, axis=1)
    table = rows @ rows.T / np.outer(norms, norms)
    expected = [table[i, j] for i in range(5) for j in range(i + 1, 5)]
    np.testing.assert_allclose(embeddings.cosines(scale * rows), expected)


@pytest.mark.parametrize("k", [1, 5, 40, 500])
def test_of_equal_scores_those_of_the_lowest_ids_come_first(k):
    scores = np.tile([1.0, 3.0, 2.0, 3.0], 100)
    expected = sorted(range(400), key=lambda token: (-scores[token], token))[:k]
    assert paths.top_k(scores, k).tolist() == expected


def test_tokens_are_split_into_few_pieces_that_fit_into_memory(monkeypatch):
    monkeypatch.setattr(paths, "MAX_LOGITS", 35)
    done = []
    pieces = list(paths.split_tokens(np.arange(8), 10, done.append))
    assert [piece.tolist() for piece in pieces] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert done == [3, 3, 2]
    assert [piece.size for piece in paths.split_tokens(np.arange(3), 1000)] == [1, 1, 1]


def test_the_cosines_of_a_row_of_zeros_are_0():
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]])
    assert embeddings.cosines(rows) == pytest.approx([0, 1, 0])


def test_similarity_is_invariant_to_rotation():
    """W_U ("out") is the tied matrix ("tied"), rotated, so their similarity is 1.

    W_E ("in") is independent of both.
    """
    model = random_model(replace(UNTIED, vocab_size=211), dtype=np.float64)
    tied_W_E = np.random.default_rng(1).standard_normal(model.W_E.shape)
    some_square_matrix = model.W_E[: SMALL.n_embd]
    rotation, _ = np.linalg.qr(some_square_matrix)
    model.parameters["lm_head.weight"][:] = tied_W_E @ rotation
    report = embeddings.embeddings(model, tied_W_E=tied_W_E)
    assert report["out_tied"] == pytest.approx(1)
    assert abs(report["in_tied"]) < 0.05
    assert report["in_out"] == pytest.approx(report["in_tied"])


def test_similarity_of_a_tied_model(model):
    """No tied matrix of another model is given, so that its similarities are None."""
    report = embeddings.embeddings(model, some_corpus())
    assert report["in_out"] == pytest.approx(1), "W_U is the transposed W_E"
    assert report["tokens"] == len(some_corpus().frequent(1))
    assert report["in_tied"] is None
    assert report["out_tied"] is None


def test_all_tokens_of_a_small_vocabulary_are_compared():
    assert embeddings.sampled_tokens(5).tolist() == [0, 1, 2, 3, 4]


def test_only_tokens_of_the_corpus_are_compared():
    assert embeddings.sampled_tokens(5, Corpus.of([3, 1, 3], 5)).tolist() == [1, 3]


def test_2048_tokens_of_a_large_vocabulary_are_compared():
    tokens = embeddings.sampled_tokens(50257).tolist()
    assert len(tokens) == 2048
    assert tokens == sorted(set(tokens))
    assert tokens == embeddings.sampled_tokens(50257).tolist()


def test_a_sample_of_the_tokens_of_a_large_corpus_is_compared(monkeypatch):
    """It is always the same one."""
    monkeypatch.setattr(embeddings, "MAX_TOKENS", 4)
    in_corpus = np.arange(60, 80)
    tokens = embeddings.sampled_tokens(V, Corpus.of(in_corpus, V))
    expected = np.random.default_rng(0).choice(in_corpus, 4, replace=False)
    assert tokens.tolist() == sorted(expected.tolist())


def test_the_tokens_of_a_corpus_are_compared_in_all_matrices():
    model = random_model(UNTIED)
    tied_W_E = random_model(seed=5).W_E
    tokens = [3, 57, 98, 99, 100]
    report = embeddings.embeddings(model, Corpus.of(tokens, V), tied_W_E)
    rows = {"in": model.W_E, "out": model.W_U.T, "tied": tied_W_E}
    cosines = {name: embeddings.cosines(matrix[tokens]) for name, matrix in rows.items()}
    assert report == {
        "in_out": embeddings.spearman(cosines["in"], cosines["out"]),
        "in_tied": embeddings.spearman(cosines["in"], cosines["tied"]),
        "out_tied": embeddings.spearman(cosines["out"], cosines["tied"]),
        "tokens": 5,
    }


@each_head
def test_the_lens_of_a_layer_predicts_as_a_model_that_ends_with_this_layer(head):
    model = random_model(SMALL.with_head(head), dtype=np.float64)
    layers = predictions.lens(model, TOKENS, k=4)
    assert [layer.name for layer in layers] == ["resid_pre.0", "resid_post.0", "resid_post.1"]
    for n_layer, layer in enumerate(layers):
        logits = first_layers(model, n_layer)(TOKENS)
        likeliest = np.argsort(-logits, axis=1)[:, :4]
        np.testing.assert_array_equal(layer.tokens, likeliest)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected = np.take_along_axis(p, likeliest, axis=1)
        np.testing.assert_allclose(layer.probabilities, expected, rtol=1e-9)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_lens_of_the_last_two_tokens_has_the_last_two_rows_of_a_whole_lens(
    model, monkeypatch, threads
):
    """The threads compute the logits of four rows at a time."""
    rows_at_once = 4
    monkeypatch.setattr(evaluation, "split_work", lambda **_: (threads, rows_at_once))
    whole_lens = predictions.lens(model, TOKENS, 3)
    read = []
    last_tape = predictions.last_tape

    def recording_tape(model, ids, n):
        read.append(n)
        return last_tape(model, ids, n)

    monkeypatch.setattr(predictions, "last_tape", recording_tape)
    short_lens = predictions.lens(model, TOKENS, 3, last=2)
    assert read == [2], "the activations of other tokens take memory"
    for whole, short in zip(whole_lens, short_lens, strict=True):  # layer by layer
        assert whole.name == short.name
        np.testing.assert_array_equal(whole.tokens[-2:], short.tokens)
        np.testing.assert_allclose(whole.probabilities[-2:], short.probabilities, rtol=1e-5)


def test_a_lens_has_no_more_tokens_than_the_vocabulary():
    """Five are asked for, of three."""
    model = GPT2.random(replace(SMALL, n_layer=0, vocab_size=3))
    (layer,) = predictions.lens(model, [0, 2], k=5)
    assert layer.tokens.shape == (2, 3)
    assert layer.probabilities.shape == (2, 3)


def test_by_default_a_lens_has_the_five_likeliest_tokens(model):
    assert {layer.tokens.shape for layer in predictions.lens(model, [0, 2])} == {(2, 5)}


def test_the_twelve_layers_of_a_model_are_in_their_order():
    model = random_model(replace(SMALL, n_layer=12), dtype=np.float64)
    names = [layer.name for layer in predictions.lens(model, TOKENS, k=1)]
    assert names == ["resid_pre.0", *(f"resid_post.{layer}" for layer in range(12))]
    parts = predictions.attribute(model, TOKENS, token=7)
    assert sum(parts.values()) == pytest.approx(model(TOKENS)[-1, 7])
    heads = [name for name in parts if name.endswith(".head.1")]
    assert heads == [f"attn.{layer}.head.1" for layer in range(12)]
    last = ["attn.10", "attn.11.head.1", "mlp.11"]
    assert list(predictions.ablation(model.config, last)) == [
        "attn.10.out",
        "attn.11.heads",
        "mlp.11.out",
    ]


def mean_loss(logits, targets) -> float:  # [N, V], [N]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return np.mean([-np.log(row[target]) for row, target in zip(p, targets, strict=True)])


def test_losses_of_an_untied_model_with_its_own_head_and_with_the_tied_head():
    model = random_model(UNTIED, dtype=np.float64)
    ids = some_corpus().ids[:30]
    report = losses(model, ids)
    final = model.final(ids[:-1])
    assert report["own"] == pytest.approx(mean_loss(final @ model.W_U, ids[1:]), rel=1e-9)
    assert report["swapped"] == pytest.approx(mean_loss(final @ model.W_E.T, ids[1:]), rel=1e-9)
    assert report["tokens"] == 29, "all but the first one"
    assert report["uniform"] == pytest.approx(math.log(V))


def test_losses_of_a_tied_model_have_no_swapped_head():
    """Its own head is the swapped head of the untied model that is tied here."""
    model = random_model(UNTIED, dtype=np.float64)
    ids = some_corpus().ids[:30]
    untied_report = losses(model, ids)
    report = losses(model.tie(), ids)
    assert report["own"] == pytest.approx(untied_report["swapped"])
    assert report["swapped"] is None
    assert report["tokens"] == 29
    assert report["uniform"] == untied_report["uniform"]


def test_losses_report_the_tokens_once_for_each_head():
    """An untied model has two: its own head and the tied head."""
    tokens_read = []  # the numbers of tokens that are reported
    losses(random_model(UNTIED), some_corpus().ids[:30], tokens_read.append)
    assert sum(tokens_read) == 2 * 30


def test_one_token_has_no_losses(model):
    assert losses(model, np.array([5])) is None
    assert losses(random_model(replace(SMALL, n_ctx=1)), np.array([5, 7])) is None


def test_of_a_short_text_at_most_the_last_40_tokens_are_read(monkeypatch):
    """A text of 300 tokens is short, because its last tenth has fewer than 40."""
    monkeypatch.setattr("tiedgpt.study.reports.MAX_LOSS_TOKENS", 40)
    assert end_of_text(np.arange(30), n_ctx=8).tolist() == list(range(30))
    assert end_of_text(np.arange(300), n_ctx=8).tolist() == list(range(260, 300))
    assert end_of_text(np.arange(300), n_ctx=7).tolist() == list(range(260, 300))


def test_a_loss_is_measured_on_the_last_16384_tokens():
    assert end_of_text(np.arange(20_000), n_ctx=7).tolist() == list(range(20_000 - 16_384, 20_000))


def test_of_a_long_text_windows_of_its_last_tenth_are_read(monkeypatch):
    """At most 40 tokens are read: five windows of eight tokens."""
    monkeypatch.setattr("tiedgpt.study.reports.MAX_LOSS_TOKENS", 40)
    end = end_of_text(np.arange(1000), n_ctx=8)
    assert end.shape == (40,)
    windows = end.reshape(5, 8)
    for window in windows:
        first = window[0]
        assert window.tolist() == list(range(first, first + 8))
    # The first window begins at 900, with the last tenth; the last one ends with the text, at 1000.
    starts = windows[:, 0].tolist()
    assert starts == [900, 923, 946, 969, 992], "evenly spread"
    # A context of more than 40 tokens is one window.
    assert end_of_text(np.arange(1000), n_ctx=64).tolist() == list(range(900, 964))


def test_logits_that_are_not_finite_are_an_error(model):
    model.parameters["h.0.mlp.c_fc.bias"][0] = np.nan
    for read in (
        lambda: losses(model, TOKENS),
        lambda: predictions.lens(model, TOKENS),
        lambda: predictions.next_tokens([model], TOKENS, k=2),
        lambda: predictions.next_tokens([random_model(), model], TOKENS, k=2),
        lambda: predictions.token_predictions(model, TOKENS, stride=1, k=2),
    ):
        with pytest.raises(TiedGPTError, match=r"logits are not finite numbers: .* damaged"):
            read()


def test_a_loss_that_is_not_finite_is_an_error():
    model = random_model(UNTIED)
    logits = model([0])[-1]
    unlikeliest = int(logits.argmin())
    # All logits are finite, at most 3e38, but float32 cannot hold the highest minus the lowest.
    model.parameters["lm_head.weight"] *= 3e38 / np.abs(logits).max()
    message = "^the loss is not a finite number: the model's checkpoint is damaged$"
    with np.errstate(over="ignore"), pytest.raises(TiedGPTError, match=message):
        losses(model, np.array([0, unlikeliest]))
