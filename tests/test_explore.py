"""`tiedgpt explore`: each view equals the library call that it names; the server refuses what it must."""

import base64
import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import CONFIG, assert_one_error_line, command, random_model
from explore_server import connect, headers, post, request, serving

import tiedgpt
from tiedgpt import GPT2, Tokenizer, count_parameters
from tiedgpt.errors import ArgumentError
from tiedgpt.explore import server as server_module
from tiedgpt.explore import source as source_module
from tiedgpt.explore import views as views_module
from tiedgpt.explore.server import MAX_BODY, PAGE, VIEWS
from tiedgpt.explore.source import sources
from tiedgpt.explore.symmetry import SAMPLE, measured_tokens
from tiedgpt.explore.views import Views, sides_of
from tiedgpt.inference.sampling import Sampling
from tiedgpt.study import bigrams, predictions, toy
from tiedgpt.study.attribution import ablation, attribute
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.direct_path import direct_path, predicts_itself
from tiedgpt.study.gradients import gradients
from tiedgpt.study.lens import lens
from tiedgpt.study.paths import PATHS, top_k
from tiedgpt.study.similarity import nearest
from tiedgpt.study.solved import missing, solved_paths

TEXT = "To be, or not to be"
IDS = Tokenizer([]).encode(TEXT)
SAMPLING = {"temperature": 0.8, "top_k": 6, "top_p": 0.9}
PAGE_FOLDER = Path(views_module.__file__).parent / "page"


def close(found, expected):
    assert np.asarray(found).shape == np.asarray(expected).shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def a_corpus():
    rng = np.random.default_rng(0)
    return Corpus.of(rng.zipf(1.2, 6000) % 64 + 60, CONFIG.vocab_size)


@pytest.fixture(scope="module")
def models():
    return [random_model(CONFIG, 1), random_model(replace(CONFIG, tied=False), 2)]


@pytest.fixture(scope="module")
def views(models):
    names = ("one", "<b>two</b>")
    return Views(sides_of(list(zip(names, models, strict=True))), Tokenizer([]), a_corpus(), "a text")


@pytest.fixture(scope="module")
def server(views):
    with serving(views) as server:
        yield server


def answer(server, view, **fields):
    status, found = post(server, view, {"text": TEXT, **fields})
    assert status == 200, found
    return found


# Views


def test_next(server, models):
    found = answer(server, "next", **SAMPLING)
    assert [token["id"] for token in found["tokens"]] == IDS
    assert found["text"] == TEXT
    for side, model in zip(found["sides"], models, strict=True):
        logits = predictions.last_logits(model, IDS)
        expected = predictions.draw(logits, Sampling(**SAMPLING), views_module.LISTED)
        assert [row["id"] for row in side["rows"]] == [p.token for p in expected.predictions]
        close([row["probability"] for row in side["rows"]], [p.probability for p in expected.predictions])
        close([row["drawn"] for row in side["rows"]], expected.probabilities)
        assert side["kept"] == expected.kept
        close(side["kept_probability"], expected.kept_probability)


def test_next_with_the_other_head(server, models):
    found = answer(server, "next", heads=["tied", "tied"])
    for side, model in zip(found["sides"], models, strict=True):
        expected = predictions.last_logits(model.tie(), IDS)
        assert [row["id"] for row in side["rows"]] == top_k(expected, views_module.LISTED).tolist()
        close([row["logit"] for row in side["rows"]], np.sort(expected)[::-1][: views_module.LISTED])


@pytest.mark.parametrize("view", ["next", "path", "nearest", "lens", "parts", "attention", "gradient"])
def test_every_view_of_a_text_reads_it_up_to_the_chosen_token(server, view):
    found = answer(server, view, place=4, path="raw")
    expected = answer(server, view, ids=IDS[:5], text=None, path="raw")
    if view == "next":
        assert [token["id"] for token in found.pop("tokens")] == IDS
        assert (found.pop("text"), found["place"]) == (TEXT, 4)
        expected = {name: expected[name] for name in found}
    assert found == expected


def test_an_id_that_only_pads_the_vocabulary_has_no_text():
    model = random_model(replace(CONFIG, vocab_size=300))
    views = Views(sides_of([("padded", model)]), Tokenizer([]), None, "")
    found = views.next({"ids": [*IDS, 299]}, lambda *_: None)
    assert (found["text"], found["tokens"][-1]["text"]) == (TEXT, "[299]")


def test_a_draw_is_what_sampling_keeps():
    logits = np.log(np.array([0.5, 0.25, 0.2, 0.05]))
    found = predictions.draw(logits, Sampling(top_k=2), 3)
    assert [p.token for p in found.predictions] == [0, 1, 2]
    close(found.probabilities, [2 / 3, 1 / 3, 0])
    assert found.kept == 2
    close(found.kept_probability, 0.75)


@pytest.mark.parametrize("ids", [None, [3, 200, 256]])
def test_generate(server, models, ids):
    prompt = IDS if ids is None else ids
    lines = answer(server, "generate", ids=ids, n=9, seed=5, **SAMPLING)
    for side, model in enumerate(models):
        *tokens, end = [line for line in lines if line["side"] == side]
        assert [t["id"] for t in tokens] == list(tiedgpt.generate(model, prompt, 9, **SAMPLING, seed=5))
        assert end["end"] == "length"
        close(end["bits_per_token"], np.mean([t["bits"] for t in tokens]))
        logits = model([*prompt, *[t["id"] for t in tokens]])
        for place, token in enumerate(tokens, len(prompt) - 1):
            (expected,) = predictions.predict(logits[place], [token["id"]])
            close([token["probability"], token["logit"]], [expected.probability, expected.logit])
            close(token["bits"], predictions.surprisal(expected.log_probability))


def test_generate_for_one_side_and_to_the_end_of_the_text(views, models):
    eos = replace(CONFIG, eos_token_id=7)
    all_alike = np.zeros_like(models[0].W_E)
    model = GPT2(eos, {**models[0].parameters, "wte.weight": all_alike})
    alone = Views(sides_of([("other", model), ("one", model)]), Tokenizer([]), None, "")
    lines = list(
        alone.generate({"text": "a", "n": 200, "seed": 1, "side": 1, "temperature": 100}, lambda *_: None)
    )
    expected = list(tiedgpt.generate(model, [64], 200, 100.0, seed=1))
    assert [line["id"] for line in lines[:-1]] == expected
    assert lines[-1]["end"] == ("end of text" if len(expected) < 200 else "length")
    assert {line["side"] for line in lines} == {1}


def test_lens(server, models):
    found = answer(server, "lens")
    last = views_module.LENS_TOKENS
    assert [token["id"] for token in found["tokens"]] == IDS[-last:]
    for side, model in zip(found["sides"], models, strict=True):
        for row, layer in zip(side["layers"], lens(model, IDS, 3), strict=True):
            assert [[t["id"] for t in cell] for cell in row] == layer.tokens[-last:].tolist()
            close([[t["probability"] for t in cell] for cell in row], layer.probabilities[-last:])


def test_parts(server, models):
    removed = ["attn.0.head.1", "mlp.1"]
    for side, model in enumerate(models):
        logits = predictions.last_logits(model, IDS)
        found = answer(server, "parts", side=side, removed=removed, token=70)
        assert found["parts"] == pytest.approx(attribute(model, IDS, 70), abs=1e-5)
        (before,) = predictions.predict(logits, [70])
        without = predictions.last_logits(model, IDS, ablation(CONFIG, removed))
        (after,) = predictions.predict(without, [70])
        close([found["before"]["logit"], found["after"]["logit"]], [before.logit, after.logit])
        assert (found["before"]["rank"], found["after"]["rank"]) == (before.rank, after.rank)
        first = predictions.predict(without, [without.argmax()])[0]
        assert found["change"][0]["id"] == first.token
        close(found["change"][0]["drawn"], first.probability)
        assert {row["id"] for row in found["change"]} >= set(top_k(logits, 8).tolist())
        plain = answer(server, "parts", side=side)
        assert plain["before"]["id"] == logits.argmax()
        assert "after" not in plain


def patterns(found, T):
    return np.frombuffer(base64.b64decode(found["patterns"]), "<u2").reshape(2, 3, T, T) / 65535


def test_attention(server, models):
    found = patterns(answer(server, "attention", side=1), len(IDS))
    tape = {}
    models[1](IDS, tape=tape)
    for layer in range(2):
        assert abs(found[layer] - tape[f"attn.{layer}.pattern"][0]).max() <= 0.51 / 65535


def test_the_last_tokens_of_a_long_prompt(server):
    ids = [*range(60)]
    found = answer(server, "attention", ids=ids)
    assert [token["id"] for token in found["tokens"]] == ids[-views_module.ATTENTION_TOKENS :]
    assert patterns(found, 32).shape == (2, 3, 32, 32)


@pytest.mark.parametrize("path", PATHS)
def test_path(server, models, views, path):
    found = answer(server, "path", path=path)
    tokens = [token["id"] for token in found["tokens"]]
    assert len(tokens) == len(set(tokens)) == views_module.MATRIX_TOKENS
    assert set(tokens) <= set(IDS)
    for side, model in zip(found["sides"], models, strict=True):
        close(side["A"], PATHS[path](model, np.array(tokens))[:, tokens])
        for name, rows in (("W_E", model.W_E), ("W_U", model.W_U.T)):
            assert np.array_equal(np.frombuffer(base64.b64decode(side[name]), "<f4"), rows[tokens].ravel())
    assert found["text"]["counts"] == [[views.corpus.count(a, b) for b in tokens] for a in tokens]
    shares = [[100 * views.corpus.share(a, b) for b in tokens] for a in tokens]
    close(found["text"]["percent"], shares)
    assert max(map(sum, shares)) <= 100 + 1e-9


def test_symmetry_and_solved(server, models, views):
    symmetry, solved = answer(server, "symmetry"), answer(server, "solved")
    assert symmetry["text"] == views.corpus.self_prediction()
    for of_A, of_text, model in zip(symmetry["sides"], solved["sides"], models, strict=True):
        assert of_A["measured"] == CONFIG.vocab_size
        whole = direct_path(model)
        assert of_A["paths"]["raw"] == pytest.approx({name: whole[name] for name in of_A["paths"]["raw"]})
        for name, path in PATHS.items():
            A = path(model, np.arange(CONFIG.vocab_size)).astype(float)
            expected = np.linalg.norm(A - A.T) / np.linalg.norm(A), np.mean(A.argmax(1) == np.arange(len(A)))
            assert tuple(of_A["paths"][name].values()) == pytest.approx(expected)
        scores = bigrams.bigrams(model, views.corpus, None, solved_paths(model, views.corpus))
        assert of_text == pytest.approx(missing(scores), rel=1e-3)


def test_a_large_vocabulary_is_measured_by_a_sample():
    model = random_model(replace(CONFIG, vocab_size=20_000))
    views = Views(sides_of([("one", model)]), Tokenizer([]), None, "")
    said = []
    (side,) = views.symmetry({}, lambda part=None: said.append(part))["sides"]
    assert side["measured"] == SAMPLE == np.unique(measured_tokens(model)).size
    assert peak_of(views, ["path"], text=TEXT, path="model") < 4 * 20_000**2 / 100
    assert side["paths"]["raw"]["asymmetry"] == 0
    itself = predicts_itself(model)[measured_tokens(model)].mean()
    assert side["paths"]["raw"]["self_prediction"] == itself
    assert said[0] is None
    assert {part for part in said if part is not None} == {0, 0.25, 0.5, 0.75}


def test_nearest(server, models):
    found = answer(server, "nearest", ids=[1, 40])
    for side, model in zip(found["sides"], models, strict=True):
        for name, rows in (("W_E", model.W_E), ("W_U", model.W_U.T)):
            tokens, cosines = nearest(rows, 40, views_module.NEAREST)
            assert [token["id"] for token in side[name]] == tokens.tolist()
            close([token["cosine"] for token in side[name]], cosines)


def test_gradient(server, models):
    for side, model in enumerate(models):
        found, expected = answer(server, "gradient", side=side), gradients(model, IDS)
        rows = expected.by_row()
        assert found["loss"] == pytest.approx(expected.loss)
        assert found["reached"] == [len(set(IDS[:-1])), CONFIG.vocab_size]
        for row in found["rows"]:
            numbers = [row[name] for name in ("embed", "head", "both", "cosine")]
            close(numbers, rows[:, row["id"]])
        assert [row["id"] for row in found["rows"]][-1] not in IDS
        assert {name: found[name] for name in ("embed", "head", "cosine")} == pytest.approx(expected.whole())


def peak_of(views, names, **fields):
    """The most memory that views take at once, in bytes."""
    tracemalloc.start()
    try:
        for name in names:
            getattr(views, name)(fields, lambda *_: None)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_gradient_takes_less_memory_than_a_matrix_of_the_vocabulary():
    config = replace(CONFIG, vocab_size=20_000, n_embd=192)
    views = Views(sides_of([("one", random_model(config))]), Tokenizer([]), None, "")
    assert peak_of(views, ["gradient"], text=TEXT) < 4 * config.vocab_size * config.n_embd / 2


def test_a_long_prompt_takes_less_memory_than_its_attention():
    config = replace(CONFIG, n_ctx=512, n_embd=48, n_head=12, n_layer=4)
    views = Views(sides_of([("one", random_model(config))]), Tokenizer([]), None, "")
    ids = [n % 256 for n in range(config.n_ctx)]
    names = ["next", "lens", "parts", "attention", "gradient"]
    assert peak_of(views, names, ids=ids) < 4 * config.n_layer * config.n_head * config.n_ctx**2 / 2
    assert views.gradient({"ids": ids}, lambda *_: None)["read"] == views_module.GRADIENT_TOKENS


def test_both_heads_of_a_model_read_a_prompt_once(models, monkeypatch):
    views = Views(sides_of([("one", models[1])]), Tokenizer([]), None, "")
    calls = []
    read = views_module.last_tape
    monkeypatch.setattr(views_module, "last_tape", lambda *a, **kw: calls.append(a) or read(*a, **kw))
    for head in ("untied", "tied"):
        for name in ("next", "lens", "parts", "attention"):
            getattr(views, name)({"text": TEXT, "heads": [head]}, lambda *_: None)
    assert len(calls) == 1
    for n in range(10):  # results are kept for the last prompts only
        views.next({"ids": [n]}, lambda *_: None)
    assert [len(results) for results in views._results.values()] == [4, 12, 0, 0]


def test_toy(server):
    found = answer(server, "toy", W_E=toy.EMBEDDING, P=toy.TABLE)
    for name, way in toy.solve().items():
        close(found["ways"][name]["probabilities"], way.probabilities)
        close(found["ways"][name]["scores"], way.scores)
        close([found["ways"][name]["kl"], found["ways"][name]["asymmetry"]], [way.kl, way.asymmetry])
    solved = answer(server, "toy", W_E=toy.EMBEDDING, P=toy.TABLE, solve_W_E=True)
    close(solved["W_E"], toy.embedding_of(toy.TABLE, 2))


def test_params(server):
    found = answer(server, "params", vocab=50_000, dim=4096, total=7 * 10**9)
    assert found["untied"] - found["tied"] == 50_000 * 4096
    tied = count_parameters(tiedgpt.Config())["tied"]["total"]
    untied = tied + 50257 * 768
    expected = {"name": "gpt2", "tied": tied, "untied": untied, "saved_percent": 100 * 50257 * 768 / untied}
    assert found["models"][0] == expected


def test_start_and_source(server):
    found = answer(server, "start")
    assert [model["name"] for model in found["models"]] == ["one", "<b>two</b>"]
    assert [model["heads"] for model in found["models"]] == [["tied"], ["untied", "tied"]]
    root = Path(tiedgpt.__file__).parents[1]
    for name, function in answer(server, "source").items():
        whole = (root / function["file"]).read_text(encoding="utf-8").splitlines()[function["line"] - 1 :]
        lines = function["text"].splitlines()
        assert [line.strip() for line in lines] == [line.strip() for line in whole[: len(lines)]]
        assert f"def {name}(" in function["text"]


def test_the_page_names_each_source_and_each_view():
    page = (PAGE_FOLDER / "page.html").read_text(encoding="utf-8")
    named = " ".join(re.findall(r'data-sources="(.*?)"', page)).split()
    assert sorted(named) == sorted(sources())
    script = "".join(file.read_text(encoding="utf-8") for file in PAGE_FOLDER.glob("*.js"))
    asked = set(re.findall(r'(?:ask|answer|panel)\(\s*"(\w+)"', script))
    assert asked - {"cost"} == {*VIEWS, "quit"} - {"params"}


def test_a_side_has_the_heads_that_its_checkpoint_has(models):
    tied, untied = sides_of([("one", models[0]), ("two", models[1])])
    assert [*tied.models] == ["tied"]
    assert [*untied.models] == ["untied", "tied"]
    assert np.array_equal(untied.models["tied"](IDS), models[1].tie()(IDS))


def test_a_model_without_layers(models):
    model = random_model(replace(CONFIG, n_layer=0))
    views = Views(sides_of([("none", model)]), Tokenizer([]), None, "")
    query, step = {"text": TEXT}, lambda *_: None
    assert len(views.lens(query, step)["sides"][0]["layers"]) == 1
    assert views.parts(query, step)["parts"].keys() == {"wte", "wpe", "ln_f.bias"}
    assert views.gradient(query, step)["reached"][1] == CONFIG.vocab_size
    assert views.symmetry(query, lambda part=None: None)["sides"][0]["paths"].keys() == {*PATHS} - {"mlp0"}
    with pytest.raises(ArgumentError, match="no layers"):
        views.attention(query, step)
    with pytest.raises(ArgumentError, match="no text to compare"):
        views.solved(query, step)


# Requests with wrong fields

WRONG = [
    ("next", {"text": ""}, "the prompt is empty"),
    ("next", {"text": "a" * 65}, "65 tokens, more than the model's context of 64"),
    ("next", {"text": 5}, "text must be a string"),
    ("next", {"text": "\ud800"}, "half of a surrogate pair"),
    ("next", {"ids": [1, -1]}, "-1 is outside the vocabulary"),
    ("next", {"ids": [1, 257]}, "257 is outside the vocabulary"),
    ("next", {"ids": [True]}, "ids must be whole numbers"),
    ("next", {"ids": {"a": 1}}, "the prompt must be one sequence"),
    ("next", {"ids": [[1, 2]]}, "the prompt must be one sequence"),
    ("next", {"ids": "1.2"}, "expected token ids, got text"),
    ("next", {"place": 99}, "place must be a whole number from 0 to"),
    ("next", {"place": -1}, "place must be a whole number from 0 to"),
    ("next", {"heads": ["untied", "untied"]}, "one has no head 'untied'"),
    ("next", {"heads": [[], {}]}, "has no head"),
    ("next", {"heads": "tied"}, "heads must be a list of 2"),
    ("next", {"temperature": 0}, "temperature must be a number above 0"),
    ("next", {"temperature": "1"}, "temperature must be"),
    ("next", {"top_k": 1.5}, "top_k must be"),
    ("next", {"top_p": 2}, "top_p must be"),
    ("generate", {"n": 201, "seed": 1}, "n must be a whole number from 1 to 200, got 201"),
    ("generate", {"n": 1, "seed": -1}, "seed must be"),
    ("generate", {"n": 1, "seed": 1, "side": 7}, "side must be"),
    ("path", {"path": "x"}, "path must be one of raw, normed, mlp0, model, got 'x'"),
    ("path", {"path": []}, "path must be one of"),
    ("toy", {"W_E": [[1, 2]] * 3, "P": [[-1] * 3] * 3, "solve_W_E": 1}, "every number of P must be above 0"),
    ("parts", {"removed": ["attn.9"]}, "no part of this model"),
    ("parts", {"removed": "x"}, "removed must be a list"),
    ("parts", {"side": 2}, "side must be"),
    ("parts", {"token": 257}, "257 is outside the vocabulary"),
    ("gradient", {"text": "a"}, "needs at least two"),
    ("toy", {"W_E": [[1e9]] * 3, "P": toy.TABLE}, "-100 to 100"),
    ("toy", {"W_E": [[1, 2]] * 2, "P": toy.TABLE}, "W_E must be [n, D] and P [n, n]"),
    ("toy", {"W_E": [[1, 2], [1]], "P": [[1, 1], [1, 1]]}, "W_E must be a matrix"),
    ("toy", {"W_E": "x", "P": toy.TABLE}, "W_E must be a matrix of finite numbers"),
    ("toy", {"W_E": [[1]] * 3, "P": [[1, 0, 1]] * 3}, "above 0"),
    ("params", {"vocab": 10**8, "dim": 1, "total": 1}, "vocab must be"),
]


@pytest.mark.parametrize(("view", "fields", "message"), WRONG)
def test_wrong_fields_are_one_line_and_the_server_lives_on(server, view, fields, message):
    status, found = post(server, view, {"text": TEXT, **fields})
    found = found[0] if isinstance(found, list) else found
    assert status == 400
    assert message in found["error"]["message"]
    assert "\n" not in found["error"]["message"]
    assert answer(server, "next")["text"] == TEXT


# Refusals


def get(server, path, **changes):
    return request(server, "GET", path, Content_Type=None, Origin=None, **changes)


def test_the_page_and_its_headers(server):
    for path, file in PAGE.items():
        status, body, response = get(server, f"/{server.secret}/{path}")
        assert (status, body) == (200, (PAGE_FOLDER / file).read_bytes())
        policy = response.getheader("Content-Security-Policy")
        assert policy.startswith(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
        )
        assert "unsafe" not in policy
        assert response.getheader("X-Content-Type-Options") == "nosniff"
        assert response.getheader("Cache-Control") == "no-store"
        assert response.getheader("Referrer-Policy") == "same-origin"
    assert get(server, f"/{server.secret}/", Host=f"localhost:{server.server_port}")[0] == 200


def test_the_address_in_the_browsers_command_line_works_once(views):
    with serving(views) as server:
        path = f"/{server.ticket}/"
        assert server.url_once.endswith(path)
        assert post(server, "", {}, path=path)[0] == 404
        assert get(server, path, Host="evil.example")[0] == 403
        assert get(server, path)[0] == 404
    with serving(views) as server:
        path = f"/{server.ticket}/"
        status, _, response = get(server, path)
        assert (status, response.getheader("Location")) == (302, f"/{server.secret}/")
        assert [get(server, p)[0] for p in (path, "//", f"/{server.secret}/")] == [404, 404, 200]


HOSTS = ["evil.example", "evil.example:PORT", "127.0.0.1.evil.example", "localhost.evil.example:PORT", ""]
HOSTS += ["evil.example@127.0.0.1", "127.0.0.1:x", "127.0.0.2:PORT"]


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:8080", "localhost", "[::1]:99"])
def test_a_name_of_this_machine_is_the_host_through_any_port(server, host):
    assert get(server, f"/{server.secret}/", Host=host)[0] == 200
    assert post(server, "next", {"text": TEXT}, Host=host, Origin=f"http://{host}")[0] == 200
    assert post(server, "next", {"text": TEXT}, Host=host)[0] == 403  # a page of another port


def test_an_address_without_its_slash_and_an_old_one(server):
    status, _, response = get(server, f"/{server.secret}")
    assert (status, response.getheader("Location")) == (302, f"/{server.secret}/")
    for accept, type_ in (("text/html", "text/html"), ("*/*", "application/json")):
        status, body, response = get(server, "/of-an-earlier-run/", Accept=accept)
        assert (status, response.getheader("Content-Type")) == (404, f"{type_}; charset=utf-8")
        assert server.secret.encode() not in body
    assert get(server, "/ask.js", Host="evil.example")[0] == 403


@pytest.mark.parametrize("host", HOSTS)
def test_another_host_is_refused(server, host):
    host = host.replace("PORT", str(server.server_port))
    assert get(server, f"/{server.secret}/", Host=host)[0] == 403
    status, found = post(server, "next", {"text": TEXT}, Host=host, Origin=f"http://{host}")
    assert (status, found["error"]["kind"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "path", ["/", "/x/", "/SECRETx/", "/SECRET/../page.html", "/SECRET/x", "/SECRET/%2e%2e/"]
)
def test_other_paths_are_not_found(server, path):
    path = path.replace("SECRET", server.secret)
    assert get(server, path)[0] == 404
    assert post(server, "", {}, path=path)[0] == 404


@pytest.mark.parametrize(
    "changes",
    [
        {"Origin": None},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "https://127.0.0.1:PORT"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(server, changes):
    changes = {n: v and v.replace("PORT", str(server.server_port)) for n, v in changes.items()}
    for view in ("next", "quit"):
        assert post(server, view, {"text": TEXT}, **changes)[0] == 403
    assert answer(server, "next", text="still here")["text"] == "still here"


@pytest.mark.parametrize(
    "type_", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_other_types_are_refused(server, type_):
    assert post(server, "next", {"text": TEXT}, Content_Type=type_)[0] == 415


def test_other_methods_are_refused(server):
    for method, path in (
        ("PUT", ""),
        ("DELETE", "next"),
        ("OPTIONS", "next"),
        ("GET", "next"),
        ("GET", "quit"),
    ):
        assert request(server, method, f"/{server.secret}/{path}")[0] == 405, method
    assert post(server, "page.js", {"text": TEXT})[0] == 405


def test_bodies_that_are_refused(server):
    assert post(server, "next", b"x" * (MAX_BODY + 1))[0] == 413
    assert post(server, "next", {"text": "a" * 1_000_000})[0] == 413
    assert post(server, "next", b"", Content_Length="9" * 30)[0] == 413
    for body in (b"", b"[]", b"{", b'{"x": NaN}', b"[" * 50_000, b"\xff"):
        status, found = post(server, "next", body)
        assert status == 400, body
        assert "expected" in found["error"]["message"]
    for length in ("-1", "1x", None):
        with connect(server) as connection:
            connection.putrequest("POST", f"/{server.secret}/next")
            for name, value in headers(server, Content_Length=length).items():
                connection.putheader(name, value)
            connection.endheaders()
            with connection.getresponse() as response:
                assert response.status == 411


def test_too_many_connections(server, monkeypatch):
    monkeypatch.setattr(server_module, "CONNECTIONS", 0)
    status, body, _ = get(server, f"/{server.secret}/")
    assert (status, b"Close other pages" in body) == (503, True)
    monkeypatch.undo()
    assert answer(server, "next")["text"] == TEXT


@pytest.mark.parametrize("limit", ["IDLE", "REQUEST"])
def test_a_client_that_sends_a_byte_now_and_then_is_cut_off(server, monkeypatch, limit):
    monkeypatch.setattr(server_module, limit, 0.3)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as slow:
        begun, sent = time.monotonic(), b""
        while time.monotonic() - begun < 20:
            if limit == "REQUEST":
                sent = b"GET /a"[len(sent) % 6 :][:1]
                try:
                    slow.sendall(sent)
                except ConnectionError:
                    break
            slow.settimeout(0.05)
            try:
                assert slow.recv(1) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert time.monotonic() - begun < 5


def test_a_bug_is_a_message_and_the_server_lives_on(server, views, monkeypatch):
    monkeypatch.setattr(views, "lens", lambda *_: 1 / 0)
    status, found = post(server, "lens", {"text": TEXT})
    assert (status, found["error"]["kind"]) == (500, "bug")
    assert answer(server, "next")["text"] == TEXT


# Requests at the same time

ended = threading.Semaphore(0)  # of the slow view of `held`


@pytest.fixture
def held(models):
    """A server whose view `lens` waits: (server, begun, go on)."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    class Slow(Views):
        def lens(self, query, step):
            begun.release()
            try:
                while not go_on.is_set():
                    step()
                    go_on.wait(0.01)
            finally:
                ended.release()
            return {"done": True}

    with serving(Slow(sides_of([("one", models[0])]), Tokenizer([]), None, "")) as server:
        yield server, begun, go_on
        go_on.set()


def in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()

    def wait():
        thread.join(30)
        assert results
        return results[0]

    return wait


def test_a_request_whose_page_has_gone_ends_and_other_views_go_on(held):
    server, begun, go_on = held
    with connect(server) as connection:
        connection.request("POST", f"/{server.secret}/lens", "{}", headers(server))
        assert begun.acquire(timeout=30)
        assert post(server, "next", {"text": TEXT})[0] == 200  # while lens computes
        other_tab = in_thread(lambda: post(server, "lens"))
        assert begun.acquire(timeout=30)
    assert ended.acquire(timeout=30)
    go_on.set()
    assert other_tab() == (200, {"done": True})


def test_a_long_computation_says_how_far_it_is(server, views, monkeypatch):
    monkeypatch.setattr(server_module, "PROGRESS", 0)

    def steps(query, step):
        for part in (0.25, 0.5):
            step(part=part)
        return {"text": query["text"]}

    monkeypatch.setattr(views, "symmetry", steps)
    with connect(server) as connection:
        connection.request("POST", f"/{server.secret}/symmetry", json.dumps({"text": TEXT}), headers(server))
        with connection.getresponse() as response:
            lines = [json.loads(line) for line in response]
    assert lines == [{"part": 0.25}, {"part": 0.5}, {"text": TEXT}]


def test_a_closed_connection_ends_its_stream(models):
    taken = threading.Semaphore(0)

    class Endless(Views):
        ended = threading.Event()

        def generate(self, query, step):
            try:
                while True:
                    step()
                    taken.release()
                    yield {"side": 0, "text": "x" * 1000}
            finally:
                self.ended.set()

    views = Endless(sides_of([("one", models[0])]), Tokenizer([]), None, "")
    with serving(views) as server:
        with connect(server) as connection:
            connection.request("POST", f"/{server.secret}/generate", "{}", headers(server))
            with connection.getresponse() as response:
                assert response.readline()
                assert taken.acquire(timeout=30)
        assert views.ended.wait(30)
        assert post(server, "next", {"text": TEXT})[0] == 200


def test_quit_ends_streams_and_refuses_new_work(held):
    server, begun, _ = held
    waiting = in_thread(lambda: post(server, "lens"))
    assert begun.acquire(timeout=30)
    assert post(server, "quit") == (200, {})
    status, found = waiting()
    assert (status, found["error"]["message"]) == (503, "the server is stopping")


# The command


def start(*arguments):
    process = subprocess.Popen(
        command("explore", "--no-browser", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


def ask(url, view, fields):
    """(status, answer) of a request to a server in another process."""
    host, secret = re.fullmatch(r"http://(127\.0\.0\.1:\d+)/([\w-]+)/", url).groups()
    body = json.dumps(fields)
    own = {"Content-Type": "application/json", "Origin": f"http://{host}"}
    with closing(http.client.HTTPConnection(host, timeout=30)) as connection:
        connection.request("POST", f"/{secret}/{view}", body, own)
        with connection.getresponse() as response:
            return response.status, json.loads(response.read())


def test_the_command_serves_until_quit_even_if_the_model_is_deleted(checkpoint, tmp_path):
    copy = shutil.copytree(checkpoint, tmp_path / "model")
    process, url = start(str(copy))
    try:
        shutil.rmtree(copy)
        status, found = ask(url, "next", {"text": TEXT})
        assert (status, found["text"]) == (200, TEXT)
        assert ask(url, "quit", {})[0] == 200
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "Traceback" not in err
    finally:
        process.kill()


def test_ctrl_c_stops_the_command(checkpoint):
    process, url = start(checkpoint)
    try:
        assert ask(url, "next", {"text": TEXT})[0] == 200
        process.send_signal(subprocess.signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in err
    finally:
        process.kill()


def test_a_port_in_use(run, checkpoint):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("explore", "--port", str(port), "-q", checkpoint)
        assert_one_error_line(result, f"port {port} is in use: choose another --port")


def test_models_that_cannot_be_shown_together(run, checkpoint):
    assert_one_error_line(run("explore", "-q", checkpoint, "shakespeare-tied"), "different vocabularies")
    assert_one_error_line(run("explore", "-q", "a", "b", "c"), "expected one or two models, got 3")
    assert_one_error_line(run("explore", "--port", "70000"), "a whole number from 0 to 65535")


@pytest.mark.parametrize(
    ("kind", "chosen", "opens"),
    [("none", "", False), ("terminal", "", False), ("terminal", "w3m", True), ("window", "", True)],
)
def test_opening_a_browser(monkeypatch, kind, chosen, opens):
    from tiedgpt.cli import explore

    opened = threading.Event()
    monkeypatch.setenv("BROWSER", chosen)
    kinds = explore.webbrowser.GenericBrowser, explore.webbrowser.BackgroundBrowser
    browser = kinds[kind == "window"]("w3m")
    browser.open = lambda url: opened.set() or url == "http://x/"

    def get():
        if kind == "none":
            raise explore.webbrowser.Error("no browser")
        return browser

    monkeypatch.setattr(explore.webbrowser, "get", get)
    assert explore.open_browser("http://x/") == opens
    assert opened.wait(30 if opens else 0) == opens


def test_the_shipped_counts_and_a_given_corpus(tmp_path):
    from tiedgpt.cli.explore import read_corpus

    shipped = tiedgpt.load_tokenizer("shakespeare-tied")
    corpus, name = read_corpus(None, False, shipped, 1024)
    assert corpus.count(shipped.encode("My")[0], shipped.encode(" lord")[0]) > 50
    assert name
    assert read_corpus(None, False, Tokenizer([]), 257) == (None, "")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    corpus, name = read_corpus(str(tmp_path / "text.txt"), False, Tokenizer([]), 257)
    assert (corpus.ids.tolist(), name) == (IDS, "text.txt")


def test_the_page_is_small_and_asks_no_other_machine():
    files = sorted(PAGE_FOLDER.iterdir())
    assert {file.name for file in files} == {*PAGE.values(), "ask.html", "ask.js"}
    assert sum(file.stat().st_size for file in files) <= 84_000
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert not re.search(
            r"https?:|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|@import", text
        )
        if file.suffix != ".html":
            assert max(map(len, text.expandtabs(2).splitlines())) <= 130, file
    for name in ("page.html", "ask.html"):  # the policy forbids these
        page = (PAGE_FOLDER / name).read_text(encoding="utf-8")
        assert not re.search(r"\son\w+=|\sstyle=|<style|<script>", page)


def test_the_modules_below_do_not_import_the_page():
    code = "import sys, tiedgpt.study.toy, tiedgpt.study.solved, tiedgpt.cli.study\n"
    code += "assert not any(name.startswith('tiedgpt.explore') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    for module in (views_module, source_module):
        assert "..cli" not in Path(module.__file__).read_text(encoding="utf-8")
