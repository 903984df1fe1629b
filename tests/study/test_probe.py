"""What the tables know of a text, and which MLP makes the bigrams: against plain computations."""

from dataclasses import replace

import numpy as np
import pytest
from support.checks import refuses
from support.models import SMALL, random_model, some_corpus

from tiedgpt import GPT2
from tiedgpt.errors import TiedGPTError
from tiedgpt.study import bigrams, embeddings, paths
from tiedgpt.study.corpus import Corpus

V = 130
CONFIG = replace(SMALL, vocab_size=V)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """120 frequent tokens; each has five common successors, which are near it in a circle."""
    rng = np.random.default_rng(0)
    steps = rng.choice([1, 2, 3, 4, 5, 60], 40_000, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1])
    return Corpus.of(np.cumsum(steps) % 120, V)


def with_tables(W_E: np.ndarray, W_U: np.ndarray | None = None) -> GPT2:
    """A model with these tables, [V, D] each."""
    config = replace(CONFIG, n_embd=W_E.shape[1], n_head=1)
    if W_U is not None:
        config = config.with_head("untied")
    parameters = dict(random_model(config).parameters)
    parameters["wte.weight"] = W_E.astype(np.float32)
    if W_U is not None:
        parameters["lm_head.weight"] = W_U.astype(np.float32)
    return GPT2(config, parameters)


def known_tables(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Rows that are the components of the successors, and those of the predecessors: [V, 20]."""
    tokens = corpus.by_count()
    seen = corpus.frequent(min_count=1)
    tables = []
    for counts in (corpus.table(tokens, seen), corpus.table(seen, tokens).T):
        table = np.zeros((V, embeddings.COMPONENTS))
        table[tokens] = embeddings.components(counts)
        tables.append(table)
    return tables[0], tables[1]


def test_a_table_that_holds_the_answer_knows_it_and_random_rows_do_not(corpus):
    successors, predecessors = known_tables(corpus)
    report = embeddings.knowledge(with_tables(successors, predecessors), corpus)
    assert report["W_E"]["successors"]["by_penalty"]["3"] > 0.98
    assert report["W_U"]["predecessors"]["by_penalty"]["3"] > 0.98
    for thing in ("successors", "predecessors"):
        assert report["random"][thing]["r2"] < 0.1
        assert report["counts"][thing]["r2"] < 0.1
        for table in report.values():
            assert table[thing]["low"] < table[thing]["r2"] < table[thing]["high"]
            assert table[thing]["by_penalty"]["30"] == table[thing]["r2"]
            assert list(table[thing]["by_penalty"]) == ["3", "30", "300"]

    shuffled = np.random.default_rng(0).permutation(V)
    report = embeddings.knowledge(with_tables(successors[shuffled]), corpus)
    assert report["W_E"]["successors"]["r2"] < 0.1
    assert "W_U" not in report  # of a tied model


def test_the_rows_of_the_text_read_backwards_change_places(corpus):
    model = random_model(CONFIG)
    backwards = Corpus.of(corpus.ids[::-1], V)
    forwards, reverse = embeddings.knowledge(model, corpus), embeddings.knowledge(model, backwards)
    for name in ("W_E", "counts"):
        assert reverse[name]["successors"]["r2"] == pytest.approx(
            forwards[name]["predecessors"]["r2"], abs=1e-3
        )


def test_the_components_are_those_of_a_singular_value_decomposition():
    counts = np.random.default_rng(0).integers(0, 5, (60, 90))
    roots = np.sqrt(counts / counts.sum(axis=1, keepdims=True))
    U, S, _ = np.linalg.svd(roots - roots.mean(axis=0), full_matrices=False)
    expected = (U * S)[:, : embeddings.COMPONENTS]
    found = embeddings.components(counts)
    signs = np.sign((found * expected).sum(axis=0))  # a component may point either way
    np.testing.assert_allclose(found * signs, expected, atol=1e-9)


def test_each_token_is_predicted_by_the_others():
    """By a ridge regression with a constant column, whose weight has no penalty."""
    rng = np.random.default_rng(0)
    rows, Y = rng.normal(size=(40, 3)), rng.normal(size=(40, 2))
    folds = np.array_split(rng.permutation(40), 4)
    found = embeddings.predicted(rows, Y, folds, penalty=7.0)
    X = np.column_stack([(rows - rows.mean(axis=0)) / rows.std(axis=0), np.ones(40)])
    for fold in folds:
        rest = np.setdiff1d(np.arange(40), fold)
        ridge = X[rest].T @ X[rest] + np.diag([7.0, 7.0, 7.0, 0.0])
        weights = np.linalg.solve(ridge, X[rest].T @ Y[rest])
        np.testing.assert_allclose(found[fold], X[fold] @ weights, atol=1e-9)


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_what_a_table_knows_is_the_share_of_the_variance_that_it_predicts(shift):
    """Of each thing by itself, by its own columns. A number that is added changes nothing."""
    rng = np.random.default_rng(0)
    n, C = 40, embeddings.COMPONENTS
    rows = rng.normal(size=(n, 3))
    folds = np.array_split(rng.permutation(n), 4)
    linear = rows @ rng.normal(size=(3, C))
    targets = {"known": linear + 0.5 * rng.normal(size=(n, C)), "unknown": rng.normal(size=(n, C))}
    targets = {thing: target + shift for thing, target in targets.items()}
    report = embeddings.probe(rows, targets, folds)
    assert embeddings.probe(rows, targets, folds) == report, "the interval is always the same"
    for thing, target in targets.items():
        for penalty in embeddings.PENALTIES:
            answer = embeddings.predicted(rows, target, folds, penalty)
            left = ((target - answer) ** 2).sum()
            all_of_it = ((target - target.mean(axis=0)) ** 2).sum()
            share = 1 - left / all_of_it
            assert report[thing]["by_penalty"][str(penalty)] == pytest.approx(share)
    assert report["known"]["r2"] > 0.3 > report["unknown"]["r2"]
    # Of 1000 samples of the tokens, 95 % are in the interval.
    known = targets["known"]
    errors = (
        (known - embeddings.predicted(rows, known, folds, embeddings.MIDDLE_PENALTY)) ** 2
    ).sum(1)
    total = ((known - known.mean(axis=0)) ** 2).sum(1)
    drawn = np.random.default_rng(1).integers(0, n, (4000, n))
    shares = 1 - errors[drawn].sum(1) / total[drawn].sum(1)
    low, high = report["known"]["low"], report["known"]["high"]
    assert 0.935 < ((low <= shares) & (shares <= high)).mean() < 0.965


def test_the_components_of_rows_that_differ_in_one_direction():
    """The other components are 0, not the root of a number below 0 by rounding."""
    rng = np.random.default_rng(0)
    found = embeddings.components(rng.integers(1, 9, (2, 50))[[0, 1] * 15])
    assert found.shape == (30, embeddings.COMPONENTS)
    np.testing.assert_allclose(found[:, 1:], 0, atol=1e-6)


def test_a_column_that_is_the_same_for_all_tokens_changes_nothing():
    rng = np.random.default_rng(0)
    rows, Y = rng.normal(size=(40, 3)), rng.normal(size=(40, 2))
    folds = np.array_split(rng.permutation(40), 4)
    constant = np.column_stack([rows, np.full(40, 5.0)])
    np.testing.assert_allclose(
        embeddings.predicted(constant, Y, folds, 7.0),
        embeddings.predicted(rows, Y, folds, 7.0),
        atol=1e-9,
    )


def test_what_is_known_of_the_most_frequent_tokens_by_tenths_of_them(corpus, monkeypatch):
    """The controls have the width of the model, and the logarithm of each token's count."""
    monkeypatch.setattr(embeddings, "MAX_PROBED", 110)
    probed = []
    probe = embeddings.probe

    def recording_probe(rows, targets, folds):
        probed.append((rows, folds))
        return probe(rows, targets, folds)

    monkeypatch.setattr(embeddings, "probe", recording_probe)
    model = random_model(CONFIG)
    report = embeddings.knowledge(model, corpus)
    tokens = corpus.by_count()[:110]
    rows = dict(zip(report, [rows for rows, _ in probed], strict=True))
    np.testing.assert_array_equal(rows["W_E"], model.W_E[tokens])
    assert rows["random"].shape == (110, CONFIG.n_embd)
    normal = np.random.default_rng(0).normal(size=(110, CONFIG.n_embd))  # always the same
    np.testing.assert_array_equal(rows["random"], normal)
    np.testing.assert_allclose(rows["counts"][:, 0], np.log(corpus.counts[tokens]))
    for _, folds in probed:
        assert [len(fold) for fold in folds] == [11] * 10
        assert sorted(np.concatenate(folds)) == list(range(110))


@pytest.mark.parametrize(("size", "is_enough"), [(99, False), (100, True)])
def test_a_hundred_frequent_tokens_are_enough(size, is_enough):
    text = Corpus.of(np.random.default_rng(0).permutation(np.repeat(np.arange(size), 100)), V)
    assert (embeddings.knowledge(random_model(CONFIG), text) is not None) == is_enough


def test_too_few_frequent_tokens_have_no_report():
    assert some_corpus().frequent().size < embeddings.MIN_PROBED
    assert embeddings.knowledge(random_model(SMALL), some_corpus()) is None


@pytest.mark.parametrize(("name", "number"), [("W_E", np.nan), ("W_U", -np.inf)])
def test_a_damaged_table_is_refused(corpus, name, number):
    tables = {"W_E": np.ones((V, 4)), "W_U": np.ones((V, 4))}
    tables[name][0, 0] = number
    message = f"^{name} is not finite: the checkpoint is damaged$"
    refuses(message, embeddings.knowledge, with_tables(**tables), corpus, error=TiedGPTError)


# ---- The MLPs ----


@pytest.fixture(scope="module")
def model() -> GPT2:
    return random_model(replace(CONFIG, n_layer=3))


def test_the_distances_are_those_of_the_paths(model, corpus):
    tokens = corpus.by_count()
    numbers = bigrams.mlp_numbers(model, corpus)
    assert numbers["tokens"] == tokens.size

    def nats(logits):
        return pytest.approx(bigrams.nats_from_bigrams(logits, tokens, corpus), abs=1e-5)

    assert numbers["table"] == nats(paths.normed(model, tokens))
    assert numbers["first_alone"] == numbers["alone"][0] == nats(paths.mlp0(model, tokens))
    assert numbers["model"] == nats(paths.whole_model(model, tokens))
    for layer in range(3):
        # An MLP whose output matrix and bias are 0 adds nothing.
        parameters = {name: np.array(array) for name, array in model.parameters.items()}
        parameters[f"h.{layer}.mlp.c_proj.weight"][...] = 0
        parameters[f"h.{layer}.mlp.c_proj.bias"][...] = 0
        without = GPT2(model.config, parameters)
        assert numbers["without"][layer] == nats(paths.whole_model(without, tokens))
        # A model whose only layer is this one
        alone = {name: array for name, array in model.parameters.items() if "h." not in name}
        alone |= {
            name.replace(f"h.{layer}.", "h.0."): array
            for name, array in model.parameters.items()
            if name.startswith(f"h.{layer}.")
        }
        one_layer = GPT2(replace(model.config, n_layer=1), alone)
        assert numbers["alone"][layer] == nats(paths.mlp0(one_layer, tokens))
    assert numbers["other_alone"] == min(numbers["alone"][1:])
    assert numbers["without_other"] == max(numbers["without"][1:])


@pytest.mark.parametrize("others", [[3.0, 4.0], [4.0, 3.0]])
def test_the_best_of_the_other_mlps_may_be_any(model, corpus, monkeypatch, others):
    """Alone the lowest of their distances counts, and without one of them the highest."""
    nats = iter([1.0, *others, 9.0, *others, 5.0, 6.0])  # alone, without, the table, the model
    monkeypatch.setattr(bigrams, "nats_from_bigrams", lambda *_: next(nats))
    numbers = bigrams.mlp_numbers(model, corpus)
    assert numbers == {
        "tokens": 120,
        "table": 5.0,
        "first_alone": 1.0,
        "other_alone": 3.0,
        "model": 6.0,
        "without_first": 9.0,
        "without_other": 4.0,
        "alone": [1.0, *others],
        "without": [9.0, *others],
    }


def test_nats_are_0_for_the_bigrams_and_whatever_their_scale(corpus):
    tokens = corpus.by_count()
    counts = corpus.table(tokens, np.arange(V)) + 1e-9
    logits = 3 * np.log(counts / counts.sum(axis=1, keepdims=True))
    assert bigrams.nats_from_bigrams(logits, tokens, corpus) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("layers", [0, 1])
def test_a_model_with_one_layer_or_none(layers, corpus):
    numbers = bigrams.mlp_numbers(random_model(replace(CONFIG, n_layer=layers)), corpus)
    if layers == 0:
        assert numbers is None
    else:
        assert numbers["other_alone"] is None
        assert numbers["without_other"] is None
        assert len(numbers["alone"]) == len(numbers["without"]) == 1


def test_progress_counts_the_paths(model, corpus):
    done = []
    bigrams.mlp_numbers(model, corpus, done.append)
    assert sum(done) == 2 * model.config.n_layer + 2  # which reports.py says before


def test_the_scores_of_a_large_vocabulary_fit_into_memory(model, corpus, monkeypatch):
    """So the distances are those of the most frequent tokens only."""
    corpus = Corpus.of(np.append(corpus.ids, range(120, 129)), V)  # nine tokens are rare
    seen = corpus.frequent(min_count=1).size
    assert seen == 129
    monkeypatch.setattr(bigrams, "MAX_SCORES", 30 * seen)
    numbers = bigrams.mlp_numbers(model, corpus)
    tokens = corpus.by_count()[:30]
    nats = bigrams.nats_from_bigrams(paths.normed(model, tokens), tokens, corpus)
    assert (numbers["tokens"], numbers["table"]) == (30, nats)
