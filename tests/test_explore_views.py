"""Each view of `tiedgpt explore` has the results of the library's own functions.

A view computes the answer to one kind of request, such as "lens". The fields of a request say of
what: `text` or `ids` is the prompt, `side` the model (0 is the tied model, 1 the untied one), and
`head` the output matrix (an untied model can use "untied", its W_U, or "tied", its W_E.T). `answer`
asks a view about TEXT, and `asked.answer` about TEXT and one of the models with one of its heads.
In an answer, a token is a dictionary with its "id" and "text". Large arrays are sent in base64.
"""

import base64
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.checks import peak_memory
from support.explore_server import shown_models, view_answer
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt import GPT2, Tokenizer, count_parameters
from tiedgpt.errors import ArgumentError
from tiedgpt.explore.shown import ATTENTION_TOKENS
from tiedgpt.explore.views.gradient import GRADIENT_TOKENS
from tiedgpt.explore.views.gradient import LISTED as GRADIENT_ROWS
from tiedgpt.explore.views.lens import LENS_TOKENS
from tiedgpt.explore.views.next import LISTED
from tiedgpt.explore.views.path import MATRIX_TOKENS, NEAREST, SAMPLED_TOKENS, measured_tokens
from tiedgpt.explore.views.registry import Turn
from tiedgpt.gpt2.ops import softmax
from tiedgpt.sampling import Sampling
from tiedgpt.study import attribution, bigrams, gradients, predictions, similarity, solved, toy
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.direct_path import predicts_itself
from tiedgpt.study.paths import PATHS, top_k

TEXT = "To be, or not to be"
IDS = Tokenizer([]).encode(TEXT)
SAMPLING = {
    "temperature": 0.8,
    "top_k": 6,
    "top_p": 0.9,
    "min_p": 0.2,
    "repetition_penalty": 0.5,  # below 1, it makes tokens of the text likelier
}
VIEWS_OF_A_TEXT = ["next", "path", "nearest", "lens", "parts", "attention", "gradient"]


def assert_close(numbers, expected):
    assert np.asarray(numbers).shape == np.asarray(expected).shape
    np.testing.assert_allclose(numbers, expected, rtol=1e-4, atol=1e-5)


def ids_of(tokens):
    return [token["id"] for token in tokens]


def column(tokens, name):
    """One value of each token."""
    return [token[name] for token in tokens]


@pytest.fixture(scope="module")
def models():
    return [random_model(CONFIG, 1), random_model(replace(CONFIG, tied=False), 2)]


@pytest.fixture(scope="module")
def corpus():
    # Tokens 60 to 123; Zipf's law makes some of them frequent.
    ids = np.random.default_rng(0).zipf(1.2, 6000) % 64 + 60
    return Corpus.of(ids, CONFIG.vocab_size)


@pytest.fixture(scope="module")
def shown(models, corpus):
    return shown_models(*models, corpus=corpus)


def answer(shown, name, **fields):
    """A view's answer about TEXT, or about a different `text` or `ids` in the fields."""
    return view_answer(shown, name, {"text": TEXT, **fields})


@dataclass
class Asked:
    """One of the shown models with one of its heads. `answer` asks a view about it."""

    model: GPT2
    shown: object
    side: int  # 0 is the tied model, 1 the untied one
    head: str

    def answer(self, name, **fields):
        return answer(self.shown, name, side=self.side, head=self.head, **fields)


@pytest.fixture(params=["tied", "untied", "untied-with-its-W_E"])
def asked(request, shown, models):
    tied_model, untied_model = models
    if request.param == "tied":
        return Asked(tied_model, shown, side=0, head="tied")
    if request.param == "untied":
        return Asked(untied_model, shown, side=1, head="untied")
    return Asked(untied_model.tie(), shown, side=1, head="tied")


# A prompt


@pytest.mark.parametrize("name", VIEWS_OF_A_TEXT)
def test_a_view_reads_a_text_up_to_the_chosen_token(shown, name):
    """Up to token 4 means: the first five tokens. Only the view "path" needs the field `path`."""
    up_to_token_4 = answer(shown, name, place=4, path="raw")
    expected = answer(shown, name, ids=IDS[:5], text=None, path="raw")
    if name == "next":  # this view alone also sends the whole text, which the page shows
        assert ids_of(up_to_token_4.pop("tokens")) == IDS
        assert up_to_token_4.pop("text") == TEXT
        assert up_to_token_4["place"] == 4
        del expected["tokens"]
        del expected["text"]
    assert up_to_token_4 == expected


def test_an_id_that_only_pads_the_vocabulary_has_no_text():
    padded = shown_models(random_model(replace(CONFIG, vocab_size=300)))
    found = answer(padded, "next", ids=[*IDS, 299])
    assert found["text"] == TEXT
    assert found["tokens"][-1]["text"] == "[299]"


# next, generate


def test_next_shows_the_tokens_of_the_text(asked):
    found = asked.answer("next")
    assert ids_of(found["tokens"]) == IDS
    assert found["text"] == TEXT


def test_next_lists_the_likeliest_tokens(asked):
    rows = asked.answer("next", **SAMPLING)["rows"]
    logits = predictions.last_logits(asked.model, IDS)
    likeliest = np.argsort(-logits)[:LISTED]
    assert ids_of(rows) == likeliest.tolist()
    assert_close(column(rows, "logit"), logits[likeliest])
    assert_close(column(rows, "probability"), softmax(logits)[likeliest])
    assert_close(column(rows, "drawn"), Sampling(**SAMPLING).probabilities(logits, IDS)[likeliest])


def test_next_counts_the_tokens_that_sampling_keeps(asked):
    found = asked.answer("next", **SAMPLING)
    logits = predictions.last_logits(asked.model, IDS)
    is_kept = Sampling(**SAMPLING).probabilities(logits, IDS) > 0
    assert found["kept"] == is_kept.sum()
    assert 0 < found["kept"] < CONFIG.vocab_size
    assert_close(found["kept_probability"], softmax(logits)[is_kept].sum())


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        pytest.param({"text": TEXT}, IDS, id="text"),
        pytest.param({"ids": [3, 200, 256]}, [3, 200, 256], id="ids"),
    ],
)
def test_generate_writes_what_the_library_generates(shown, models, side, fields, prompt):
    *lines, end = view_answer(
        shown, "generate", {**fields, **SAMPLING, "side": side, "n": 9, "seed": 5}
    )
    model = models[side]
    expected = list(tiedgpt.generate(model, prompt, 9, **SAMPLING, seed=5))
    assert ids_of(lines) == expected
    assert end["end"] == "length"
    assert_close(end["bits_per_token"], np.mean(column(lines, "bits")))

    # The logits at each token predict the next one. The last token of the prompt predicts the first
    # new token.
    last_of_prompt = len(prompt) - 1
    logits = model([*prompt, *expected])[last_of_prompt:-1]
    for line, logits_of_line in zip(lines, logits, strict=True):
        (prediction,) = predictions.predict(logits_of_line, [line["id"]])
        assert_close(line["probability"], prediction.probability)
        assert_close(line["logit"], prediction.logit)
        assert_close(line["bits"], predictions.surprisal(prediction.log_probability))


def test_generate_ends_at_the_end_of_text_token(models):
    """All tokens are equally likely, so the model soon writes 7, its end-of-text token."""
    tied_model, _untied_model = models
    parameters = dict(tied_model.parameters)
    parameters["wte.weight"] = np.zeros_like(tied_model.W_E)
    model = GPT2(replace(CONFIG, eos_token_id=7), parameters)
    fields = {"ids": [64], "n": 200, "seed": 1}
    *lines, end = view_answer(shown_models(model), "generate", fields)
    assert ids_of(lines) == list(tiedgpt.generate(model, [64], 200, seed=1))
    assert len(lines) < 200
    assert end["end"] == "end of text"


# lens, parts, attention


def test_lens_shows_the_three_likeliest_tokens_of_each_layer(asked):
    """It has a row for each layer, and a cell for each of the last LENS_TOKENS tokens."""
    last = slice(-LENS_TOKENS, None)
    found = asked.answer("lens")
    assert ids_of(found["tokens"]) == IDS[last]
    layers = predictions.lens(asked.model, IDS, 3)
    for row, layer in zip(found["layers"], layers, strict=True):
        assert [ids_of(cell) for cell in row] == layer.tokens[last].tolist()
        probabilities = [column(cell, "probability") for cell in row]
        assert_close(probabilities, layer.probabilities[last])


def test_parts_are_those_of_the_likeliest_token_if_none_is_chosen(asked):
    """Without removed parts, the answer has no prediction "after" the removal."""
    found = asked.answer("parts")
    prediction_of_whole_model = found["before"]
    likeliest = predictions.last_logits(asked.model, IDS).argmax()
    assert prediction_of_whole_model["id"] == likeliest
    assert "after" not in found


def test_parts_of_a_chosen_token(asked):
    """Each part of the model has its share of the token's logit."""
    found = asked.answer("parts", token=70)
    assert found["parts"] == pytest.approx(attribution.attribute(asked.model, IDS, 70), abs=1e-5)
    logits = predictions.last_logits(asked.model, IDS)
    (prediction,) = predictions.predict(logits, [70])
    prediction_of_whole_model = found["before"]
    assert_close(prediction_of_whole_model["logit"], prediction.logit)
    assert prediction_of_whole_model["rank"] == prediction.rank


def test_parts_of_token_0(asked):
    """0 is an id like any other, and not a missing one."""
    found = asked.answer("parts", token=0)
    assert found["parts"] == pytest.approx(attribution.attribute(asked.model, IDS, 0), abs=1e-5)


def test_predictions_without_some_parts(asked):
    removed = ["attn.0.head.1", "mlp.1"]
    found = asked.answer("parts", removed=removed, token=70)
    logits = predictions.last_logits(asked.model, IDS)
    edit = attribution.ablation(CONFIG, removed)
    logits_without = predictions.last_logits(asked.model, IDS, edit)

    # The prediction of the chosen token "after" the parts are removed.
    (prediction,) = predictions.predict(logits_without, [70])
    assert_close(found["after"]["logit"], prediction.logit)
    assert found["after"]["rank"] == prediction.rank

    # The table "change" begins with the likeliest token without the parts. It also has the eight
    # likeliest tokens of the whole model.
    (likeliest,) = predictions.predict(logits_without, [logits_without.argmax()])
    table = found["change"]
    assert table[0]["id"] == likeliest.token
    assert_close(table[0]["without"], likeliest.probability)
    likeliest_of_whole_model = top_k(logits, 8).tolist()
    assert set(ids_of(table)) >= set(likeliest_of_whole_model)


@pytest.mark.parametrize(
    "ids", [pytest.param(IDS, id="short"), pytest.param([*range(60)], id="long")]
)
def test_attention_of_the_last_tokens(asked, ids):
    """The weights, from 0 to 1, are rounded to the whole numbers 0 to 65535, in 16 bits each."""
    found = asked.answer("attention", ids=ids)
    last = slice(-ATTENTION_TOKENS, None)
    assert ids_of(found["tokens"]) == ids[last]

    tape = {}
    asked.model(ids, tape=tape)
    patterns_of_layers = []
    for layer in range(CONFIG.n_layer):
        pattern = tape[f"attn.{layer}.pattern"][0]  # [H, T, T]
        patterns_of_layers.append(pattern[:, last, last])
    expected = np.stack(patterns_of_layers)
    whole_numbers = np.frombuffer(base64.b64decode(found["patterns"]), "<u2")
    patterns = whole_numbers.reshape(expected.shape) / 65535
    largest_difference = 0.51 / 65535  # half a step, and a little more for the rounding of floats
    assert abs(patterns - expected).max() <= largest_difference


# path, symmetry, solved, nearest


@pytest.mark.parametrize("path", PATHS)
def test_the_scores_of_a_path(asked, path):
    found = asked.answer("path", path=path)
    tokens = ids_of(found["tokens"])
    assert len(tokens) == MATRIX_TOKENS
    assert len(set(tokens)) == MATRIX_TOKENS, "each token is there once"
    assert set(tokens) <= set(IDS)
    scores = PATHS[path](asked.model, np.array(tokens))  # [MATRIX_TOKENS, vocabulary]
    assert_close(found["A"], scores[:, tokens])


def test_the_raw_path_has_the_rows_of_its_tokens_in_both_matrices(asked):
    found = asked.answer("path", path="raw")
    tokens = ids_of(found["tokens"])
    W_E = np.frombuffer(base64.b64decode(found["W_E"]), "<f4")
    W_U = np.frombuffer(base64.b64decode(found["W_U"]), "<f4")
    assert np.array_equal(W_E, asked.model.W_E[tokens].ravel())
    assert np.array_equal(W_U, asked.model.W_U.T[tokens].ravel())


def test_a_path_has_the_counts_and_percents_of_the_corpus_beside_it(shown, corpus):
    """They are of token b after token a, for each a (the row) and b (the column)."""
    found = answer(shown, "path", path="raw")
    tokens = ids_of(found["tokens"])
    counts = [[corpus.count(a, b) for b in tokens] for a in tokens]
    percents = [[100 * corpus.share(a, b) for b in tokens] for a in tokens]
    assert found["text"]["counts"] == counts
    assert_close(found["text"]["percent"], percents)
    assert max(sum(row) for row in percents) <= 100 + 1e-9, "up to rounding"


def test_symmetry_of_each_path(asked, corpus):
    found = asked.answer("symmetry")
    assert found["text"] == corpus.self_prediction()
    assert found["measured"] == CONFIG.vocab_size
    tokens = np.arange(CONFIG.vocab_size)
    for name, path in PATHS.items():
        A = path(asked.model, tokens).astype(float)
        asymmetry = np.linalg.norm(A - A.T) / np.linalg.norm(A)
        self_prediction = np.mean(A.argmax(axis=1) == tokens)
        measured = found["paths"][name]
        assert measured["asymmetry"] == pytest.approx(asymmetry, abs=1e-6)
        assert measured["self_prediction"] == pytest.approx(self_prediction, abs=1e-6)


class RecordedTurn(Turn):
    """The turn of a request. It keeps what the view reports: which part of its work is done."""

    def __init__(self):
        self.reports = []

    def report(self, part):
        self.reports.append(part)


def test_a_large_vocabulary_is_measured_by_a_sample():
    """The model is tied, so its raw path is symmetric."""
    model = random_model(replace(CONFIG, vocab_size=5000))
    found = view_answer(shown_models(model), "symmetry", {})
    sample = measured_tokens(model)
    assert found["measured"] == SAMPLED_TOKENS
    assert np.unique(sample).size == SAMPLED_TOKENS
    assert found["paths"]["raw"]["asymmetry"] < 1e-6
    assert found["paths"]["raw"]["self_prediction"] == predicts_itself(model)[sample].mean()


def test_symmetry_reports_at_each_of_four_paths_what_is_done(models):
    turn = RecordedTurn()
    tied_model, _untied_model = models
    view_answer(shown_models(tied_model), "symmetry", {}, turn)
    assert set(turn.reports) == {0, 0.25, 0.5, 0.75}


def test_solved_has_the_parts_of_the_kl_of_the_direct_path(asked, corpus):
    """The KL compares the path's predictions with the corpus. `solved.missing` divides it."""
    model = asked.model
    paths = solved.solved_paths(model, corpus)
    scores = bigrams.bigrams(model, corpus, None, paths)
    assert asked.answer("solved")["missing"] == pytest.approx(solved.missing(scores), rel=1e-3)


def test_nearest_lists_the_tokens_nearest_to_the_last_one_of_the_prompt(asked):
    last_token = 40
    found = asked.answer("nearest", ids=[1, last_token])
    matrices = {"W_E": asked.model.W_E, "W_U": asked.model.W_U.T}
    for name, rows in matrices.items():
        tokens, cosines = similarity.nearest(rows, last_token, NEAREST)
        assert ids_of(found[name]) == tokens.tolist()
        assert_close(column(found[name], "cosine"), cosines)


# gradient


def test_gradient_shows_the_gradients_of_some_rows(asked):
    """W_E has two gradients: "embed" from reading tokens, and "head" from scoring them.

    The answer has the lengths of both in each of its rows, and the cosine between them.
    """
    rows = asked.answer("gradient")["rows"]
    embed, head, _, cosine = gradients.gradients(asked.model, IDS).by_row()
    ids = ids_of(rows)
    assert_close(column(rows, "embed"), embed[ids])
    assert_close(column(rows, "head"), head[ids])
    assert_close(column(rows, "cosine"), cosine[ids])
    assert ids[-1] not in IDS, "the last row is of a token that was not read"


def test_gradient_shows_the_loss_and_the_lengths_of_whole_gradients(asked):
    """The gradient "embed" reaches the rows of the tokens that were read, and "head" all rows."""
    found = asked.answer("gradient")
    expected = gradients.gradients(asked.model, IDS)
    assert found["loss"] == pytest.approx(expected.loss)
    tokens_read = set(IDS[:-1])  # the last token is predicted alone
    assert found["reached"] == [len(tokens_read), CONFIG.vocab_size]
    for name, value in expected.lengths_and_cosine().items():
        assert found[name] == pytest.approx(value)


def test_the_gradient_reads_the_last_tokens_of_a_long_text():
    """The first rows of the answer are those of the last tokens."""
    long = shown_models(random_model(replace(CONFIG, n_ctx=512)))
    ids = [n % 256 for n in range(512)]
    found = answer(long, "gradient", ids=ids)
    assert found["read"] == GRADIENT_TOKENS
    assert ids_of(found["rows"][:GRADIENT_ROWS]) == ids[-GRADIENT_ROWS:]


# toy, cost, start


def test_toy_has_each_way_to_score_three_words(shown):
    found = answer(shown, "toy", W_E=toy.EMBEDDING, P=toy.TABLE)
    for name, solution in toy.solve().items():
        way = found["ways"][name]
        assert_close(way["probabilities"], solution.probabilities)
        assert_close(way["scores"], solution.scores)
        assert_close(way["kl"], solution.kl)
        assert_close(way["asymmetry"], solution.asymmetry)


def test_toy_can_solve_for_the_best_embedding(shown):
    found = answer(shown, "toy", W_E=toy.EMBEDDING, P=toy.TABLE, solve_W_E=True)
    assert_close(found["W_E"], toy.embedding_of(toy.TABLE, 2))


def test_the_cost_of_a_model_of_any_size(shown):
    found = answer(shown, "cost", vocab=50_000, dim=4096, total=7 * 10**9)
    assert found["untied"] - found["tied"] == 50_000 * 4096


def test_the_cost_of_gpt2(shown):
    """Whatever sizes are asked for, the answer has the costs of GPT-2's models, too."""
    found = answer(shown, "cost", vocab=1, dim=1, total=1)
    gpt2, *_ = found["models"]
    matrix = 50257 * 768  # vocab_size * n_embd: the parameters that an untied model has more
    tied = count_parameters(tiedgpt.Config())["tied"]["total"]
    assert gpt2["name"] == "gpt2"
    assert gpt2["tied"] == tied
    assert gpt2["untied"] == tied + matrix
    assert gpt2["saved_percent"] == 100 * matrix / (tied + matrix)


def test_start_has_the_models_and_the_examples(shown):
    found = answer(shown, "start")
    assert column(found["models"], "name") == ["a", "b"]
    assert column(found["models"], "heads") == [["tied"], ["untied", "tied"]]
    assert found["prompts"] == list(shown.prompts)
    assert found["corpus"] == "a text"


def test_start_has_the_source_code_of_functions(shown):
    """The lines are those of the function's file, perhaps less indented."""
    root = Path(tiedgpt.__file__).parents[1]
    for name, source in answer(shown, "start")["sources"].items():
        assert f"def {name}(" in source["text"]
        lines = source["text"].splitlines()
        lines_of_file = (root / source["file"]).read_text(encoding="utf-8").splitlines()
        first = source["line"] - 1  # lines are numbered from 1
        expected = lines_of_file[first : first + len(lines)]
        assert [line.strip() for line in lines] == [line.strip() for line in expected]


# Models without layers, memory, kept results


@pytest.fixture
def without_layers():
    return shown_models(random_model(replace(CONFIG, n_layer=0)))


def test_a_model_without_layers_has_the_views_that_need_no_layers(without_layers):
    assert len(answer(without_layers, "lens")["layers"]) == 1
    assert answer(without_layers, "parts")["parts"].keys() == {"wte", "wpe", "ln_f.bias"}
    assert answer(without_layers, "gradient")["reached"][1] == CONFIG.vocab_size
    assert answer(without_layers, "symmetry")["paths"].keys() == {"raw", "normed", "model"}


def test_a_model_without_layers_has_no_attention(without_layers):
    with pytest.raises(ArgumentError, match="no layers"):
        answer(without_layers, "attention")


def test_solved_is_an_error_without_a_corpus():
    with pytest.raises(ArgumentError, match="no text to compare"):
        answer(shown_models(), "solved")


def test_path_takes_less_memory_than_a_matrix_of_all_scores():
    large = shown_models(random_model(replace(CONFIG, vocab_size=5000)))
    peak = peak_memory(partial(answer, large, "path", path="model"))
    bytes_of_all_scores = 4 * 5000**2  # a number of float32 has four bytes
    assert peak < bytes_of_all_scores / 100


def test_gradient_takes_less_memory_than_a_matrix_of_the_vocabulary():
    wide = replace(CONFIG, vocab_size=5000, n_embd=192)
    peak = peak_memory(answer, shown_models(random_model(wide)), "gradient")
    bytes_of_wte = 4 * wide.vocab_size * wide.n_embd  # float32
    assert peak < bytes_of_wte / 2


@pytest.mark.parametrize("name", ["next", "lens", "parts", "attention", "gradient"])
def test_a_view_takes_less_memory_than_the_attention_of_a_context(name):
    long = replace(CONFIG, n_ctx=512, n_embd=48, n_head=12, n_layer=4)
    shown = shown_models(random_model(long))
    ids = [n % 256 for n in range(long.n_ctx)]
    peak = peak_memory(partial(answer, shown, name, ids=ids))
    bytes_of_all_patterns = 4 * long.n_layer * long.n_head * long.n_ctx**2  # float32
    assert peak < bytes_of_all_patterns / 2


def test_both_heads_of_a_model_read_a_prompt_once(models, monkeypatch):
    _tied_model, untied_model = models
    shown = shown_models(untied_model)
    read_prompts = []
    original_last_tape = predictions.last_tape  # it reads a prompt

    def recording_last_tape(model, ids, *arguments):
        read_prompts.append(ids)
        return original_last_tape(model, ids, *arguments)

    monkeypatch.setattr(predictions, "last_tape", recording_last_tape)
    for name in ("next", "lens", "parts", "attention"):
        answer(shown, name, head="untied")
        answer(shown, name, head="tied")
    assert read_prompts == [IDS]


def test_results_are_kept_for_the_last_prompts_only(models):
    """A tape has the activations of a prompt. They are kept for four, and the logits for 32."""
    _tied_model, untied_model = models
    shown = shown_models(untied_model)
    for token in range(40):
        answer(shown, "next", ids=[token])
    assert len(shown.tapes) == 4
    assert len(shown.last_logits) == 32


# What is refused

WRONG_FIELDS = [
    pytest.param("next", {"text": ""}, "the prompt is empty", id="empty-text"),
    pytest.param(
        "next",
        {"text": "a" * 65},
        "65 tokens, more than the model's context of 64",
        id="long-text",
    ),
    pytest.param("next", {"text": 5}, "text must be a string", id="text-number"),
    pytest.param("next", {"ids": [1, 257]}, "257 is outside the vocabulary", id="ids-257"),
    pytest.param("next", {"ids": [True]}, "ids must be whole numbers", id="ids-true"),
    pytest.param("next", {"place": 99}, "place must be a whole number from 0 to", id="place"),
    pytest.param("next", {"head": "untied"}, "head must be one of tied, got 'untied'", id="head"),
    pytest.param("next", {"head": []}, "head must be one of tied", id="head-list"),
    pytest.param("next", {"side": "0"}, "side must be", id="side"),
    pytest.param("next", {"temperature": -1}, "temperature must be", id="temperature"),
    pytest.param(
        "generate",
        {"n": 201, "seed": 1},
        "n must be a whole number from 1 to 200, got 201",
        id="n-201",
    ),
    pytest.param("generate", {"n": 1, "seed": -1}, "seed must be", id="seed"),
    pytest.param(
        "path", {"path": "x"}, "path must be one of raw, normed, mlp0, model, got 'x'", id="path"
    ),
    pytest.param("path", {"path": []}, "path must be one of raw", id="path-list"),
    pytest.param(
        "toy",
        {"W_E": [[1, 2]] * 3, "P": [[-1] * 3] * 3, "solve_W_E": 1},
        "every number of P must be above 0",
        id="toy-negative-share",
    ),
    pytest.param("toy", {"W_E": [[1e9]] * 3, "P": toy.TABLE}, "-100 to 100", id="toy-large"),
    pytest.param(
        "parts", {"removed": ["attn.9"]}, "is not a part that can be removed", id="removed-unknown"
    ),
    pytest.param("parts", {"removed": "x"}, "removed must be a list", id="removed-string"),
    pytest.param("parts", {"token": 257}, "257 is outside the vocabulary", id="token-257"),
    pytest.param("parts", {"token": [1]}, "must be one sequence of ids", id="token-list"),
    pytest.param("gradient", {"text": "a"}, "needs two tokens or more", id="gradient-one-token"),
    pytest.param("cost", {"vocab": 10**8, "dim": 1, "total": 1}, "vocab must be", id="cost-vocab"),
]


@pytest.mark.parametrize(("name", "fields", "message"), WRONG_FIELDS)
def test_wrong_fields_are_an_error_of_one_line(shown, name, fields, message):
    with pytest.raises(ArgumentError) as caught:
        answer(shown, name, **fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
