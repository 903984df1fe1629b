"""scripts/bigram.py: its gradients, its losses, its training, and the tables that it prints.

A form computes a table of scores [V, V] from its weights. The score [i, j] says how well token j
follows token i. There are four forms: W_E W_E^T, which is tied; ln_f(W_E) W_E^T and
(W_E + MLP(W_E)) W_E^T, which are tied, too; and W_E W_U, which is untied. `pairs` [V, V] has the
share of each pair of neighbours among all pairs of a text, with a row for each first token.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import bigram  # of scripts/
import numpy as np
import pytest
from support.models import SMALL

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.gpt2.ops import gelu_new, layer_norm
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.paths import asymmetry, jsd_floor
from tiedgpt.study.solved import fit_softmax

WEIGHTS = Path(__file__).resolve().parents[2] / "weights"
TIED, LN_F, MLP, UNTIED = bigram.FORMS
NAME_WIDTH = 24  # each row that bigram.py prints begins with a name, padded to 24 characters
TEXT = "Yes, my lord. No, my lord. O my lord, O my king! The lord is my king. " * 3


each_form = pytest.mark.parametrize("form", bigram.FORMS, ids=["tied", "ln_f", "mlp", "untied"])


def some_pairs(V=7, seed=0):
    """The shares of the pairs of neighbours in a random text of 4 V tokens. Most shares are 0.

    Each token occurs in the text. The first token counts as the successor of the last one.
    """
    text = np.random.default_rng(seed).integers(0, V, 4 * V)
    text[:V] = np.arange(V)
    successors = np.roll(text, -1)
    pairs = np.zeros((V, V))
    np.add.at(pairs, (text, successors), 1)
    return pairs / pairs.sum()


def some_weights(form, V=7, D=3, seed=1):
    """Random weights of a form: those with which its training starts, and noise added to each.

    Without the noise, all biases would be 0 and all gains 1.
    """
    rng = np.random.default_rng(seed)
    weights = form.start(V, D, rng)
    return {
        name: weight + 0.5 * rng.standard_normal(weight.shape) for name, weight in weights.items()
    }


@pytest.fixture
def run_bigram(run_script):
    """run_bigram(*arguments) -> (exit code, stdout, stderr): runs bigram.py in this process."""
    return partial(run_script, bigram)


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


# ---- The gradients ----


@each_form
def test_the_gradients_equal_central_differences(form):
    pairs = some_pairs()
    weights = some_weights(form)
    dscores = bigram.loss_gradient(pairs, form.scores(**weights))
    gradients = form.gradients(dscores, **weights)
    assert gradients.keys() == weights.keys()

    def loss_with(name, place, change):
        """The loss after `change` is added to the number of a weight at `place`."""
        changed = {**weights, name: weights[name].copy()}
        changed[name][place] += change
        return bigram.loss(pairs, form.scores(**changed))

    step = 1e-5
    for name, weight in weights.items():
        for place in np.ndindex(weight.shape):
            loss_above = loss_with(name, place, step)
            loss_below = loss_with(name, place, -step)
            difference = (loss_above - loss_below) / (2 * step)
            assert gradients[name][place] == pytest.approx(difference, abs=1e-8), (name, place)


def test_the_gradient_of_the_tied_matrix_is_the_sum_of_those_of_both_untied_matrices():
    pairs = some_pairs()
    W_E = some_weights(TIED)["W_E"]
    dscores = bigram.loss_gradient(pairs, W_E @ W_E.T)
    untied = UNTIED.gradients(dscores, W_E=W_E, W_U=W_E.T)
    expected = untied["W_E"] + untied["W_U"].T
    gradient = TIED.gradients(dscores, W_E)["W_E"]
    np.testing.assert_allclose(gradient, expected, atol=1e-14)


# ---- The scores and the losses ----


def model_without_layers(weights):
    """The package's GPT-2 with the weights of the form with ln_f.

    It has no layers, and its position embedding is 0.
    """
    V, D = weights["W_E"].shape
    config = replace(SMALL, vocab_size=V, n_embd=D, n_head=1, n_inner=4 * D, n_layer=0, n_ctx=1)
    parameters = {
        "wte.weight": weights["W_E"],
        "wpe.weight": np.zeros((1, D)),
        "ln_f.weight": weights["weight"],
        "ln_f.bias": weights["bias"],
    }
    return GPT2(config, parameters)


def logits_after_each_token(model):  # -> [V, V]
    """Each token is the whole text before its logits."""
    texts_of_one_token = np.arange(model.config.vocab_size)[:, None]
    logits = model(texts_of_one_token)  # [V, 1, V]
    return logits[:, 0]


def test_the_scores_of_the_form_with_ln_f_are_the_logits_of_a_tied_gpt2_without_layers():
    weights = some_weights(LN_F)
    logits = logits_after_each_token(model_without_layers(weights))
    np.testing.assert_allclose(LN_F.scores(**weights), logits, atol=1e-12)


def test_the_loss_is_the_mean_cross_entropy_of_the_packages_logits():
    text = np.random.default_rng(0).integers(0, 7, 50)
    counts = bigram.count_pairs(text, 7)
    pairs = counts / counts.sum()
    model = model_without_layers(some_weights(LN_F))
    losses = []
    for first, second in pairwise(text):
        logits = model([first])[0]
        losses.append(np.log(np.exp(logits).sum()) - logits[second])
    scores = logits_after_each_token(model)
    assert bigram.loss(pairs, scores) == pytest.approx(np.mean(losses), rel=1e-12)


def test_the_bigram_loss_is_reached_by_the_log_shares_and_by_no_changed_table():
    pairs = some_pairs() + 1e-3  # so that no share is 0, and each has a logarithm
    pairs /= pairs.sum()
    log_shares = np.log(pairs)
    assert bigram.loss(pairs, log_shares) == pytest.approx(bigram.bigram_loss(pairs), rel=1e-12)
    rng = np.random.default_rng(0)
    for size in (1e-3, 0.1, 1):
        changed_table = log_shares + size * rng.standard_normal(pairs.shape)
        assert bigram.loss(pairs, changed_table) > bigram.bigram_loss(pairs)


def test_the_losses_of_the_shipped_text_are_its_entropies():
    """The entropy of a token is 3.61 nats if the token before it is known, and 5.76 nats if not.

    The shipped text is Shakespeare's plays. The test computes both from the package's own counts.
    """
    corpus = Corpus.read(WEIGHTS / "shakespeare-bigrams.npz")
    vocab_size = 1024
    surprises = []  # for each first token: -log P(second | first), summed over its pairs
    second_counts = np.zeros(vocab_size)  # how often each token is the second of a pair
    for token in range(vocab_size):
        successors, counts = corpus.row(token)
        second_counts[successors] += counts
        surprises.append(-(counts * np.log(counts / counts.sum())).sum())
    total = corpus.pair_counts.sum()
    entropy_after_a_token = sum(surprises) / total
    shares = second_counts[second_counts > 0] / total
    entropy_of_counts = -(shares * np.log(shares)).sum()

    counts, texts = bigram.read_bigrams(None)
    pairs = counts / counts.sum()
    assert len(texts) == 808  # so many of the 1,024 tokens occur in the plays
    assert bigram.bigram_loss(pairs) == pytest.approx(entropy_after_a_token, rel=1e-12)
    assert bigram.count_loss(pairs) == pytest.approx(entropy_of_counts, rel=1e-12)
    assert f"{bigram.bigram_loss(pairs):.2f}" == "3.61"
    assert f"{bigram.count_loss(pairs):.2f}" == "5.76"


def test_the_counts_of_a_text_equal_those_of_the_package(text_file):
    counts, texts = bigram.read_bigrams(text_file)
    tokenizer = tiedgpt.load_tokenizer(WEIGHTS / "shakespeare-tied")
    corpus = Corpus.of(tokenizer.encode(TEXT), tokenizer.vocab_size)
    present = corpus.frequent(1)  # the tokens that occur once or more
    assert texts == [tokenizer.decode([token]) for token in present]
    np.testing.assert_array_equal(counts, corpus.table(present, present))


# ---- The training ----


@each_form
def test_after_training_the_loss_is_between_those_of_the_bigrams_and_of_the_token_counts(form):
    pairs = some_pairs(V=12)
    losses = []
    for seed in range(2):
        weights = bigram.train(form, pairs, D=5, seed=seed)
        losses.append(bigram.loss(pairs, form.scores(**weights)))
    assert losses[0] != losses[1], "another seed gives other weights"
    for loss in losses:
        assert loss >= bigram.bigram_loss(pairs)
        assert loss < bigram.count_loss(pairs)


def test_training_does_the_steps_of_adam(monkeypatch):
    """Both betas are 0.9. The learning rates of three steps are 3/3, 2/3 and 1/3 of FIRST_RATE."""
    monkeypatch.setattr(bigram, "STEPS", 3)
    pairs = some_pairs()
    W_E = TIED.start(7, 3, np.random.default_rng(0))["W_E"]
    m = np.zeros((7, 3))
    v = np.zeros((7, 3))
    for t in (1, 2, 3):
        dscores = bigram.loss_gradient(pairs, W_E @ W_E.T)
        g = TIED.gradients(dscores, W_E)["W_E"]
        m = 0.9 * m + 0.1 * g
        v = 0.9 * v + 0.1 * g**2
        m_corrected = m / (1 - 0.9**t)
        v_corrected = v / (1 - 0.9**t)
        steps_left = 3 - (t - 1)
        rate = bigram.FIRST_RATE * steps_left / 3
        W_E = W_E - rate * m_corrected / np.sqrt(v_corrected)
    trained = bigram.train(TIED, pairs, D=3, seed=0)
    np.testing.assert_allclose(trained["W_E"], W_E, atol=1e-9)


def test_with_as_many_dimensions_as_tokens_the_untied_form_learns_the_bigrams():
    V = 12
    pairs = some_pairs(V)
    weights = bigram.train(UNTIED, pairs, D=V, seed=0)
    loss = bigram.loss(pairs, UNTIED.scores(**weights))
    assert loss == pytest.approx(bigram.bigram_loss(pairs), abs=0.01)


def test_only_the_symmetric_form_stays_above_the_least_loss_of_symmetric_tables():
    """W_E W_E^T is symmetric. The loss of a symmetric table is at least `least_loss`.

    This is the loss of the bigrams plus the Jensen-Shannon divergence of the pairs and the reversed
    pairs.
    """
    V = 12
    pairs = some_pairs(V)
    first, second = np.nonzero(pairs)  # in the order of the first token
    corpus = Corpus(
        ids=np.empty(0),  # jsd_floor does not need them
        counts=pairs.sum(axis=1),
        starts=np.searchsorted(first, np.arange(V + 1)),  # where the pairs of each token begin
        successors=second,
        pair_counts=pairs[first, second],
    )
    least_loss = bigram.bigram_loss(pairs) + jsd_floor(corpus)
    assert least_loss > bigram.bigram_loss(pairs) + 0.1
    losses = {}
    for form in bigram.FORMS:
        weights = bigram.train(form, pairs, D=V, seed=0)
        losses[form.name] = bigram.loss(pairs, form.scores(**weights))
    loss_of_symmetric_form = losses.pop(TIED.name)
    losses_of_other_forms = losses.values()
    assert loss_of_symmetric_form > least_loss
    assert max(losses_of_other_forms) < least_loss


def first_factor(form, weights):  # -> [V, D]
    """The matrix that a form multiplies by W_E^T or W_U, computed by the package's functions."""
    W_E = weights["W_E"]
    if form is LN_F:
        return layer_norm(W_E, weights["weight"], weights["bias"], eps=1e-5)
    if form is MLP:
        hidden = gelu_new(W_E @ weights["W_fc"] + weights["b_fc"])
        return W_E + hidden @ weights["W_proj"] + weights["b_proj"]
    return W_E


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "least", "most"),  # nats
    [
        pytest.param(TIED, 0.4, 1.0, id="tied"),
        pytest.param(LN_F, 0.02, 0.2, id="ln_f"),
        pytest.param(MLP, 0.0, 0.05, id="mlp"),
        pytest.param(UNTIED, 0.0, 0.01, id="untied"),
    ],
)
def test_how_much_the_loss_of_each_form_falls_if_its_output_matrix_is_replaced_by_the_best(
    form, least, most
):
    """The form learns its weights from the shipped text. Then fit_softmax fits the output matrix.

    fit_softmax gives each row of the table the same weight. So here every token is the first token
    of an equal share of the pairs.
    """
    corpus = Corpus.read(WEIGHTS / "shakespeare-bigrams.npz")
    tokens = corpus.frequent(300)  # those that occur 300 times or more
    probabilities = corpus.table(tokens, tokens).astype(np.float64)
    probabilities /= probabilities.sum(axis=1, keepdims=True)  # of each token after each token
    pairs = probabilities / len(tokens)
    weights = bigram.train(form, pairs, D=32, seed=0)
    scores = form.scores(**weights)
    x = first_factor(form, weights)
    W_U = weights.get("W_U", weights["W_E"].T)  # a tied form has W_E alone
    np.testing.assert_allclose(x @ W_U, scores, atol=1e-9)
    best_W_U = fit_softmax(x, probabilities, W_U, steps=1_000)
    fall = bigram.loss(pairs, scores) - bigram.loss(pairs, x @ best_W_U)
    assert least <= fall <= most


def rows_of_losses(out):
    """The table of losses, which bigram.py prints first: {name of a row: the cells after it}."""
    n_rows = 2 + len(bigram.FORMS)  # the bigrams, the token counts, and each form
    _header, *rows = out.splitlines()[: 1 + n_rows]
    return {name_of_row(row): cells_after_the_name(row) for row in rows}


def name_of_row(line):
    return line[:NAME_WIDTH].strip()


def cells_after_the_name(line):
    return line[NAME_WIDTH:].split()


def torch_scores(torch, form, weights):
    """The scores of a form, computed by torch's functions."""
    W_E = weights["W_E"]
    if form is UNTIED:
        return W_E @ weights["W_U"]
    x = W_E
    if form is LN_F:
        x = torch.nn.functional.layer_norm(W_E, W_E.shape[1:], weights["weight"], weights["bias"])
    if form is MLP:
        before_gelu = W_E @ weights["W_fc"] + weights["b_fc"]
        hidden = torch.nn.functional.gelu(before_gelu, approximate="tanh")
        x = W_E + hidden @ weights["W_proj"] + weights["b_proj"]
    return x @ W_E.T


@pytest.mark.slow
@each_form
def test_training_with_torch_gives_the_same_scores(form, monkeypatch):
    """Both trainings have the same start and the same learning rates.

    torch computes its own gradients, and has its own Adam.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    # Several threads would wait for each other in a loop: for minutes, if the machine is busy.
    torch.set_num_threads(1)
    monkeypatch.setattr(bigram, "STEPS", 60)
    counts, _ = bigram.read_bigrams(None)
    pairs = torch.from_numpy(counts / counts.sum())
    D = 64
    start = form.start(len(pairs), D, np.random.default_rng(0))
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    optimizer = torch.optim.Adam(tensors.values(), betas=(0.9, 0.9), eps=1e-12)
    for step in range(bigram.STEPS):
        optimizer.param_groups[0]["lr"] = bigram.FIRST_RATE * (1 - step / bigram.STEPS)
        optimizer.zero_grad()
        scores = torch_scores(torch, form, tensors)
        loss = -(pairs * torch.log_softmax(scores, dim=1)).sum()
        loss.backward()
        optimizer.step()
    expected = torch_scores(torch, form, tensors).detach().numpy()

    weights = bigram.train(form, counts / counts.sum(), D, seed=0)
    np.testing.assert_allclose(form.scores(**weights), expected, atol=1e-3)


# ---- What is printed ----


def test_the_asymmetry_of_scores_equals_that_of_the_package():
    """The package computes it from W_E and W_U, the script from the table W_E W_U."""
    W_E = some_weights(TIED)["W_E"]
    assert asymmetry(W_E, W_E.T) == 0
    assert bigram.asymmetry(W_E @ W_E.T) == 0
    weights = some_weights(UNTIED)
    expected = asymmetry(weights["W_E"], weights["W_U"])
    assert bigram.asymmetry(UNTIED.scores(**weights)) == pytest.approx(expected, rel=1e-12)


def test_the_share_of_tokens_that_predict_themselves():
    """A token predicts the token with the largest score in its row."""
    table = np.array(
        [
            [2.0, 1.0, 0.0],  # token 0 predicts itself
            [3.0, 1.0, 2.0],  # token 1 predicts token 0
            [0.0, 1.0, 5.0],  # token 2 predicts itself
        ]
    )
    assert bigram.share_of_itself(table) == pytest.approx(2 / 3)


def test_one_sided_pairs_are_those_of_words_with_the_largest_differences_of_both_orders():
    """A difference is the count of a pair less the count of the reversed pair.

    The pairs are chosen from the largest difference down. A word is in one chosen pair at most.
    """
    counts = np.zeros((6, 6))
    counts[0, 1] = 9  # not chosen: token 0 is not a word
    counts[1, 2] = 8  # chosen first: the difference is 8 - 1 = 7
    counts[2, 1] = 1
    counts[2, 3] = 6  # not chosen: word 2 is in the first chosen pair
    counts[5, 2] = 4  # not chosen: word 2 is in the first chosen pair
    counts[4, 3] = 5  # chosen: the difference is 5 - 2 = 3
    counts[3, 4] = 2
    counts[4, 5] = 9  # not chosen: the difference is 9 - 9 = 0
    counts[5, 4] = 9
    is_word = np.array([False, True, True, True, True, True])
    assert bigram.one_sided_pairs(counts, is_word) == [(1, 2), (4, 3)]
    only_token_0 = ~is_word
    assert bigram.one_sided_pairs(counts, only_token_0) == [], "one word makes no pair"


def test_the_table_of_losses_of_a_text_file(run_bigram, text_file, monkeypatch):
    """Each cell is computed again by the functions of bigram.py."""
    monkeypatch.setattr(bigram, "STEPS", 30)  # a short training is enough here
    D = 4
    code, out, err = run_bigram("--text", text_file, "--dim", str(D), "--seed", "2")
    assert (code, err) == (0, "")
    assert "Shakespeare" not in out, "the remarks on Shakespeare's plays are not printed"
    counts, texts = bigram.read_bigrams(text_file)
    pairs = counts / counts.sum()
    rows = rows_of_losses(out)
    assert rows["the bigrams themselves"] == [
        f"{bigram.bigram_loss(pairs):.2f}",
        f"{bigram.share_of_itself(pairs):.0%}",
        f"{np.count_nonzero(pairs)}",
    ]

    V = len(texts)
    n_inner = 4 * D  # the width of the MLP
    n_weights = {  # of each form
        TIED.name: V * D,  # W_E
        LN_F.name: V * D + D + D,  # W_E, weight, bias
        MLP.name: V * D
        + D * n_inner
        + n_inner
        + n_inner * D
        + D,  # W_E, W_fc, b_fc, W_proj, b_proj
        UNTIED.name: V * D + D * V,  # W_E, W_U
    }
    for form in bigram.FORMS:
        scores = form.scores(**bigram.train(form, pairs, D, seed=2))
        assert rows[form.name] == [
            f"{bigram.loss(pairs, scores):.2f}",
            f"{bigram.asymmetry(scores):.2f}",
            f"{bigram.share_of_itself(scores):.0%}",
            f"{n_weights[form.name]:,}",
        ]


def test_the_table_of_the_pair_my_lord_in_a_text_file(run_bigram, text_file, monkeypatch):
    """The header of the table has the pair in both orders: "my lord" and "lord my".

    The next row has the probabilities in the text. Then each form has a row with its scores and its
    probabilities.
    """
    monkeypatch.setattr(bigram, "STEPS", 30)  # a short training is enough here
    _, out, _ = run_bigram("--text", text_file)
    lines = out.splitlines()
    words_of_lines = [line.split() for line in lines]
    header_words = ["my", "lord", "lord", "my"]
    assert words_of_lines.count(header_words) == 1
    first_row = words_of_lines.index(header_words) + 1
    n_rows = 1 + len(bigram.FORMS)
    row_of_the_text, *rows_of_forms = lines[first_row : first_row + n_rows]
    # In the text, "lord" comes after three of five "my", and "my" never after "lord".
    assert cells_after_the_name(row_of_the_text) == ["60.0%", "0.0%"]

    counts, texts = bigram.read_bigrams(text_file)
    my = texts.index(" my")
    lord = texts.index(" lord")
    for form, row in zip(bigram.FORMS, rows_of_forms, strict=True):
        # The command has used these defaults of --dim and --seed.
        weights = bigram.train(form, counts / counts.sum(), D=64, seed=0)
        scores = form.scores(**weights)
        p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        assert name_of_row(row) == form.name
        assert cells_after_the_name(row) == [
            f"{scores[my, lord]:.1f}",
            f"({p[my, lord]:.1%})",
            f"{scores[lord, my]:.1f}",
            f"({p[lord, my]:.1%})",
        ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--text", "no-such-file"], "no-such-file", id="no-file"),
        pytest.param(["--dim", "0"], "--dim must be at least 1", id="dim-0"),
        pytest.param(["--seed", "-1"], "--seed at least 0", id="seed"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(run_bigram, arguments, message):
    code, _, err = run_bigram(*arguments)
    assert code == 2
    assert err.startswith("bigram.py: error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("text", ["", "a"])
def test_a_text_of_fewer_than_two_tokens_is_refused(run_bigram, tmp_path, text):
    path = tmp_path / "short.txt"
    path.write_text(text)
    message = f"bigram.py: error: {path} has fewer than two tokens\n"
    assert run_bigram("--text", path) == (2, "", message)
