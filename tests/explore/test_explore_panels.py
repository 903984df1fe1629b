"""Each answer of `tiedgpt explore` is what the library computes.

The fields of a question say of what: `text` or `ids` is the prompt, `side` the model (0 is the tied
model, 1 the untied one), `head` the output matrix (an untied model can use "untied", its W_U, or
"tied", its W_E.T). `asked` asks about TEXT, and one of the models with one of its heads.
"""

import base64
import inspect
import json
import textwrap
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.checks import peak_memory
from support.explore_server import ask, shown_models
from support.models import CONFIG, SMALL, random_model

import tiedgpt
from tiedgpt import GPT2, Tokenizer
from tiedgpt.errors import ArgumentError
from tiedgpt.explore import panels, query
from tiedgpt.explore.query import (
    ATTENTION_TOKENS,
    OTHER_PROMPTS,
    SHAKESPEARE_PROMPTS,
    ShownModels,
)
from tiedgpt.generation import Sampling
from tiedgpt.gpt2.ops import softmax
from tiedgpt.study import (
    bigrams,
    embeddings,
    gradients,
    paths,
    predictions,
    solved,
)
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.paths import PATHS, top_k
from tiedgpt.study.reports import lens_report, logit_report, token_report

TEXT = "To be, or not to be"
TOKENIZER = Tokenizer([])
IDS = TOKENIZER.encode(TEXT)
SAMPLING = {
    "temperature": 0.8,
    "top_k": 6,
    "top_p": 0.9,
    "min_p": 0.2,
    "repetition_penalty": 0.5,  # below 1, it makes tokens of the text likelier
}
OF_A_TEXT = ("next", "path", "nearest", "lens", "parts", "attention", "gradient")


def close(expected):
    return pytest.approx(np.asarray(expected), rel=1e-4, abs=1e-5)


def report_close(found, expected):
    """Whether two reports have the same names and texts, and nearly the same numbers."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            report_close(found[name], value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(report_close, found, expected))
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    return found == expected


def column(tokens, name="id"):
    return [token[name] for token in tokens]


def floats_of(text):
    return np.frombuffer(base64.b64decode(text), "<f4")


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


@pytest.fixture(params=[(0, "tied"), (1, "untied"), (1, "tied")])
def asked(request, shown, models):
    """(the model with its head, the function that asks about it)."""
    side, head = request.param
    model = models[side] if head == models[side].config.head else models[side].tie()
    return model, partial(ask, shown, text=TEXT, side=side, head=head)


# A prompt


@pytest.mark.parametrize("name", OF_A_TEXT)
def test_a_text_is_read_up_to_the_chosen_token(shown, name):
    """Place 4 means: the first five tokens, also for the penalty of "next"."""
    fields = {"path": "raw", "repetition_penalty": 0.5}
    found = ask(shown, name, text=TEXT, place=4, **fields)
    expected = ask(shown, name, ids=IDS[:5], **fields)
    if name == "next":  # it also has the whole text, which the page shows
        assert (column(found.pop("tokens")), found.pop("text"), found["place"]) == (IDS, TEXT, 4)
        del expected["tokens"], expected["text"]
    assert found == expected


def test_the_first_token_of_a_text_can_be_chosen(shown):
    """Its place is 0."""
    found = ask(shown, "next", text=TEXT, place=0)
    expected = ask(shown, "next", ids=IDS[:1])
    assert (found["place"], found["rows"]) == (0, expected["rows"])
    last = len(IDS) - 1
    assert ask(shown, "next", text=TEXT, place=last) == ask(shown, "next", text=TEXT)


def test_a_special_token_that_is_typed_is_its_letters(shown):
    found = ask(shown, "next", text="a<|endoftext|>")
    assert column(found["tokens"]) == TOKENIZER.encode("a<|endoftext|>", special="text")


def test_the_example_prompts_are_those_of_the_vocabulary(shown):
    """GPT-2's vocabulary has one token for " York", and can predict the name."""
    york = Tokenizer([("Ġ", "Y"), ("o", "r"), ("ĠY", "or"), ("ĠYor", "k")])
    assert ShownModels([("a", random_model())], york).prompts == OTHER_PROMPTS
    assert shown.prompts == SHAKESPEARE_PROMPTS
    assert len(set(OTHER_PROMPTS)) == len(set(SHAKESPEARE_PROMPTS)) == 4
    two_tokens = Tokenizer([("Ġ", "Y"), ("o", "r"), ("or", "k")])
    assert ShownModels([("a", random_model())], two_tokens).prompts == SHAKESPEARE_PROMPTS


def test_a_prompt_of_more_than_four_tokens_is_read_with_one_blas_thread(monkeypatch):
    used = []

    def one_blas_thread():
        used.append(1)
        return nullcontext()

    for module in (query, panels):
        monkeypatch.setattr(module, "one_blas_thread", one_blas_thread)
    shown = shown_models()
    ask(shown, "next", text="abcd")
    assert used == []
    ask(shown, "next", text="abcde")
    assert used == [1]
    largest_seed = 2**32
    ask(shown, "generate", text="abcdef", n=1, seed=largest_seed)
    assert used == [1, 1]
    ask(shown, "gradient", text="abcd")
    assert used == [1, 1, 1]


def test_an_id_that_only_pads_the_vocabulary_has_no_text():
    padded = shown_models(random_model(replace(CONFIG, vocab_size=300)))
    found = ask(padded, "next", ids=[*IDS, 299])
    assert found["text"] == TEXT
    assert found["tokens"][-1] == {"id": 299, "token": None}


# Each answer is the report


def test_next(asked):
    model, answer = asked
    found = answer("next", **SAMPLING)
    logits = predictions.last_logits(model, IDS)
    drawn = Sampling(**SAMPLING).probabilities(logits, IDS)
    likeliest = np.argsort(-logits)[: panels.LISTED]
    assert found["tokens"] == [token_report(TOKENIZER, token) for token in IDS]
    rows = found["rows"]
    assert column(rows) == likeliest.tolist()
    assert len(rows) == 14
    assert column(rows, "logit") == close(logits[likeliest])
    assert column(rows, "probability") == close(softmax(logits)[likeliest])
    assert column(rows, "drawn") == close(drawn[likeliest])
    assert 0 < found["kept"] == np.count_nonzero(drawn) < CONFIG.vocab_size
    assert found["kept_probability"] == close(softmax(logits)[drawn > 0].sum())


def test_a_temperature_of_0_is_not_one_that_is_not_sent(shown):
    assert ask(shown, "next", text=TEXT, temperature=0)["kept"] == 1
    assert ask(shown, "next", text=TEXT, temperature=None)["kept"] == CONFIG.vocab_size


@pytest.mark.parametrize(
    ("fields", "prompt"), [({"text": TEXT}, IDS), ({"ids": [3, 200, 256]}, [3, 200, 256])]
)
def test_generate(shown, models, fields, prompt):
    for side, model in enumerate(models):
        *lines, end = ask(shown, "generate", **fields, **SAMPLING, side=side, n=9, seed=5)
        expected = list(tiedgpt.generate(model, prompt, 9, **SAMPLING, seed=5))
        assert column(lines) == expected
        assert end["end"] == "length"
        assert end["bits_per_token"] == close(np.mean(column(lines, "bits")))
        # The last token of the prompt predicts the first new token, and so on.
        logits = model([*prompt, *expected])[len(prompt) - 1 : -1]
        for line, logits_of_line in zip(lines, logits, strict=True):
            (prediction,) = predictions.predict(logits_of_line, [line["id"]])
            assert line["probability"] == close(prediction.probability)
            assert line["logit"] == close(prediction.logit)
            assert line["bits"] == close(predictions.surprisal(prediction.log_probability))


def test_generate_ends_at_the_end_of_text_token(models):
    """All tokens are equally likely, so the model soon writes 7, its end-of-text token."""
    parameters = {**models[0].parameters, "wte.weight": np.zeros_like(models[0].W_E)}
    model = GPT2(replace(CONFIG, eos_token_id=7), parameters)
    *lines, end = ask(shown_models(model), "generate", ids=[64], n=200, seed=1)
    assert column(lines) == list(tiedgpt.generate(model, [64], 200, seed=1))
    assert len(lines) < 200
    assert end["end"] == "end of text"


def test_the_end_of_text_token_counts_in_the_bits_and_is_not_shown(models):
    expected = list(tiedgpt.generate(models[0], IDS, 5, seed=0))
    eos = expected[-1]
    written = expected[: expected.index(eos)]
    other = next(token for token in range(CONFIG.vocab_size) if token not in expected)
    model = GPT2(replace(CONFIG, eos_token_id=(other, eos)), models[0].parameters)
    *lines, end = ask(shown_models(model), "generate", ids=IDS, n=9, seed=0)
    assert column(lines) == written
    log_p = np.log(softmax(model([*IDS, *written])[-1]))
    bits = [*column(lines, "bits"), -log_p[eos] / np.log(2)]
    assert end["bits_per_token"] == close(np.mean(bits))


def test_lens(asked):
    model, answer = asked
    found = answer("lens")
    assert column(found.pop("tokens")) == IDS[-8:]
    assert {len(likeliest) for likeliest in found["layers"][0]["positions"]} == {3}
    expected = lens_report(model, TOKENIZER, IDS, panels.LENS_LIKELIEST, panels.LENS_TOKENS)
    assert report_close(found, expected)


@pytest.mark.parametrize("token", [None, 70, 0])
@pytest.mark.parametrize("removed", [[], ["attn.0.head.1", "mlp.1"]])
def test_parts(asked, token, removed):
    """The table "change" has the likeliest tokens with all parts, and without some."""
    model, answer = asked
    found = answer("parts", token=token, removed=removed)
    logits = predictions.last_logits(model, IDS)
    assert column(found.pop("likeliest")) == top_k(logits, 14).tolist()
    change = found.pop("change", None)
    assert report_close(found, logit_report(model, TOKENIZER, IDS, token, removed=removed))
    if removed:
        edit = predictions.ablation(CONFIG, removed)
        without = predictions.last_logits(model, IDS, edit)
        compared = [*top_k(without, 8), *top_k(logits, 8)]
        assert column(change) == list(dict.fromkeys(compared))  # each once
        assert column(change, "probability") == close(softmax(logits)[column(change)])
        assert column(change, "without") == close(softmax(without)[column(change)])


@pytest.mark.parametrize("ids", [IDS, [*range(60)]])
def test_attention(asked, ids):
    model, answer = asked
    found = answer("attention", ids=ids)
    last = slice(-32, None)
    assert column(found["tokens"]) == ids[last]
    tape = {}
    model(ids, tape=tape)
    layers = range(CONFIG.n_layer)
    patterns = np.stack([tape[f"attn.{layer}.pattern"][0][:, last, last] for layer in layers])
    # pytest.approx takes a tenth of a second for so many numbers.
    found_patterns = floats_of(found["patterns"])
    np.testing.assert_allclose(found_patterns, patterns.ravel(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("path", PATHS)
def test_path(asked, corpus, path):
    """The counts and percents of the text are of token b after token a, for each a (the row)."""
    model, answer = asked
    found = answer("path", path=path)
    tokens = column(found["tokens"])
    last_to_first = list(dict.fromkeys(IDS[::-1]))
    assert tokens == last_to_first[:7][::-1]
    assert len(last_to_first) > 7
    assert found["A"] == close(PATHS[path](model, np.array(tokens))[:, tokens])
    assert np.array_equal(floats_of(found["W_E"]), model.W_E[tokens].ravel())
    assert np.array_equal(floats_of(found["W_U"]), model.W_U.T[tokens].ravel())
    counts = [[corpus.count(a, b) for b in tokens] for a in tokens]
    percents = [[100 * corpus.share(a, b) for b in tokens] for a in tokens]
    assert found["text"]["counts"] == counts
    assert found["text"]["percent"] == close(percents)


def test_symmetry(asked, corpus, monkeypatch):
    model, answer = asked
    monkeypatch.setattr(paths, "MAX_LOGITS", 100 * CONFIG.vocab_size)  # several pieces of tokens
    found = answer("symmetry")
    assert found["text"] == corpus.self_prediction()
    tokens = np.arange(CONFIG.vocab_size)
    assert found["measured"] == tokens.size
    for name, path in PATHS.items():
        A = path(model, tokens).astype(float)
        expected = {
            "asymmetry": float(np.linalg.norm(A - A.T) / np.linalg.norm(A)),
            "self_prediction": float(np.mean(A.argmax(axis=1) == tokens)),
        }
        assert report_close(found["paths"][name], expected)


def test_a_large_vocabulary_is_measured_by_a_sample():
    """The model is tied, so its raw path is symmetric."""
    model = random_model(replace(CONFIG, vocab_size=5000))
    found = ask(shown_models(model), "symmetry")
    sample = panels.measured_tokens(model)
    assert found["measured"] == 512 == np.unique(sample).size
    assert (np.diff(sample) > 0).all()
    assert np.array_equal(sample, panels.measured_tokens(model)), "always the same"
    assert panels.measured_tokens(random_model(replace(SMALL, vocab_size=1024))).size == 1024
    assert panels.measured_tokens(random_model(replace(SMALL, vocab_size=1025))).size == 512
    raw = found["paths"]["raw"]
    assert raw["asymmetry"] < 1e-6
    assert raw["self_prediction"] == paths.predicts_itself(model)[sample].mean()


def test_scores_of_zero_are_symmetric():
    zeros = np.zeros((3, 2))
    assert paths.asymmetry(zeros, zeros.T) == 0
    assert paths.matrix_asymmetry(np.zeros((3, 3))) == 0


def test_solve(asked, corpus):
    model, answer = asked
    scores = bigrams.bigrams(model, corpus, others=solved.solved_paths(model, corpus))
    assert answer("solve")["missing"] == pytest.approx(solved.missing(scores), rel=1e-3)


def test_a_text_with_too_few_tokens_is_not_solved(models):
    shown = shown_models(*models, corpus=Corpus.of([65] * 50, CONFIG.vocab_size))
    assert ask(shown, "solve") == {"missing": None}
    with pytest.raises(ArgumentError, match="no text to compare with; start with --corpus FILE"):
        ask(shown_models(*models), "solve")


def test_nearest(asked):
    model, answer = asked
    found = answer("nearest", ids=[1, 40, 2], place=1)
    assert found["token"]["id"] == 40
    for name, rows in {"W_E": model.W_E, "W_U": model.W_U.T}.items():
        tokens, cosines = embeddings.nearest(rows, 40, 8)
        assert column(found[name]) == tokens.tolist()
        assert column(found[name], "cosine") == close(cosines)


def test_gradient(asked):
    """The gradient "embed" reaches the rows of the tokens that were read, and "head" all rows."""
    model, answer = asked
    found = answer("gradient")
    expected = gradients.gradients(model, IDS)
    embed, head, _, cosine = expected.by_row()
    ids = column(found["rows"])
    assert column(found["rows"], "embed") == close(embed[ids])
    assert column(found["rows"], "head") == close(head[ids])
    assert column(found["rows"], "cosine") == close(cosine[ids])
    absent = [token for token in ids if token not in IDS]
    by_length = np.argsort(-head, kind="stable").tolist()
    longest = [token for token in by_length if token not in IDS][:4]
    assert ids[-4:] == absent == longest
    assert found["absent"] == len(absent)
    assert found["read"] == len(IDS)
    assert found["loss"] == pytest.approx(expected.loss)
    assert found["reached"] == [len(set(IDS[:-1])), CONFIG.vocab_size]
    for name, value in expected.lengths_and_cosine().items():
        assert found[name] == pytest.approx(value)


def test_the_gradient_reads_the_last_tokens_of_a_long_text():
    long = shown_models(random_model(replace(CONFIG, n_ctx=512)))
    ids = [n % 256 for n in range(512)]
    found = ask(long, "gradient", ids=ids)
    assert found["read"] == 64
    assert column(found["rows"][:10]) == ids[-10:]
    assert len(found["rows"]) == 10 + 4


def test_a_prompt_of_nearly_all_tokens_leaves_few_absent_ones():
    tiny = replace(CONFIG, vocab_size=6, bos_token_id=None, eos_token_id=None)
    found = ask(shown_models(random_model(tiny)), "gradient", ids=[3, 0, 4, 1])
    assert column(found["rows"][:4]) == [3, 0, 4, 1]
    assert sorted(column(found["rows"][4:])) == [2, 5]
    assert found["absent"] == 2


def test_start(shown, models):
    found = ask(shown, "start")
    assert column(found["models"], "name") == ["a", "b"]
    assert column(found["models"], "heads") == [["tied"], ["untied", "tied"]]
    assert column(found["models"], "paths") == [list(PATHS), list(PATHS)]
    for facts, model in zip(found["models"], models, strict=True):
        assert facts["parameters"] == sum(array.size for array in model.parameters.values())
        assert facts["n_ctx"] == CONFIG.n_ctx
    assert found["prompts"] == list(SHAKESPEARE_PROMPTS)
    assert found["corpus"] == "a text"
    assert column(found["sampling"], "name") == [setting.name for setting in fields(Sampling)]
    by_name = {control["name"]: control for control in found["sampling"]}
    assert (by_name["min_p"]["min"], by_name["min_p"]["max"]) == (0, 1)
    assert by_name["temperature"]["max"] is None
    assert (by_name["top_k"]["whole"], by_name["min_p"]["whole"]) == (True, False)
    assert "min" not in by_name["greedy"]  # a checkbox
    defaults = {name: control["default"] for name, control in by_name.items()}
    assert defaults == asdict(Sampling())
    for setting in fields(Sampling):
        assert by_name[setting.name]["help"] == setting.metadata["help"]
    sources = {name: column(panel, "name") for name, panel in found["sources"].items()}
    assert sources == {
        "switch": ["unembedding", "unembed"],
        "path": ["raw", "symmetry_of", "mlp0", "mlp", "nearest", "fit_softmax"],
        "next": ["probabilities"],
        "lens": ["final_logits"],
        "parts": ["attribute"],
        "attention": ["attend"],
        "gradient": ["head_backward", "embed_backward"],
    }
    root = Path(tiedgpt.__file__).parents[1]
    for name, panel in panels.PANELS.items():
        for function, source in zip(panel.sources, found["sources"][name], strict=True):
            assert source["name"] == function.__name__
            assert source["text"] == textwrap.dedent(inspect.getsource(function)).rstrip()
            lines = (root / source["file"]).read_text(encoding="utf-8").splitlines()
            assert lines[source["line"] - 1].strip() == source["text"].splitlines()[0]


# Models without layers, memory, kept results


def test_a_model_without_layers():
    shown = shown_models(random_model(replace(CONFIG, n_layer=0)))
    start = ask(shown, "start")
    (facts,) = start["models"]
    assert start["corpus"] is None
    assert ask(shown, "symmetry")["text"] is None
    assert ask(shown, "path", text=TEXT, path="raw")["text"] is None
    assert facts["paths"] == ["raw", "normed", "model"]
    assert len(ask(shown, "lens", text=TEXT)["layers"]) == 1
    assert ask(shown, "parts", text=TEXT)["parts"].keys() == {"wte", "wpe", "ln_f.bias"}
    assert ask(shown, "gradient", text=TEXT)["reached"][1] == CONFIG.vocab_size
    assert ask(shown, "symmetry")["paths"].keys() == {"raw", "normed", "model"}
    with pytest.raises(ArgumentError, match="no layers"):
        ask(shown, "attention", text=TEXT)


def test_path_and_gradient_take_little_memory():
    large = replace(CONFIG, vocab_size=5000)
    shown = shown_models(random_model(large))
    peak = peak_memory(partial(ask, shown, "path", text=TEXT, path="model"))
    bytes_of_all_scores = 4 * large.vocab_size**2  # float32
    assert peak < bytes_of_all_scores / 100
    wide = replace(large, n_embd=384)
    peak = peak_memory(partial(ask, shown_models(random_model(wide)), "gradient", text=TEXT))
    bytes_of_wte = 4 * wide.vocab_size * wide.n_embd
    assert peak < bytes_of_wte / 2


@pytest.mark.parametrize("name", ["next", "lens", "parts", "attention", "gradient"])
def test_an_answer_takes_less_memory_than_the_attention_of_a_context(name):
    long = replace(CONFIG, n_ctx=256, n_embd=48, n_head=12, n_layer=4)
    shown = shown_models(random_model(long))
    ids = [n % 256 for n in range(long.n_ctx)]
    peak = peak_memory(partial(ask, shown, name, ids=ids))
    bytes_of_all_patterns = 4 * long.n_layer * long.n_head * long.n_ctx**2  # float32
    assert peak < bytes_of_all_patterns / 2


def test_a_kept_tape_has_the_patterns_of_the_last_tokens_in_memory_of_their_own():
    """The pattern of a whole context would stay in memory with a view of its last columns."""
    long = replace(CONFIG, n_ctx=200)
    shown = shown_models(random_model(long))
    tape = shown.tape(0, [n % 256 for n in range(long.n_ctx)])
    patterns = [array for name, array in tape.items() if "pattern" in name]
    assert len(patterns) == long.n_layer
    for pattern in patterns:
        assert pattern.shape[-2:] == (ATTENTION_TOKENS, ATTENTION_TOKENS)
        assert pattern.base is None


def test_a_prompt_is_read_once_for_both_heads_and_all_panels(models, monkeypatch):
    read = []
    last_tape = predictions.last_tape  # it reads a prompt

    def recording(model, ids, *arguments):
        read.append(ids)
        return last_tape(model, ids, *arguments)

    monkeypatch.setattr(predictions, "last_tape", recording)
    shown = shown_models(models[1])
    for name in ("next", "lens", "parts", "attention"):
        for head in ("untied", "tied"):
            ask(shown, name, text=TEXT, head=head)
    assert read == [IDS]
    # A tape takes much memory, so those of the last four prompts are kept.
    for token in range(4):
        ask(shown, "next", ids=[token])
    ask(shown, "next", ids=[1])
    ask(shown, "next", text=TEXT)
    assert read == [IDS, [0], [1], [2], [3], IDS]


# What is refused

EMPTY = "the prompt is empty: GPT-2 needs at least one token to continue"
SEED = "seed must be a whole number from 0 to 4294967296"
OUTSIDE = "token id 257 is outside the vocabulary of 257 (0 to 256)"
PATH = "path must be one of raw, normed, mlp0, model"
NOT_A_PART = (
    "'attn.9' is not a part that can be removed; the nearest are attn.1, attn.0, attn.1.head.2"
)
RANGES = {
    "temperature": "a number of at least 0",
    "top_k": "a whole number of at least 0",
    "top_p": "a number from 0 to 1",
    "min_p": "a number from 0 to 1",
    "repetition_penalty": "a number above 0",
}
WRONG_FIELDS = [
    ("next", {"text": ""}, EMPTY),
    ("next", {"ids": []}, EMPTY),
    ("next", {"text": "a" * 65}, "the input has 65 tokens, more than the model's context of 64"),
    ("next", {"text": 5}, "text must be a string, got 5"),
    ("next", {"text": None}, "text must be a string, got None"),
    ("next", {"ids": [1, 257]}, OUTSIDE),
    ("next", {"ids": [True]}, "ids must be whole numbers, got bool"),
    ("next", {"place": 19}, "place must be a whole number from 0 to 18, got 19"),
    ("next", {"place": -1}, "place must be a whole number from 0 to 18, got -1"),
    ("next", {"head": "untied"}, "head must be one of tied, got 'untied'"),
    ("next", {"head": []}, "head must be one of tied, got []"),
    ("next", {"side": "0"}, "side must be a whole number from 0 to 0, got '0'"),
    ("next", {"side": 1}, "side must be a whole number from 0 to 0, got 1"),  # there is one model
    *[("next", {name: -1}, f"{name} must be {RANGES[name]}, got -1") for name in SAMPLING],
    ("next", {"greedy": 1}, "greedy must be True or False, got 1"),
    ("generate", {"n": 201, "seed": 1}, "n must be a whole number from 1 to 200, got 201"),
    ("generate", {"n": 0, "seed": 1}, "n must be a whole number from 1 to 200, got 0"),
    ("generate", {"n": 1, "seed": -1}, f"{SEED}, got -1"),
    ("generate", {"n": 1, "seed": 2**32 + 1}, f"{SEED}, got 4294967297"),
    ("generate", {"n": 1}, f"{SEED}, got None"),
    ("path", {"path": "x"}, f"{PATH}, got 'x'"),
    ("path", {"path": []}, f"{PATH}, got []"),
    ("solve", {}, "there is no text to compare with; start with --corpus FILE"),
    ("parts", {"removed": ["attn.9"]}, NOT_A_PART),
    ("parts", {"removed": "x"}, "removed must be a list of parts, got 'x'"),
    ("parts", {"token": 257}, OUTSIDE),
    ("parts", {"token": [1]}, "the prompt must be one sequence of ids [T], got shape (1, 1)"),
    (
        "gradient",
        {"text": "a"},
        "a score needs two tokens or more, got 1: the first is not predicted",
    ),
]


@pytest.fixture(scope="module")
def without_corpus():
    return shown_models()


@pytest.mark.parametrize(("name", "fields", "message"), WRONG_FIELDS)
def test_wrong_fields_are_an_error_of_one_line(without_corpus, name, fields, message):
    with pytest.raises(ArgumentError) as caught:
        ask(without_corpus, name, **{"text": TEXT, **fields})
    assert str(caught.value) == message


def test_a_text_must_fit_the_context_of_each_model_whichever_is_asked():
    models = [random_model(CONFIG), random_model(replace(CONFIG, n_ctx=8))]
    for shown in (shown_models(*models), shown_models(*models[::-1])):
        for side in (0, 1):
            with pytest.raises(ArgumentError, match="9 tokens, more than the model's context of 8"):
                ask(shown, "next", text="a" * 9, side=side)


def test_answers_are_json(shown):
    """Without nan or infinity, which JSON does not have."""
    for name in OF_A_TEXT:
        json.dumps(ask(shown, name, text=TEXT, path="raw"), allow_nan=False)
