"""GPT-2 in JavaScript, the engine of the article, against the package and the published values."""

import base64
import json
import math
from pathlib import Path

import numpy as np
import pytest
from page.article import shipped_models
from page.rounding import as_in_the_page
from support.models import find_here
from support.node import run_node
from support.texts import known_characters, random_texts

import tiedgpt
from tiedgpt.checkpoints import safetensors
from tiedgpt.checkpoints.model_names import SHIPPED
from tiedgpt.study.paths import PATHS
from tiedgpt.study.predictions import lens

VECTORS = Path(__file__).parents[1] / "vectors" / "v1"
TEXT = "My lord, I will"


def read(path):
    """The arrays of a safetensors file, in the precision of the file."""
    tensors, _ = safetensors.read_header(path)
    return {name: tensor.read_exactly() for name, tensor in tensors.items()}


def square(rows, T):
    """Rows of 1, 2, ..., T numbers as a matrix [T, T] with zeros above its diagonal."""
    return [row + [0.0] * (T - len(row)) for row in rows]


# Each script begins with the model that run_model gives to it.
READ = """
    const {params, config} = readModel(bufferOf(input.weights), input.config)
    const run = {config, tied: config.tie_word_embeddings}
"""


def run_model(folder, script, **values):
    """What a script prints that has `params` and `run` of the model in a folder."""
    config = json.loads((folder / "config.json").read_text())
    weights = str(folder / "model.safetensors")
    return run_node(READ + script, weights=weights, config=config, **values)


@pytest.mark.parametrize("name", ["tied", "untied", "gelu"])
def test_the_published_activations_loss_and_greedy_tokens(name):
    """The program passes these parts of the vectors. It computes no gradients."""
    folder = VECTORS / name
    expected = read(folder / "expected.safetensors")
    document = json.loads((folder / "vectors.json").read_text())
    ids = expected["ids"].tolist()
    script = """
        const tapes = input.ids.map(ids => {
            const tape = {}
            gpt2(ids, params, {...run, tape})
            return tape
        })
        const text = [...input.prompt]
        for (let n = 0; n < 10; n++) text.push(topK(gpt2(text, params, run).at(-1), 1)[0])
        print({tapes, greedy: text.slice(-10)})
    """
    answer = run_model(folder, script, ids=ids, prompt=document["prompt"])
    _, T = expected["ids"].shape
    # The others are gradients, under the names of parameters.
    names = {name for name in expected if not name.startswith(("h.", "w", "ln_f", "lm_head"))}
    assert set(answer["tapes"][0]) == names - {"ids", "targets"}
    for activation in answer["tapes"][0]:
        mine = [tape[activation] for tape in answer["tapes"]]
        if activation.endswith(("scores", "pattern")):
            mine = [[square(rows, T) for rows in heads] for heads in mine]
        theirs = expected[activation]
        if activation.endswith("scores"):
            theirs = np.tril(theirs)  # what is above the diagonal is not compared
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(np.array(mine), theirs, rtol=0, atol=1e-12 * scale)
    logits = np.array([tape["logits"] for tape in answer["tapes"]])
    log_sums = np.log(np.exp(logits).sum(axis=-1))  # [B, T]
    targets = expected["targets"][..., None]
    of_targets = np.take_along_axis(logits, targets, axis=-1)[..., 0]
    assert (log_sums - of_targets).mean() == pytest.approx(document["loss"], rel=1e-12)
    assert answer["greedy"] == document["greedy"]


@pytest.fixture(
    params=[pytest.param("shakespeare-tied", marks=pytest.mark.slow), "shakespeare-untied"]
)
def shipped(request):
    """The folder of a shipped model, and the model in float64."""
    folder = find_here(request.param)
    return folder, tiedgpt.load_model(folder).astype(np.float64)


def test_the_logits_of_a_shipped_model(shipped):
    """Also with a cache, with the head of a tied model, and without the first MLP."""
    folder, model = shipped
    ids = tiedgpt.load_tokenizer(folder).encode(TEXT)
    script = """
        const {ids} = input
        const cache = newCache()
        const cached = [...gpt2(ids.slice(0, 2), params, {...run, cache})]
        for (const id of ids.slice(2)) cached.push(...gpt2([id], params, {...run, cache}))
        const edits = {"mlp.0.out": zeros}
        print({
            whole: gpt2(ids, params, run),
            cached,
            tied: gpt2(ids, params, {...run, tied: true}),
            without: gpt2(ids, params, {...run, edits})
        })
    """
    answer = run_model(folder, script, ids=ids)
    batch = np.array([ids])
    expected = {
        "whole": model(batch),
        "cached": model(batch),
        "tied": model.tie()(batch),
        "without": model(batch, edit={"mlp.0.out": np.zeros_like}),
    }
    for name, logits in expected.items():
        np.testing.assert_allclose(answer[name], logits[0], rtol=0, atol=1e-11, err_msg=name)


def test_the_four_paths_from_one_token(shipped):
    folder, model = shipped
    tokens = [tiedgpt.load_tokenizer(folder).encode(text)[0] for text in (" my", "RICHARD", ",")]
    script = """
        const logits = path => input.tokens.map(id => path(id, params, run))
        print(Object.fromEntries(Object.entries(PATHS).map(([name, path]) => [name, logits(path)])))
    """
    answer = run_model(folder, script, tokens=tokens)
    assert list(answer) == list(PATHS)
    for name, path in PATHS.items():
        logits = path(model, np.array(tokens))
        np.testing.assert_allclose(answer[name], logits, rtol=0, atol=1e-11, err_msg=name)


def test_the_lens(shipped):
    folder, model = shipped
    ids = tiedgpt.load_tokenizer(folder).encode(TEXT)
    answer = run_model(folder, "print(lens(input.ids, params, run))", ids=ids)
    layers = lens(model, ids, k=3)
    assert len(answer) == len(layers) == model.config.n_layer + 1
    for logits, layer in zip(answer, layers, strict=True):
        assert np.argsort(logits)[::-1][:3].tolist() == layer.tokens[-1].tolist()
    np.testing.assert_allclose(answer[-1], model(np.array([ids]))[0, -1], rtol=0, atol=1e-11)


def test_the_weights_in_the_page(tmp_path):
    """They are the rounded ones, whose loss scripts/make_page.py measures."""
    models = shipped_models()
    ids = tiedgpt.load_tokenizer("shakespeare-tied").encode(TEXT)
    for name in SHIPPED:
        exact = tiedgpt.load_model(name)
        weights = models[exact.config.head]["weights"]
        (tmp_path / "model.safetensors").write_bytes(base64.b64decode(weights))
        config = json.dumps(models[exact.config.head]["config"])
        (tmp_path / "config.json").write_text(config)
        logits = run_model(tmp_path, "print(gpt2(input.ids, params, run))", ids=ids)
        expected = as_in_the_page(exact).astype(np.float64)(np.array([ids]))[0]
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-11)
        assert np.abs(expected - exact(np.array([ids]))[0]).max() > 0.001


def test_a_text_that_is_longer_than_the_context_is_an_error():
    script = """
        const cache = newCache()
        gpt2([1, 2, 3], params, {...run, cache})
        gpt2(new Array(17).fill(1), params, run) // as many as it reads
        try {
            gpt2(new Array(15).fill(1), params, {...run, cache})
        } catch (error) {
            print(error.message)
        }
    """
    assert run_model(VECTORS / "tied", script) == "18 tokens; the model reads at most 17"


def test_the_error_function_and_float16():
    """Each finite number of float16, and erf, which is 1 to 16 digits from 6 on."""
    bits = np.arange(2**16, dtype=np.uint16)
    numbers = bits.view(np.float16)
    is_finite = np.isfinite(numbers)
    xs = [*np.linspace(-7, 7, 141).tolist(), -40, 40]
    script = "print({numbers: input.bits.map(float16), erf: input.xs.map(erf)})"
    answer = run_node(script, bits=bits[is_finite].tolist(), xs=xs)
    assert answer["numbers"] == numbers[is_finite].tolist()
    assert answer["erf"] == pytest.approx([math.erf(x) for x in xs], abs=1e-15)


@pytest.mark.parametrize(
    ("config", "dtype", "message"),
    [
        (
            {"activation_function": "relu"},
            "F32",
            "activation_function is relu; only gelu_new and gelu are read",
        ),
        (
            {"activation_function": "gelu"},
            "BF16",
            "ln_f.bias is BF16; only F32, F16 and I8 are read",
        ),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, config, dtype, message):
    header = {"ln_f.bias": {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]}}
    header_bytes = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header_bytes).to_bytes(8, "little") + header_bytes)
    script = """
        try {
            readModel(bufferOf(input.path), input.config)
        } catch (error) {
            print(error.message)
        }
    """
    assert run_node(script, path=str(path), config=config) == message


# The tokenizer


def hostile_texts():
    words = ["a" * 3000, "lord" * 500, "é😀" * 300, " " * 500, "!?" * 400, "\n" * 300]
    marks = ["<|endoftext|>", "a<|endoftext|>b", "\ufeffa", "a\ufeff", "a\x1cb\x85c\u180ed\u200be"]
    escapes = ["\0", "__proto__ constructor toString", "#version: 0.2", "don't 'S ''ll 'd's"]
    return ["", *words, *marks, *escapes, *random_texts(300, seed=1)]


def surrounded_characters():
    """Each character between letters, digits and spaces, 100 characters to a text."""
    characters = known_characters()
    texts = ["".join(f"a{c} {c}1{c}{c}" for c in characters[n::2000]) for n in range(2000)]
    return [text for text in texts if text]


def run_tokenizer(script, **values):
    """What a script prints that has the `tokenizer` of the shipped models."""
    folder = find_here("shakespeare-tied")
    return run_node(
        "const tokenizer = readTokenizer(input.vocabulary, input.merges)\n" + script,
        vocabulary=json.loads((folder / "vocab.json").read_text(encoding="utf-8")),
        merges=(folder / "merges.txt").read_text(encoding="utf-8"),
        **values,
    )


@pytest.mark.parametrize(
    "texts", [hostile_texts, pytest.param(surrounded_characters, marks=pytest.mark.slow)]
)
def test_the_tokenizer_has_our_ids_and_gives_back_the_text(texts):
    texts = texts()
    script = """
        const ids = input.texts.map(text => encode(text, tokenizer))
        print({ids, texts: ids.map(list => decode(list, tokenizer))})
    """
    answer = run_tokenizer(script, texts=texts)
    assert answer["texts"] == texts
    tokenizer = tiedgpt.load_tokenizer("shakespeare-tied")
    for text, ids in zip(texts, answer["ids"], strict=True):
        assert ids == tokenizer.encode(text, special="text"), f"{text!r} has other ids"


def test_parts_of_characters():
    """JavaScript can cut an emoji in two, and a token can have some of a character's bytes.

    Half an emoji is read as the replacement character; bytes that are no character are shown as it.
    """
    tokenizer = tiedgpt.load_tokenizer("shakespeare-tied")
    ids = tokenizer.encode("é😀漢")[::2]
    script = """
        const texts = ["a \\ud83d", "\\ude00\\ud83d b", "\\ud83dx"]
        print({ids: texts.map(text => encode(text, tokenizer)), text: decode(input.ids, tokenizer)})
    """
    answer = run_tokenizer(script, ids=ids)
    expected = [tokenizer.encode(text) for text in ("a \ufffd", "\ufffd\ufffd b", "\ufffdx")]
    assert answer == {"ids": expected, "text": tokenizer.decode(ids)}


def test_of_equal_scores_the_first_is_the_highest():
    scores = [1, 3, 2, 3, 0, 3]
    answer = run_node("print([1, 2, 4, 6].map(k => topK(input.scores, k)))", scores=scores)
    assert answer == [[1], [1, 3], [1, 3, 5, 2], [1, 3, 5, 2, 0, 4]]
