"""Each report against its definition: the numbers computed again from the model's logits.

Tokens are bytes, so the id of "a" is 64, and 256 is the end of a text.
"""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from support.models import CONFIG, random_model

from tiedgpt import Tokenizer, score
from tiedgpt.evaluation import predicted_places
from tiedgpt.gpt2.ops import log_softmax
from tiedgpt.study import (
    bigrams,
    embeddings,
    gradients,
    paths,
    reports,
    solved,
)
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.paths import PATHS
from tiedgpt.study.predictions import ablation, attribute, last_tape, predict

TOKENIZER = Tokenizer([])
IDS = TOKENIZER.encode("abcdefgh")
A, B = IDS[:2]
TEXT = "To be, or not to be.\nThat is it. " * 2
# Twelve of the characters are frequent: a, b and d to m.
CORPUS = Corpus.of(
    TOKENIZER.encode("aab" + "ab" * 119 + "aac" * 20 + "defghijklm" * 100 + "the end\n"),
    CONFIG.vocab_size,
)


@pytest.fixture(params=["tied", "untied"])
def model(request):
    return random_model(CONFIG.with_head(request.param), dtype=np.float64)


def likeliest(logits, k) -> list[int]:
    return np.argsort(-logits, kind="stable")[:k].tolist()


def assert_predicts(report, logits, tokens):
    """The report has these tokens, as the logits [V] predict them."""
    p = np.exp(log_softmax(logits))
    assert [row["id"] for row in report] == tokens
    for row in report:
        token = row["id"]
        assert row["token"] == TOKENIZER.token_text(token)
        assert row["probability"] == pytest.approx(p[token])
        assert row["logit"] == pytest.approx(logits[token])
        assert row["rank"] == 1 + np.count_nonzero(logits > logits[token])


def assert_surprises(report, log_p, token, k, unit):
    """A token that came next, and the k likeliest others: the log probabilities are log_p [V]."""
    factor = {"logprob": 1, "bits": -1 / math.log(2)}[unit]
    others = [other for other in likeliest(log_p, k + 1) if other != token][:k]
    assert report["id"] == token
    assert report["rank"] == 1 + np.count_nonzero(log_p > log_p[token])
    assert [other["id"] for other in report["alternatives"]] == others
    for row in [report, *report["alternatives"]]:
        assert row[unit] == pytest.approx(factor * log_p[row["id"]])


def test_the_reports_of_a_float32_model_are_json():
    model = random_model(CONFIG)
    ids = np.array(IDS)
    for report in (
        reports.next_report([model], TOKENIZER, ids, 2),
        reports.paths_report(model, TOKENIZER, ids[0], 2),
        reports.lens_report(model, TOKENIZER, ids, 2),
        reports.logit_report(model, TOKENIZER, ids, removed=["mlp.0"]),
        reports.score_report(model, TOKENIZER, ids, stride=64),
        reports.score_report(model, TOKENIZER, ids, stride=64, alternatives=2),
        reports.parameters_report(model.config),
    ):
        assert json.loads(json.dumps(report)) == report


def test_the_id_of_a_token_is_a_number_of_python():
    assert json.dumps(reports.token_report(TOKENIZER, np.int64(64))) == '{"id": 64, "token": "a"}'


def test_a_token_that_only_pads_the_vocabulary_has_no_text():
    assert reports.token_report(TOKENIZER, 256) == {"id": 256, "token": "<|endoftext|>"}
    assert reports.token_report(TOKENIZER, 257) == {"id": 257, "token": None}
    with_a_gap = Tokenizer([], {"<|endoftext|>": 300})
    assert reports.token_report(with_a_gap, 257) == {"id": 257, "token": None}


@pytest.mark.parametrize("unit", ["logprob", "bits"])
def test_a_token_that_came_next(model, unit):
    logits = model(IDS)[-1]
    for token in [A, *likeliest(logits, 2)]:
        (prediction,) = predict(logits, [token], k=3)
        report = reports.surprise_report(TOKENIZER, prediction, unit)
        assert_surprises(report, log_softmax(logits), token, 3, unit)


def test_next(model):
    (report,) = reports.next_report([model], TOKENIZER, IDS, 3)
    assert report["head"] == model.config.head
    logits = model(IDS)[-1]
    assert_predicts(report["next"], logits, likeliest(logits, 3))


def test_next_by_both_heads_has_the_likeliest_tokens_of_each():
    untied = random_model(CONFIG.with_head("untied"), dtype=np.float64)
    models = [untied.tie(), untied]
    by_rank = np.transpose([likeliest(each(IDS)[-1], 3) for each in models])
    tokens = list(dict.fromkeys(by_rank.ravel().tolist()))
    for each, report in zip(models, reports.next_report(models, TOKENIZER, IDS, 3), strict=True):
        assert report["head"] == each.config.head
        assert_predicts(report["next"], each(IDS)[-1], tokens)


def test_paths(model):
    report = reports.paths_report(model, TOKENIZER, A, 4)
    assert report["head"] == model.config.head
    assert list(report["paths"]) == ["raw", "normed", "mlp0", "model"]
    logits_of = {name: path(model, np.array([A]))[0] for name, path in PATHS.items()}
    logits_of["raw"] = model.W_E[A] @ model.W_U
    logits_of["model"] = model([A])[0]
    for name, logits in logits_of.items():
        assert_predicts(report["paths"][name], logits, likeliest(logits, 4))


@pytest.mark.parametrize("last", [None, 2])
def test_lens(model, last):
    report = reports.lens_report(model, TOKENIZER, IDS, k=3, last=last)
    assert report["head"] == model.config.head
    layers = report["layers"]
    names = [layer["name"] for layer in layers]
    assert names == ["resid_pre.0", "resid_post.0", "resid_post.1"]
    logits = model(IDS)  # by the last layer
    shown = logits if last is None else logits[-last:]
    assert len(layers[-1]["positions"]) == len(shown)
    for row, position in zip(shown, layers[-1]["positions"], strict=True):
        p = np.exp(log_softmax(row))
        assert [token["id"] for token in position] == likeliest(row, 3)
        for token in position:
            assert token["probability"] == pytest.approx(p[token["id"]])


def test_by_default_a_lens_has_the_five_likeliest_tokens(model):
    (*_, layer) = reports.lens_report(model, TOKENIZER, IDS)["layers"]
    assert [len(position) for position in layer["positions"]] == [5] * len(IDS)


@pytest.mark.parametrize("last", [None, 2])
def test_lens_of_a_tape_that_has_more_tokens(model, last):
    """The page reads a prompt once for several panels, and its lens has the fewest tokens."""
    tape = last_tape(model, IDS, n=5)
    shown = reports.lens_report(model, TOKENIZER, IDS, k=3, last=last, tape=tape)["layers"]
    expected = reports.lens_report(model, TOKENIZER, IDS, k=3, last=last or 5)["layers"]
    for layer, expected_layer in zip(shown, expected, strict=True):
        ids = [[token["id"] for token in tokens] for tokens in layer["positions"]]
        expected_positions = expected_layer["positions"]
        assert ids == [[token["id"] for token in tokens] for tokens in expected_positions]


@pytest.mark.parametrize(
    ("token", "against"),
    [
        pytest.param(None, None, id="likeliest"),
        pytest.param(A, None, id="token"),
        pytest.param(A, B, id="two"),
        pytest.param(0, None, id="token-0"),
        pytest.param(A, 0, id="from-token-0"),
    ],
)
@pytest.mark.parametrize(
    "removed", [[], ["mlp.0", "attn.1.head.2", "attn.1.head.0"]], ids=["whole", "ablated"]
)
def test_logit(model, token, against, removed):
    report = reports.logit_report(model, TOKENIZER, IDS, token, against, removed)
    assert report["head"] == model.config.head
    logits = model(IDS)[-1]
    first = likeliest(logits, 1)[0] if token is None else token
    tokens = [first] if against is None else [first, against]

    def assert_total(part, by):
        assert_predicts(part["tokens"], by, tokens)
        total = by[first] if against is None else by[first] - by[against]
        assert part["total"] == pytest.approx(total)

    assert_total(report, logits)
    assert report["parts"] == attribute(model, IDS, first, against)
    assert sum(report["parts"].values()) == pytest.approx(report["total"])
    if removed:
        assert report["ablated"]["parts"] == removed
        assert_total(report["ablated"], model(IDS, edit=ablation(CONFIG, removed))[-1])
    else:
        assert "ablated" not in report


def test_a_prompt_that_was_read_is_not_read_again_for_a_logit(model, shapes_read):
    logits = model(IDS)[-1]
    tape = last_tape(model, IDS, n=1)
    shapes_read.clear()
    report = reports.logit_report(model, TOKENIZER, IDS, A, logits=logits, tape=tape)
    assert shapes_read == []
    assert report["total"] == logits[A]
    assert report["parts"] == pytest.approx(attribute(model, IDS, A))


@pytest.mark.parametrize("stride", [1, 64])
def test_score(model, stride):
    ids = np.array(TOKENIZER.encode(TEXT))
    plain = reports.score_report(model, TOKENIZER, ids, stride)
    facts = {"context": 64, "stride": stride, "head": model.config.head}
    assert plain == {**facts, **asdict(score(model, TOKENIZER, ids, stride))}

    assert plain["tokens"] == plain["bytes"] == predicted_places(ids.size, 64, stride).size

    report = reports.score_report(model, TOKENIZER, ids, stride, alternatives=2)
    predictions = report.pop("predictions")
    assert list(report) == list(plain)
    for name, value in plain.items():  # the losses are computed in another way, so with rounding
        assert report[name] == (value if name == "head" else pytest.approx(value, rel=1e-9))
    places = [prediction["place"] for prediction in predictions]
    assert places == predicted_places(ids.size, 64, stride).tolist()
    for prediction in predictions[:20]:  # in the first window
        place = prediction["place"]
        log_p = log_softmax(model(ids[:place])[-1])
        assert_surprises(prediction, log_p, ids[place], 2, "bits")


def test_a_score_without_alternatives_has_predictions_if_they_are_asked_for(model):
    report = reports.score_report(model, TOKENIZER, np.array(IDS), stride=64, alternatives=0)
    assert [prediction["id"] for prediction in report["predictions"]] == IDS[1:]
    assert all(prediction["alternatives"] == [] for prediction in report["predictions"])


def test_a_score_counts_tokens_and_bytes(model):
    """A token may have several bytes: "be" is 256."""
    tokenizer = Tokenizer([("b", "e")])
    ids = np.array(tokenizer.encode("to be or not to be"))
    report = reports.score_report(model, tokenizer, ids, stride=1)
    assert (report["tokens"], report["bytes"]) == (len(ids) - 1, len("o be or not to be"))
    assert report["nll"] * report["tokens"] / math.log(2) == pytest.approx(
        report["bits_per_byte"] * report["bytes"]
    )


def test_parameters(model):
    report = reports.parameters_report(model.config)
    head = model.config.head
    assert report[head]["total"] == sum(array.size for array in model.parameters.values())
    assert report["difference"] == model.W_U.size
    assert report["config"]["vocab_size"] == CONFIG.vocab_size
    assert "others" not in report["config"]


# study


def study(model, corpus=None, tied_W_E=None, units=None):
    """The report of `tiedgpt study`, and the notes.

    units: a dict to which what is done is added, and the unit in which it is counted.
    """
    notes = []
    names = []

    class Progress:
        """An OpenProgress that counts."""

        def __init__(self, doing, total, unit):
            names.append(doing)
            if units is not None:
                units[doing] = unit
            self.left = total

        def __enter__(self):
            return self

        def add(self, n):
            self.left -= n

        def __exit__(self, *_):
            assert self.left == 0

    report = reports.study_report("m", model, corpus, tied_W_E, Progress, notes.append)
    assert json.loads(json.dumps(report)) == report
    assert names[0] == "m: direct path"
    assert all(name.startswith("m: ") for name in names)
    assert len(set(names)) == len(names)
    return report, notes


class NoProgress:
    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def add(self, n):
        pass

    def __exit__(self, *_):
        pass


def test_study_has_what_the_library_measures(model):
    other_W_E = random_model(CONFIG, dtype=np.float64, seed=5).W_E
    units = {}
    report, notes = study(model, CORPUS, other_W_E, units)
    assert notes == []
    assert units == {
        "m: direct path": "token",
        "m: the best W_U": "step",
        "m: bigrams": "token",
        "m: gains": "token",
        "m: MLPs": "path",
        "m: loss": "token",
    }
    assert report["head"] == model.config.head
    size = sum(array.size for array in model.parameters.values())
    assert (report["model"], report["parameters"], report["bytes"]) == ("m", size, 4 * size)
    assert report["corpus"] == {
        "tokens": CORPUS.ids.size,
        "frequent": 12,
        "self_prediction": 0.0,  # no frequent token is its own most frequent successor
        "jsd_floor": paths.jsd_floor(CORPUS),
    }
    scores = bigrams.bigrams(model, CORPUS, others=solved.solved_paths(model, CORPUS))
    end = CORPUS.ids[-(CONFIG.n_ctx + 1) :]  # a whole context, and the token after it
    assert report["direct_path"] == paths.direct_path(model, CORPUS)
    assert report["embeddings"] == embeddings.embeddings(model, CORPUS, other_W_E)
    assert report["bigrams"] == scores
    assert report["missing"] == solved.missing(scores)
    assert report["gains"] == bigrams.gains(model, CORPUS, PATHS)
    assert report["tables"] is None  # there are 12 frequent tokens, too few
    assert report["mlps"] == bigrams.mlp_numbers(model, CORPUS)
    assert report["loss"] == reports.losses(model, CORPUS.ids)
    assert report["gradients"] == gradients.gradients(model, end).lengths_and_cosine()


def test_gains_do_not_depend_on_the_pieces_of_the_tokens(model, monkeypatch):
    expected = bigrams.gains(model, CORPUS, PATHS)
    monkeypatch.setattr(paths, "MAX_LOGITS", 5 * CONFIG.vocab_size)
    found = bigrams.gains(model, CORPUS, PATHS)
    for name in PATHS:
        assert found[name] == pytest.approx(expected[name], rel=1e-4)


def test_study_of_a_text_longer_than_the_context(model):
    """99 tokens are two windows of the context of 64. Of each, the first is not predicted."""
    report, _ = study(model, Corpus.of([A] * 99, CONFIG.vocab_size))
    assert report["loss"]["tokens"] == 99 - 2


def test_study_of_a_text_with_too_many_tokens_to_solve_says_so(model, monkeypatch):
    monkeypatch.setattr(solved, "MAX_PRODUCTS", 10)
    notes = []
    report = reports.study_report("m", model, CORPUS, None, NoProgress, notes.append)
    assert notes == ["m: the corpus has too many different tokens to solve for the best W_U"]
    assert "solved" not in report["bigrams"]
    assert "model" in report["bigrams"]


def test_the_gradients_of_a_long_context_are_those_of_its_last_tokens(model, monkeypatch):
    monkeypatch.setattr(reports, "MAX_GRADIENT_TOKENS", 20)
    corpus = Corpus.of(TOKENIZER.encode(TEXT), CONFIG.vocab_size)
    report, _ = study(model, corpus)
    of_last_tokens = gradients.gradients(model, corpus.ids[-21:])  # the first is not predicted
    assert report["gradients"] == of_last_tokens.lengths_and_cosine()


def test_the_gradients_are_those_of_256_predicted_tokens():
    model = random_model(replace(CONFIG, n_layer=0, n_ctx=300))
    ids = np.random.default_rng(0).integers(0, 256, 400)
    report, _ = study(model, Corpus.of(ids, CONFIG.vocab_size))
    of_last_tokens = gradients.gradients(model, ids[-257:])  # the first is not predicted
    assert report["gradients"] == of_last_tokens.lengths_and_cosine()


def test_token_0_may_begin_a_document_and_a_context_of_one_token_has_no_path_started(monkeypatch):
    monkeypatch.setattr(solved, "MAX_PRODUCTS", 10)  # so no path is solved
    model = random_model(replace(CONFIG, n_ctx=2))
    report = reports.study_report("m", model, CORPUS, None, NoProgress, str, start=0)
    assert "started" in report["gains"]
    model = random_model(replace(CONFIG, n_ctx=1))
    report = reports.study_report("m", model, CORPUS, None, NoProgress, str, start=B)
    assert list(report["gains"]) == ["raw", "normed", "mlp0", "model"]


@pytest.mark.parametrize("alternatives", [None, 2])
def test_progress_counts_the_tokens_of_a_score(alternatives):
    read = []
    ids = np.array(TOKENIZER.encode("a" * 50))
    reports.score_report(random_model(CONFIG), TOKENIZER, ids, 64, alternatives, read.append)
    assert sum(read) == ids.size


def test_study_without_a_corpus(model):
    report, _ = study(model)
    assert report["direct_path"] == paths.direct_path(model)
    assert report["embeddings"] == embeddings.embeddings(model)
    for name in ["corpus", "bigrams", "gains", "missing", "tables", "mlps", "loss", "gradients"]:
        assert report[name] is None


def test_study_with_a_token_that_begins_a_document_has_the_path_started(model, monkeypatch):
    """That path has the logits of the whole model after two tokens: that one, and any other.

    The token that begins a document is "b" or the last of the vocabulary.
    """
    monkeypatch.setattr(solved, "MAX_PRODUCTS", 10)  # so no path is solved
    corpus = CORPUS
    start = B if model.config.tied else model.config.vocab_size - 1
    report = reports.study_report("m", model, corpus, None, NoProgress, str, start=start)
    assert list(report["bigrams"]) == ["unigram", "raw", "normed", "mlp0", "model", "started"]

    def started(model, tokens):
        return np.array([model([start, token])[-1] for token in tokens])

    gains = bigrams.gains(model, corpus, {"started": started})["started"]
    assert report["gains"]["started"] == pytest.approx(gains)
    expected = bigrams.bigrams(model, corpus, others={"started": started})["started"]
    assert report["bigrams"]["started"] == pytest.approx(expected)
    none = None if model.config.tied else model.config.vocab_size  # which the model has not
    without_it = reports.study_report("m", model, corpus, None, NoProgress, str, start=none)
    assert "started" not in without_it["bigrams"]
    assert "started" not in without_it["gains"]


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        pytest.param("a" * 99, {"loss"}, id="no-frequent-token"),
        pytest.param("abc" * 1000, {"loss"}, id="three-frequent-tokens"),
        pytest.param("abcdefghij" * 100, {"loss", "bigrams", "missing"}, id="ten-frequent-tokens"),
        pytest.param("", set(), id="empty"),
    ],
)
def test_study_of_a_text_with_few_frequent_tokens(model, text, measured):
    """Ten frequent tokens are enough for means over them."""
    report, _ = study(model, Corpus.of(TOKENIZER.encode(text), CONFIG.vocab_size))
    for name in ["loss", "bigrams", "missing"]:
        assert (report[name] is not None) == (name in measured)
    assert (report["corpus"]["jsd_floor"] is not None) == ("bigrams" in measured)


@pytest.mark.parametrize("W", ["W_E", "W_U"])
def test_a_direct_path_of_zeros_is_symmetric(W):
    """A = 0 has no direction, and no division by its length is made."""
    zeros, ones = np.zeros((5, 3)), np.ones((5, 3))
    W_E, W_U = (zeros, ones.T) if W == "W_E" else (ones, zeros.T)
    assert paths.asymmetry(W_E, W_U) == 0
    assert paths.matrix_asymmetry(W_E @ W_U) == 0
