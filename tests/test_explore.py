"""`tiedgpt explore`: each view equals the library call that it names; the server refuses what it
must."""

import base64
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import webbrowser
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from explore_server import connect, headers, lines, post, request, serving, views_of
from support.checks import peak_memory
from support.commands import assert_one_error_line, command
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt import GPT2, Tokenizer, count_parameters
from tiedgpt.cli.explore import read_corpus
from tiedgpt.errors import ArgumentError
from tiedgpt.explore import server as server_module
from tiedgpt.explore import views as views_module
from tiedgpt.explore.server import MAX_BODY, PAGE, VIEWS
from tiedgpt.explore.views import SAMPLE, Views, measured_tokens, sources, to_json
from tiedgpt.gpt2.ops import softmax
from tiedgpt.inference.sampling import Sampling
from tiedgpt.study import attribution, bigrams, gradients, predictions, similarity, solved, toy
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.direct_path import predicts_itself
from tiedgpt.study.paths import PATHS, top_k

TEXT = "To be, or not to be"
IDS = Tokenizer([]).encode(TEXT)
SAMPLING = {"temperature": 0.8, "top_k": 6, "top_p": 0.9}
PAGE_FOLDER = Path(views_module.__file__).parent / "page"


def close(found, expected):
    assert np.asarray(found).shape == np.asarray(expected).shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def models():
    return [random_model(CONFIG, 1), random_model(replace(CONFIG, tied=False), 2)]


@pytest.fixture(scope="module")
def views(models):
    ids = np.random.default_rng(0).zipf(1.2, 6000) % 64 + 60
    return views_of(*models, text=("a text", Corpus.of(ids, CONFIG.vocab_size)))


@pytest.fixture(scope="module")
def server(views):
    with serving(views) as server:
        yield server


def answer(server, view, **fields):
    status, found = post(server, view, {"text": TEXT, **fields})
    assert status == 200, found
    return found


def view(views, name, **fields):
    """The answer of a view without a server."""
    return json.loads(
        to_json(getattr(views, name)({"text": TEXT, **fields}, lambda *_, part=None: None))
    )


@pytest.fixture(params=[(0, "tied"), (1, "untied"), (1, "tied")], ids=str)
def asked(request, server, models):
    """A model with one of its heads, and what the server answers about it."""
    side, head = request.param
    model = models[side] if models[side].config.head == head else models[side].tie()
    return SimpleNamespace(model=model, ask=partial(answer, server, side=side, head=head))


def test_next(asked):
    found = asked.ask("next", **SAMPLING)
    assert [token["id"] for token in found["tokens"]] == IDS
    assert found["text"] == TEXT
    logits = predictions.last_logits(asked.model, IDS)
    probabilities, drawn = softmax(logits), Sampling(**SAMPLING).probabilities(logits)
    likeliest = np.argsort(-logits)[: views_module.LISTED]
    assert [row["id"] for row in found["rows"]] == likeliest.tolist()
    for name, of_all in (("probability", probabilities), ("logit", logits), ("drawn", drawn)):
        close([row[name] for row in found["rows"]], of_all[likeliest])
    assert 0 < found["kept"] == sum(drawn > 0) < len(drawn)
    close(found["kept_probability"], probabilities[drawn > 0].sum())


@pytest.mark.parametrize(
    "view", ["next", "path", "nearest", "lens", "parts", "attention", "gradient"]
)
def test_every_view_of_a_text_reads_it_up_to_the_chosen_token(server, view):
    found = answer(server, view, place=4, path="raw")
    expected = answer(server, view, ids=IDS[:5], text=None, path="raw")
    if view == "next":
        assert [token["id"] for token in found.pop("tokens")] == IDS
        assert (found.pop("text"), found["place"]) == (TEXT, 4)
        expected = {name: expected[name] for name in found}
    assert found == expected


def test_an_id_that_only_pads_the_vocabulary_has_no_text():
    found = view(views_of(random_model(replace(CONFIG, vocab_size=300))), "next", ids=[*IDS, 299])
    assert (found["text"], found["tokens"][-1]["text"]) == (TEXT, "[299]")


@pytest.mark.parametrize("ids", [None, [3, 200, 256]])
def test_generate(server, models, ids):
    prompt = IDS if ids is None else ids
    for side, model in enumerate(models):
        fields = {"text": TEXT, "ids": ids, "n": 9, "seed": 5, "side": side, **SAMPLING}
        status, (*tokens, end) = lines(server, "generate", fields)
        assert (status, end["end"]) == (200, "length")
        assert [t["id"] for t in tokens] == list(
            tiedgpt.generate(model, prompt, 9, **SAMPLING, seed=5)
        )
        close(end["bits_per_token"], np.mean([t["bits"] for t in tokens]))
        logits = model([*prompt, *[t["id"] for t in tokens]])
        for place, token in enumerate(tokens, len(prompt) - 1):
            (expected,) = predictions.predict(logits[place], [token["id"]])
            close([token["probability"], token["logit"]], [expected.probability, expected.logit])
            close(token["bits"], predictions.surprisal(expected.log_probability))


def test_generate_to_the_end_of_the_text(models):
    eos = replace(CONFIG, eos_token_id=7)
    model = GPT2(
        eos, {**models[0].parameters, "wte.weight": np.zeros_like(models[0].W_E)}
    )  # all are alike
    fields = {"text": "a", "n": 200, "seed": 1, "temperature": 100}
    found = [*views_of(model).generate(fields, lambda *_: None)]
    assert [line["id"] for line in found[:-1]] == list(
        tiedgpt.generate(model, [64], 200, 100.0, seed=1)
    )
    assert (found[-1]["end"], len(found) < 200) == ("end of text", True)


def test_lens(asked):
    found, last = asked.ask("lens"), views_module.LENS_TOKENS
    assert [token["id"] for token in found["tokens"]] == IDS[-last:]
    for row, layer in zip(found["layers"], predictions.lens(asked.model, IDS, 3), strict=True):
        assert [[t["id"] for t in cell] for cell in row] == layer.tokens[-last:].tolist()
        close([[t["probability"] for t in cell] for cell in row], layer.probabilities[-last:])


def test_parts(asked):
    removed, model = ["attn.0.head.1", "mlp.1"], asked.model
    edits = None, attribution.ablation(CONFIG, removed)
    logits, without = (predictions.last_logits(model, IDS, edit) for edit in edits)
    found = asked.ask("parts", removed=removed, token=70)
    assert found["parts"] == pytest.approx(attribution.attribute(model, IDS, 70), abs=1e-5)
    for part, expected in (("before", logits), ("after", without)):
        (expected,) = predictions.predict(expected, [70])
        close([found[part]["logit"], found[part]["rank"]], [expected.logit, expected.rank])
    first = predictions.predict(without, [without.argmax()])[0]
    assert found["change"][0]["id"] == first.token
    close(found["change"][0]["drawn"], first.probability)
    assert {row["id"] for row in found["change"]} >= set(top_k(logits, 8).tolist())
    plain = asked.ask("parts")
    assert plain["before"]["id"] == logits.argmax()
    assert "after" not in plain


@pytest.mark.parametrize("ids", [IDS, [*range(60)]])
def test_attention_of_the_last_tokens(asked, ids):
    found, tape, last = (
        asked.ask("attention", ids=ids),
        {},
        slice(-views_module.ATTENTION_TOKENS, None),
    )
    assert [token["id"] for token in found["tokens"]] == ids[last]
    asked.model(ids, tape=tape)
    expected = np.stack([tape[f"attn.{layer}.pattern"][0, :, last, last] for layer in range(2)])
    patterns = np.frombuffer(base64.b64decode(found["patterns"]), "<u2").reshape(expected.shape)
    assert abs(patterns / 65535 - expected).max() <= 0.51 / 65535


@pytest.mark.parametrize("path", PATHS)
def test_path(asked, views, path):
    found = asked.ask("path", path=path)
    tokens = [token["id"] for token in found["tokens"]]
    assert len(tokens) == len(set(tokens)) == views_module.MATRIX_TOKENS
    assert set(tokens) <= set(IDS)
    close(found["A"], PATHS[path](asked.model, np.array(tokens))[:, tokens])
    for name, rows in (("W_E", asked.model.W_E), ("W_U", asked.model.W_U.T)):
        assert np.array_equal(
            np.frombuffer(base64.b64decode(found[name]), "<f4"), rows[tokens].ravel()
        )
    assert found["text"]["counts"] == [[views.corpus.count(a, b) for b in tokens] for a in tokens]
    shares = [[100 * views.corpus.share(a, b) for b in tokens] for a in tokens]
    close(found["text"]["percent"], shares)
    assert max(map(sum, shares)) <= 100 + 1e-9


def test_symmetry(asked, views):
    found = asked.ask("symmetry")
    assert (found["text"], found["measured"]) == (views.corpus.self_prediction(), CONFIG.vocab_size)
    for name, path in PATHS.items():
        A = path(asked.model, np.arange(CONFIG.vocab_size)).astype(float)
        expected = (
            np.linalg.norm(A - A.T) / np.linalg.norm(A),
            np.mean(A.argmax(1) == np.arange(len(A))),
        )
        numbers = found["paths"][name]
        assert (numbers["asymmetry"], numbers["self_prediction"]) == pytest.approx(
            expected, abs=1e-6
        )


def test_solved(asked, views):
    model, corpus = asked.model, views.corpus
    scores = bigrams.bigrams(model, corpus, None, solved.solved_paths(model, corpus))
    assert asked.ask("solved")["missing"] == pytest.approx(solved.missing(scores), rel=1e-3)


def test_a_large_vocabulary_is_measured_by_a_sample():
    model, said = random_model(replace(CONFIG, vocab_size=5000)), []
    views = views_of(model)
    side = views.symmetry({}, lambda part=None: said.append(part))
    assert side["measured"] == SAMPLE == np.unique(measured_tokens(model)).size
    assert peak_memory(partial(view, views, "path", path="model")) < 4 * 5000**2 / 100
    assert side["paths"]["raw"]["asymmetry"] < 1e-6
    itself = predicts_itself(model)[measured_tokens(model)].mean()
    assert side["paths"]["raw"]["self_prediction"] == itself
    assert set(said) == {0, 0.25, 0.5, 0.75}


def test_nearest(asked):
    found = asked.ask("nearest", ids=[1, 40])
    for name, rows in (("W_E", asked.model.W_E), ("W_U", asked.model.W_U.T)):
        tokens, cosines = similarity.nearest(rows, 40, views_module.NEAREST)
        assert [token["id"] for token in found[name]] == tokens.tolist()
        close([token["cosine"] for token in found[name]], cosines)


def test_gradient(asked):
    found, expected = asked.ask("gradient"), gradients.gradients(asked.model, IDS)
    rows = expected.by_row()
    assert found["loss"] == pytest.approx(expected.loss)
    assert found["reached"] == [len(set(IDS[:-1])), CONFIG.vocab_size]
    for row in found["rows"]:
        close([row[name] for name in ("embed", "head", "cosine")], rows[[0, 1, 3], row["id"]])
    assert [row["id"] for row in found["rows"]][-1] not in IDS
    assert {name: found[name] for name in ("embed", "head", "cosine")} == pytest.approx(
        expected.whole()
    )


def test_a_view_takes_less_memory_than_a_matrix_of_the_vocabulary_or_the_attention_of_a_context():
    wide = replace(CONFIG, vocab_size=5000, n_embd=192)
    peak = peak_memory(view, views_of(random_model(wide)), "gradient")
    assert peak < 4 * wide.vocab_size * wide.n_embd / 2
    long = replace(CONFIG, n_ctx=512, n_embd=48, n_head=12, n_layer=4)
    views, ids = views_of(random_model(long)), [n % 256 for n in range(long.n_ctx)]
    names = ["next", "lens", "parts", "attention", "gradient"]
    peak = peak_memory(lambda: [view(views, name, ids=ids) for name in names])
    assert peak < 4 * long.n_layer * long.n_head * long.n_ctx**2 / 2
    found, listed = view(views, "gradient", ids=ids), views_module.GRADIENT_ROWS
    assert found["read"] == views_module.GRADIENT_TOKENS
    assert [row["id"] for row in found["rows"][:listed]] == ids[-listed:]


def test_both_heads_of_a_model_read_a_prompt_once(models, monkeypatch):
    views, calls, read = views_of(models[1]), [], predictions.last_tape
    monkeypatch.setattr(
        predictions, "last_tape", lambda *a, **kw: calls.append(a) or read(*a, **kw)
    )
    for head in ("untied", "tied"):
        for name in ("next", "lens", "parts", "attention"):
            view(views, name, head=head)
    assert len(calls) == 1
    for n in range(10):  # results are kept for the last prompts only
        view(views, "next", ids=[n])
    assert [len(results) for results in views._results.values()] == [4, 12, 0, 0]


def test_toy(server):
    found = answer(server, "toy", W_E=toy.EMBEDDING, P=toy.TABLE)
    for name, way in toy.solve().items():
        for measure in ("probabilities", "scores", "kl", "asymmetry"):
            close(found["ways"][name][measure], getattr(way, measure))
    solved = answer(server, "toy", W_E=toy.EMBEDDING, P=toy.TABLE, solve_W_E=True)
    close(solved["W_E"], toy.embedding_of(toy.TABLE, 2))


def test_cost(server):
    found = answer(server, "cost", vocab=50_000, dim=4096, total=7 * 10**9)
    assert found["untied"] - found["tied"] == 50_000 * 4096
    tied = count_parameters(tiedgpt.Config())["tied"]["total"]
    untied = tied + 50257 * 768
    expected = {
        "name": "gpt2",
        "tied": tied,
        "untied": untied,
        "saved_percent": 100 * 50257 * 768 / untied,
    }
    assert found["models"][0] == expected


def test_start(server):
    found = answer(server, "start")
    assert [model["name"] for model in found["models"]] == ["a", "b"]
    assert [model["heads"] for model in found["models"]] == [["tied"], ["untied", "tied"]]
    assert found["prompts"] == [*server.views.prompts]
    root = Path(tiedgpt.__file__).parents[1]
    for name, function in found["sources"].items():
        whole = (
            (root / function["file"])
            .read_text(encoding="utf-8")
            .splitlines()[function["line"] - 1 :]
        )
        code = function["text"].splitlines()
        assert [line.strip() for line in code] == [line.strip() for line in whole[: len(code)]]
        assert f"def {name}(" in function["text"]


def test_the_page_names_each_source_and_each_view():
    files = PAGE_FOLDER / "page.html", *PAGE_FOLDER.glob("*.js")
    page, *scripts = (file.read_text("utf-8") for file in files)
    named = " ".join(re.findall(r'data-sources="(.*?)"', page)).split()
    assert sorted(named) == sorted(sources())
    asked = re.findall(r'(?:ask|answers?|panel)\(\s*"(\w+)"', "".join(scripts))
    assert set(asked) == {*VIEWS, "quit"}


def test_a_model_without_layers():
    views = views_of(random_model(replace(CONFIG, n_layer=0)))
    assert len(view(views, "lens")["layers"]) == 1
    assert view(views, "parts")["parts"].keys() == {"wte", "wpe", "ln_f.bias"}
    assert view(views, "gradient")["reached"][1] == CONFIG.vocab_size
    assert view(views, "symmetry")["paths"].keys() == {*PATHS} - {"mlp0"}
    for name, message in (("attention", "no layers"), ("solved", "no text to compare")):
        with pytest.raises(ArgumentError, match=message):
            view(views, name)


WRONG = [
    ("next", {"text": ""}, "the prompt is empty"),
    ("next", {"text": "a" * 65}, "65 tokens, more than the model's context of 64"),
    ("next", {"text": 5}, "text must be a string"),
    ("next", {"ids": [1, 257]}, "257 is outside the vocabulary"),
    ("next", {"ids": [True]}, "ids must be whole numbers"),
    ("next", {"place": 99}, "place must be a whole number from 0 to"),
    ("next", {"head": "untied"}, "head must be one of tied, got 'untied'"),
    ("next", {"side": "0"}, "side must be"),
    ("next", {"temperature": -1}, "temperature must be a number above 0"),
    ("generate", {"n": 201, "seed": 1}, "n must be a whole number from 1 to 200, got 201"),
    ("generate", {"n": 1, "seed": -1}, "seed must be"),
    ("path", {"path": "x"}, "path must be one of raw, normed, mlp0, model, got 'x'"),
    (
        "toy",
        {"W_E": [[1, 2]] * 3, "P": [[-1] * 3] * 3, "solve_W_E": 1},
        "every number of P must be above 0",
    ),
    ("parts", {"removed": ["attn.9"]}, "no part that can be removed"),
    ("parts", {"removed": "x"}, "removed must be a list"),
    ("parts", {"token": 257}, "257 is outside the vocabulary"),
    ("parts", {"token": [1]}, "must be one sequence of ids"),
    ("gradient", {"text": "a"}, "needs two tokens or more"),
    ("toy", {"W_E": [[1e9]] * 3, "P": toy.TABLE}, "-100 to 100"),
    ("cost", {"vocab": 10**8, "dim": 1, "total": 1}, "vocab must be"),
]


@pytest.mark.parametrize(("view", "fields", "message"), WRONG)
def test_wrong_fields_are_one_line_and_the_server_lives_on(server, view, fields, message):
    status, found = post(server, view, {"text": TEXT, **fields})
    assert status == 400
    assert message in found["error"]["message"]
    assert "\n" not in found["error"]["message"]
    assert answer(server, "next")["text"] == TEXT


def get(server, path, **changes):
    return request(server, "GET", path, Content_Type=None, Origin=None, **changes)


def test_the_page_and_its_headers(server):
    for path, file in PAGE.items():
        status, body, response = get(server, f"/{server.secret}/{path}")
        assert (status, body) == (200, (PAGE_FOLDER / file).read_bytes())
        policy = response.getheader("Content-Security-Policy")
        rules = {
            "default-src 'none'",
            "script-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
        }
        assert rules <= {*policy.split("; ")}
        assert "unsafe" not in policy
        names = ("X-Content-Type-Options", "Cache-Control", "Referrer-Policy")
        assert [response.getheader(name) for name in names] == [
            "nosniff",
            "no-store",
            "same-origin",
        ]


def test_the_address_in_the_browsers_command_line_works_once(views):
    with serving(views) as server:
        path, home = f"/{server.ticket}/", f"/{server.secret}/"
        assert server.url_once.endswith(path)
        assert get(server, path, Host="evil.example")[0] == 403
        status, _, response = get(server, path)
        assert (status, response.getheader("Location")) == (302, home)
        assert [get(server, p)[0] for p in (path, "//", home)] == [404, 404, 200]


def test_an_address_without_its_slash_and_an_old_one(server):
    status, _, response = get(server, f"/{server.secret}")
    assert (status, response.getheader("Location")) == (302, f"/{server.secret}/")
    for accept, type_ in (("text/html", "text/html"), ("*/*", "application/json")):
        status, body, response = get(server, "/of-an-earlier-run/", Accept=accept)
        assert (status, response.getheader("Content-Type")) == (404, f"{type_}; charset=utf-8")
        assert server.secret.encode() not in body
    assert get(server, "/ask.js", Host="evil.example")[0] == 403


OWN_HOSTS = [
    "127.0.0.1:1",
    "localhost:8080",
    "localhost",
    "[::1]:99",
]  # any port, through an SSH tunnel
OTHER_HOSTS = [
    "",
    "evil.example@127.0.0.1",
    "127.0.0.1:x",
    "127.0.0.2:PORT",
    "127.0.0.1.evil.example",
]
OTHER_HOSTS += ["evil.example", "evil.example:PORT", "localhost.evil.example:PORT"]
ORIGINS = [None, "null", "http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1:PORT"]
OTHER_SITES = [{"Origin": o} for o in ORIGINS] + [
    {"Sec_Fetch_Site": f"{s}-site"} for s in ("cross", "same")
]
OTHER_TYPES = [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
OTHER_PATHS = ["/", "/x/", "/SECRETx/", "/SECRET/../page.html", "/SECRET/x", "/SECRET/%2e%2e/"]
NO_JSON = [b"", b"[]", b"{", b'{"x": NaN}', b"[" * 50_000, b"\xff"]
NO_LENGTH = [{"Content_Length": "-1"}, {"Content_Length": "1x"}, {"Transfer_Encoding": "chunked"}]
OWN, OF_THE_PAGE = [{}], [json.dumps({"text": TEXT}).encode()]
REQUESTS = [  # status, methods, paths below the secret, bodies, changes of the page's headers
    *((200, "GET", [""], OF_THE_PAGE, [{"Host": h, "Origin": None}]) for h in OWN_HOSTS),
    *(
        (200, "POST", ["next"], OF_THE_PAGE, [{"Host": h, "Origin": f"http://{h}"}])
        for h in OWN_HOSTS
    ),
    *((403, "GET", [""], OF_THE_PAGE, [{"Host": h, "Origin": None}]) for h in OTHER_HOSTS),
    *(
        (403, "POST", ["next"], OF_THE_PAGE, [{"Host": h, "Origin": f"http://{h}"}])
        for h in OTHER_HOSTS
    ),
    (403, "POST", ["next", "quit"], OF_THE_PAGE, OTHER_SITES),
    (404, "GET POST", OTHER_PATHS, OF_THE_PAGE, OWN),
    (405, "PUT HEAD", [""], OF_THE_PAGE, OWN),
    (405, "DELETE OPTIONS GET", ["next", "quit"], OF_THE_PAGE, OWN),
    (405, "POST", ["page.js"], OF_THE_PAGE, OWN),
    (415, "POST", ["next", "quit"], OF_THE_PAGE, [{"Content_Type": kind} for kind in OTHER_TYPES]),
    (413, "POST", ["next"], [b"x" * (MAX_BODY + 1), b"x" * 1_000_000], OWN),
    (413, "POST", ["next"], [b""], [{"Content_Length": "9" * 30}]),
    (411, "POST", ["next"], [b""], NO_LENGTH),
    (400, "POST", ["next"], [*NO_JSON, b" " * MAX_BODY], OWN),
]


@pytest.mark.parametrize(("status", "methods", "paths", "bodies", "headers"), REQUESTS)
def test_what_is_answered_and_what_is_refused(server, status, methods, paths, bodies, headers):
    def known(said):
        return said and said.replace("PORT", str(server.server_port)).replace(
            "SECRET", server.secret
        )

    for method, path, body, changes in product(methods.split(), paths, bodies, headers):
        path = known(path if path.startswith("/") else f"/SECRET/{path}")
        changes = {name: known(value) for name, value in changes.items()}
        found, said, _ = request(server, method, path, body, **changes)
        assert found == status, (method, path, body, changes)
        assert status != 400 or json.loads(said)["error"]["message"] == "expected a JSON object", (
            body
        )
    assert answer(server, "next", text="still here")["text"] == "still here"


def test_too_many_connections(server, monkeypatch):
    monkeypatch.setattr(server_module, "CONNECTIONS", 0)
    status, body, _ = get(server, f"/{server.secret}/")
    assert (status, b"Close other pages" in body) == (503, True)
    monkeypatch.undo()
    assert answer(server, "next")["text"] == TEXT


@pytest.mark.parametrize("sent", ["", "GET /a"])
def test_a_client_that_sends_a_byte_now_and_then_is_cut_off(server, monkeypatch, sent):
    monkeypatch.setattr(server_module, "REQUEST", 0.3)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=0.05) as slow:
        begun = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - begun < 20:
                slow.sendall(sent[:1].encode())
                sent = sent[1:] + sent[:1]
                with suppress(TimeoutError):
                    assert slow.recv(1) == b""
                    break
        assert time.monotonic() - begun < 5


def test_a_bug_is_a_message_and_the_server_lives_on(server, views, monkeypatch):
    monkeypatch.setattr(views, "lens", lambda *_: 1 / 0)
    status, found = post(server, "lens", {"text": TEXT})
    assert (status, "a bug in tiedgpt" in found["error"]["message"]) == (500, True)
    assert answer(server, "next")["text"] == TEXT


class Held(Views):
    """Its view `lens` waits, and `generate` never ends."""

    def __init__(self, *given):
        super().__init__(*given)
        self.begun, self.ended, self.go_on = (
            threading.Semaphore(0),
            threading.Semaphore(0),
            threading.Event(),
        )

    def lens(self, query, step):
        for _ in self.generate(query, step):
            if self.go_on.is_set():
                return {"done": True}

    def generate(self, query, step):
        try:
            self.begun.release()
            while True:
                step()
                self.go_on.wait(0.01)
                yield {"text": "x" * 1000}
        finally:
            self.ended.release()


@pytest.fixture
def held(models):
    """A server, and what posts to it in another thread."""
    with ThreadPoolExecutor() as pool, serving(views_of(models[0], kind=Held)) as server:
        yield server, partial(pool.submit, post, server)
        server.views.go_on.set()


@pytest.mark.parametrize("name", ["lens", "generate"])
def test_a_request_whose_page_has_gone_ends_and_other_views_go_on(held, name):
    server, post_later = held
    with connect(server) as connection:
        connection.request("POST", f"/{server.secret}/{name}", "{}", headers(server))
        assert server.views.begun.acquire(timeout=30)
        assert post(server, "next", {"text": TEXT})[0] == 200  # meanwhile
        other_tab = post_later("lens")
        assert server.views.begun.acquire(timeout=30)
        if name == "generate":
            assert connection.getresponse().readline()
    assert server.views.ended.acquire(timeout=30)
    server.views.go_on.set()
    assert other_tab.result(30) == (200, {"done": True})


def test_a_long_computation_says_how_far_it_is(server, views, monkeypatch):
    monkeypatch.setattr(server_module, "PROGRESS", 0)

    def steps(query, step):
        for part in (0.25, 0.5):
            step(part=part)
        return {"text": query["text"]}

    monkeypatch.setattr(views, "symmetry", steps)
    expected = [{"part": 0.25}, {"part": 0.5}, {"text": TEXT}]
    assert lines(server, "symmetry", {"text": TEXT}) == (200, expected)


def test_quit_ends_streams_and_refuses_new_work(held):
    server, post_later = held
    waiting = post_later("lens")
    assert server.views.begun.acquire(timeout=30)
    assert post(server, "quit") == (200, {})
    status, found = waiting.result(30)
    assert (status, found["error"]["message"]) == (503, "the server is stopping")


@pytest.mark.parametrize("end", ["quit", "Ctrl-C"])
def test_the_command_serves_until_its_end_even_if_the_model_is_deleted(
    checkpoint, tmp_path, request, end
):
    copy = shutil.copytree(checkpoint, tmp_path / "model")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command("explore", "--no-browser", str(copy)), **pipes)
    request.addfinalizer(process.kill)
    origin, secret = process.stdout.readline().strip().rstrip("/").rsplit("/", 1)
    port = int(origin.removeprefix("http://127.0.0.1:"))
    server = SimpleNamespace(server_port=port, secret=secret, origin=origin)
    shutil.rmtree(copy)
    assert answer(server, "next")["text"] == TEXT
    if end == "quit":
        assert post(server, "quit")[0] == 200
    else:
        process.send_signal(subprocess.signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (0 if end == "quit" else 130)
    assert "Traceback" not in err


def test_the_command_writes_the_page_to_a_file(run, checkpoint, tmp_path):
    file = tmp_path / "new" / "page.html"
    result, size = (
        run("explore", "-m", checkpoint, "--export", str(file)),
        file.stat().st_size / 1e6,
    )
    note = f"tiedgpt: note: {file}: {size:.1f} MB; it opens from disk, and on any web server\n"
    assert result == (0, "", note)
    assert [*file.parent.iterdir()] == [file]
    assert file.read_text(encoding="utf-8").lower().startswith("<!doctype html>")


def test_ports_and_models_that_cannot_be_served(run, checkpoint):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"{taken.getsockname()[1]}"
        for arguments, message in (
            (
                ["--port", port, checkpoint],
                f"port {port}: Address already in use; choose another or leave",
            ),
            (["--port", "70000"], "a whole number from 0 to 65535"),
            ([checkpoint, "shakespeare-tied"], "different vocabularies"),
            (["a", "-m", "b", "-m", "c"], "expected one or two models, got 3"),
        ):
            assert_one_error_line(run("explore", "-q", *arguments), message)


@pytest.mark.parametrize(
    ("kind", "chosen", "opens"),
    [(None, "", False), ("Generic", "", False), ("Generic", "w3m", True), ("Background", "", True)],
)
def test_a_browser_is_opened_unless_it_takes_the_terminal_unasked(monkeypatch, kind, chosen, opens):
    opened = threading.Event()
    monkeypatch.setenv("BROWSER", chosen)

    def get():
        if kind is None:
            raise webbrowser.Error("no browser")
        browser = getattr(webbrowser, f"{kind}Browser")("w3m")
        browser.open = lambda url: opened.set() or url == "http://x/"
        return browser

    monkeypatch.setattr(webbrowser, "get", get)
    assert server_module.open_browser("http://x/") == opens
    assert opened.wait(30 if opens else 0) == opens


def test_the_shipped_counts_and_a_given_corpus(tmp_path):
    shipped = tiedgpt.load_tokenizer("shakespeare-tied")
    name, corpus = read_corpus(None, False, shipped, 1024)
    assert corpus.count(shipped.encode("My")[0], shipped.encode(" lord")[0]) > 50
    assert name
    assert read_corpus(None, False, Tokenizer([]), 257) is None
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    name, corpus = read_corpus(str(tmp_path / "text.txt"), False, Tokenizer([]), 257)
    assert (corpus.ids.tolist(), name) == (IDS, "text.txt")


def test_the_page_is_small_and_asks_no_other_machine():
    files = sorted(PAGE_FOLDER.iterdir())
    assert {file.name for file in files} == {*PAGE.values(), "ask.html", "ask.js"}
    assert sum(file.stat().st_size for file in files) <= 75_000
    for file in files:
        text = file.read_text(encoding="utf-8")
        forbidden = r"https?:|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|@import"
        forbidden += r"|\son\w+=\"|\sstyle=|<style|<script>"  # these by the policy
        assert not re.search(forbidden, text)
        assert max(map(len, text.expandtabs(2).splitlines())) <= 110, file


def test_only_the_command_line_knows_the_page():
    package = Path(tiedgpt.__file__).parent
    texts = {file: file.read_text(encoding="utf-8") for file in package.rglob("*.py")}
    knows = {
        file.parent.name
        for file, text in texts.items()
        if re.search(r"(from|import) \S*explore", text)
    }
    assert knows == {"cli"}
    assert not [
        file for file, text in texts.items() if file.parent.name == "explore" and "..cli" in text
    ]
