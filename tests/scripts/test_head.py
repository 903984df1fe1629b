"""scripts/head.py: its path is transformers' model without layers; its figures are counted anew.

The path of a model is norm(W_E) W_U, from one token to logits. An input is a frequent token of a
text. The figures say how near the path's rows are to the bigrams of the text: what follows each
input. The columns of figures are those of the head, of another input's row of it, of the token
counts, and of a table of the text's bigrams. The table is counted in the even blocks of 1,000
tokens and compared with the odd blocks.
"""

import json
import math
import re
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import head  # of scripts/
import measure_kinds
import numpy as np
import pytest
from support.models import SMALL, random_model, some_corpus
from support.reference import SHARED

import tiedgpt
from tiedgpt.anymodel.kinds import load_kinds
from tiedgpt.study.paths import normed

WEIGHTS = Path(__file__).resolve().parents[2] / "weights"
CORPUS = SHARED / "corpus" / "tinyshakespeare.txt"
V = 30
D = 8


@pytest.fixture
def run_head(run_script):
    """run_head(*arguments) -> (exit code, stdout, stderr): runs head.py in this process."""
    return partial(run_script, head)


# ---- The files ----


def write_safetensors(path, arrays):
    """arrays: {name: (dtype, array)}. The array of BF16 has uint16."""
    header = {}
    data = b""
    for name, (dtype, array) in arrays.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def small_llama(folder, dtype="F32", sharded=False, head_rows=None, config=None):
    """Write a Llama without layers, whose numbers are the same in all three dtypes."""
    rng = np.random.default_rng(0)
    names = {"model.embed_tokens.weight": (V, D), "model.norm.weight": (D,)}
    if head_rows is not None:
        names["lm_head.weight"] = (head_rows, D)
    arrays = {}
    for name, shape in names.items():
        numbers = (rng.integers(-60, 60, shape) / 16).astype(np.float32)
        if dtype == "BF16":
            arrays[name] = (dtype, (numbers.view(np.uint32) >> 16).astype(np.uint16))
        else:
            arrays[name] = (dtype, numbers.astype({"F32": "<f4", "F16": "<f2", "I8": "i1"}[dtype]))
    settings = {"model_type": "llama", "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps({**settings, **(config or {})}))
    if not sharded:
        write_safetensors(folder / "model.safetensors", arrays)
        return
    places = {}
    for number, (name, array) in enumerate(arrays.items()):
        places[name] = f"model-{number}.safetensors"
        write_safetensors(folder / places[name], {name: array})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))


def logits_of_folder(folder):
    model = head.open_model(folder)
    return head.final_logits(model, np.arange(V), head.as_float32(model["W_U"]))


def test_every_dtype_and_a_model_in_parts_give_the_same_logits(tmp_path):
    logits = []
    for dtype, sharded in (("F32", False), ("F16", False), ("BF16", False), ("BF16", True)):
        folder = tmp_path / f"{dtype}{sharded}"
        folder.mkdir()
        small_llama(folder, dtype=dtype, sharded=sharded, head_rows=V)
        logits.append(logits_of_folder(folder))
    for others in logits[1:]:
        np.testing.assert_array_equal(others, logits[0])


def test_what_flag_file_and_matrices_say(tmp_path):
    small_llama(tmp_path)
    assert head.open_model(tmp_path)["tie"] == {
        "flag": "tied",
        "file": "one matrix",
        "matrices": "W_U is W_E^T",
    }
    small_llama(tmp_path, head_rows=V, config={"tie_word_embeddings": None})
    assert head.open_model(tmp_path)["tie"] == {
        "flag": "not there",
        "file": "two matrices",
        "matrices": "W_U is not W_E^T",
    }
    path = WEIGHTS / "shakespeare-untied"
    assert head.open_model(path)["tie"]["flag"] == "untied"


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        pytest.param({}, {"model_type": "cohere"}, "'cohere'", id="kind"),
        pytest.param({}, {"model_type": None}, "None", id="no-kind"),
        pytest.param({}, {"quantization_config": {}}, "quantization_config", id="quantised"),
        pytest.param({"dtype": "I8"}, {}, "model.embed_tokens.weight is I8", id="dtype"),
        pytest.param({}, {"tie_word_embeddings": False}, "no output matrix", id="lost-head"),
        pytest.param({}, {"tie_word_embeddings": None}, "no output matrix", id="llama-default"),
        pytest.param({}, {"model_type": "gpt2"}, "ln_f.bias", id="other-norm"),
        pytest.param({}, {}, "tokenizer.json", id="no-tokenizer"),
        pytest.param({}, {"tie_word_embeddings": "false"}, "'false'", id="flag"),
    ],
)
def test_a_model_that_cannot_be_read_is_one_error_line(
    changes, config, message, tmp_path, run_head
):
    settings = {name: value for name, value in config.items() if value is not None}
    small_llama(tmp_path, **changes, config=settings)
    if None in config.values():  # the field is not there
        written = json.loads((tmp_path / "config.json").read_text())
        for name in config:
            del written[name]
        (tmp_path / "config.json").write_text(json.dumps(written))
    text = tmp_path / "text.txt"
    text.write_text("a text")
    code, out, err = run_head(tmp_path, text)
    assert (code, out) == (2, "")
    assert err.startswith("head.py: error: ")
    assert err.count("\n") == 1
    assert message in err


def with_header(entry):
    """A file that says of the embedding what `entry` says, and has 36 bytes of numbers."""
    header = json.dumps({"model.embed_tokens.weight": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(36)


def place(shape, begin, end):
    return with_header({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]})


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff" * 20, id="long-header"),
        pytest.param(b"\2\0\0\0\0\0\0\0[]", id="no-object"),
        pytest.param(b'\x0e\0\0\0\0\0\0\0{"wte":{"a":1}}', id="no-place"),
        pytest.param(with_header(1), id="number"),
        pytest.param(b"\0\0\1\0\0\0\0\0" + b"[" * 2**16, id="brackets"),
        pytest.param(place([3, 3], 0, "36"), id="text-offset"),
        pytest.param(place([3, 3], 0, 10**30), id="long"),
        pytest.param(place([3, 3], 36, 0), id="backwards"),
        pytest.param(place([3, 4], 0, 36), id="other-size"),
        pytest.param(place([-1, 3], 0, 36), id="negative"),
        pytest.param(place([[3], 3], 0, 36), id="nested"),
    ],
)
def test_a_damaged_file_is_one_error_line(data, tmp_path, run_head):
    small_llama(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(data)
    code, out, err = run_head(tmp_path, WEIGHTS / "shakespeare-tied" / "merges.txt")
    assert (code, out) == (2, "")
    assert err.startswith("head.py: error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("eps", ["0", True, None])
def test_an_epsilon_that_is_no_number_is_an_error(eps, tmp_path):
    small_llama(tmp_path, config={"rms_norm_eps": eps})
    with pytest.raises(ValueError, match="rms_norm_eps must be a number"):
        logits_of_folder(tmp_path)


@pytest.mark.parametrize("index", [[], {}, {"weight_map": []}, {"weight_map": {"a": 1}}], ids=str)
def test_a_damaged_index_is_one_error_line(index, tmp_path, run_head):
    small_llama(tmp_path, sharded=True)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    code, out, err = run_head(tmp_path, WEIGHTS / "shakespeare-tied" / "merges.txt")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "index.json does not say which files" in err


def test_an_id_without_a_row_of_w_u_is_an_error():
    text = {"ids": np.arange(V)}
    with pytest.raises(ValueError, match=f"id {V - 1}"):
        head.study({"W_E": np.ones((V, D)), "W_U": np.ones((V - 1, D))}, text, str)


def test_a_text_with_few_frequent_tokens_is_an_error(tmp_path, run_head):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be")
    code, out, err = run_head(WEIGHTS / "shakespeare-tied", text)
    assert (code, out) == (2, "")
    assert "fewer than ten tokens of the text occur 100 times" in err


# ---- The path ----


@pytest.mark.parametrize("name", ["shakespeare-tied", "shakespeare-untied"])
def test_the_path_of_a_gpt2_is_that_of_the_package(name):
    model = head.open_model(WEIGHTS / name)
    tokens = np.arange(0, 1024, 50)
    logits = head.final_logits(model, tokens, head.as_float32(model["W_U"]))
    expected = normed(tiedgpt.load_model(WEIGHTS / name).astype(np.float64), tokens)
    assert np.abs(logits - expected).max() < 3e-6 * np.abs(expected).max()


def without_layers(transformers, torch, kind, tied, **more):
    """A small model of transformers without layers, of random numbers."""
    sizes = {
        "vocab_size": V,
        "hidden_size": D,
        "num_hidden_layers": 0,
        "num_layers": 0,
        "n_embd": D,
        "n_layer": 0,
        "n_head": 2,
        "num_attention_heads": 2,
        "num_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "intermediate_size": 16,
        "num_local_experts": 2,
        "num_experts": 2,
        "attention_types": [],
        "layer_types": [],
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    of_kind = transformers.CONFIG_MAPPING[kind]
    defaults = of_kind()
    known = {name: value for name, value in sizes.items() if hasattr(defaults, name)}
    if known.get("layer_types") == [] and defaults.layer_types is None:
        del known["layer_types"]
    config = of_kind(**known, tie_word_embeddings=tied, **more)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_()
            if name.endswith("wpe.weight"):
                parameter.zero_()  # the path has no position
    return model


def logits_of_transformers(torch, model, tokens):  # -> [n, V], each token alone
    with torch.no_grad():
        ids = torch.as_tensor(tokens)[:, None]
        return model(input_ids=ids, use_cache=False).logits[:, 0].float().numpy()


@pytest.fixture(scope="module")
def libraries():
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.set_num_threads(1)  # several would wait for each other: for minutes, on a busy machine
    return transformers, torch


def assert_path_of_transformers(libraries, kind, tied, folder, **more):
    transformers, torch = libraries
    model = without_layers(transformers, torch, kind, tied, **more)
    model.save_pretrained(folder)
    expected = logits_of_transformers(torch, model, np.arange(V))
    found = head.open_model(folder)
    logits = head.final_logits(found, np.arange(V), head.as_float32(found["W_U"]))
    logits = head.cap(logits, found["config"])
    # The logits of some kinds are thousands, so the difference is measured in the largest.
    assert np.abs(logits - expected).max() < 3e-6 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of transformers
@pytest.mark.parametrize(
    ("kind", "tied"),
    [
        pytest.param(
            kind,
            tied,
            id=f"{kind}-{'tied' if tied else 'untied'}",
            # Each kind is either tied or untied in the sample.
            marks=() if tied == (number % 2 == 0) else pytest.mark.whole,
        )
        for number, kind in enumerate(head.KINDS)
        for tied in (True, False)
    ],
)
def test_the_path_of_each_kind_is_transformers_model_without_layers(
    kind, tied, libraries, tmp_path
):
    assert_path_of_transformers(libraries, kind, tied, tmp_path)


def test_the_kinds_that_are_tied_by_default_are_those_that_were_measured():
    """measure_kinds.py writes the line, so that head.py runs without the package."""
    measured = measure_kinds.tied_by_default(load_kinds()["kinds"], head.KINDS)
    assert measured == head.TIED_BY_DEFAULT


def test_the_page_has_the_table_that_was_measured():
    """measure_kinds.py writes it."""
    assert measure_kinds.who_ties() in measure_kinds.HEAD_PAGE.read_text(encoding="utf-8")
    assert "| tied | " in measure_kinds.who_ties()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of transformers
def test_a_gemma3_with_a_cap_of_its_logits(libraries, tmp_path):
    assert_path_of_transformers(
        libraries, "gemma3_text", True, tmp_path, final_logit_softcapping=5.0
    )


# ---- The figures, counted with loops ----


def count_by_hand(ids, logits, text_of):
    """The figures of all four columns from logits [V, V], a row for each token alone."""
    counts = Counter(ids)
    text = sorted(counts)
    frequent = sorted(counts, key=lambda token: (-counts[token], token))
    inputs = [token for token in frequent if counts[token] >= 100][:2000]
    whole = {token: Counter() for token in inputs}
    even = {token: Counter() for token in inputs}
    odd = {token: Counter() for token in inputs}
    for place, (first, second) in enumerate(pairwise(ids)):
        if first in whole:
            whole[first][second] += 1
            half = odd if place // 1000 % 2 else even
            half[first][second] += 1

    smoothed = {}  # the table of the text
    for token in inputs:
        smoothed[token] = {t: even[token][t] + 10 * counts[t] / len(ids) for t in text}
    n = len(inputs)
    rows = {
        "head": [dict(enumerate(logits[token])) for token in inputs],
        "another": [dict(enumerate(logits[inputs[i - n // 2]])) for i in range(n)],
        "counts": [{t: math.log(counts[t]) for t in text}] * n,
        "table": [{t: math.log(x) for t, x in smoothed[token].items()} for token in inputs],
    }
    figures = {}
    for name, scores in rows.items():
        successors = odd if name == "table" else whole
        figures[name] = figures_by_hand(scores, inputs, successors, counts, text_of)
    return figures


def highest_first(scores):  # {token: score} -> tokens; of equal scores, the lower token first
    return sorted(scores, key=lambda token: (-scores[token], token))


def figures_by_hand(rows, inputs, successors, counts, text_of):
    overlaps = []
    itself = []
    spellings = []
    absent = []
    row_entropies = []
    text_entropies = []
    for token, row in zip(inputs, rows, strict=True):
        likeliest = highest_first(row)[:10]
        ten = highest_first(successors[token])[:10]
        overlaps.append(len(set(likeliest[: len(ten)]) & set(ten)) / len(ten))
        itself.append(likeliest[0] == token)
        for other in likeliest:
            if other != token:
                same = text_of(other).strip().lower() == text_of(token).strip().lower()
                spellings.append(same)
                absent.append(other not in counts)
        row_entropies.append(entropy_of(np.exp(np.array(list(row.values()), float))))
        text_entropies.append(entropy_of(np.array(list(successors[token].values()), float)))
    gains = gains_by_hand(rows, inputs, successors, counts)
    return {
        "overlap": np.mean(overlaps),
        "gain": np.mean(gains),
        "error": np.std(gains, ddof=1) / math.sqrt(len(gains)),
        "itself": np.mean(itself),
        "spellings": np.mean(spellings),
        "absent": np.mean(absent),
        "entropy": correlation_of_ranks(row_entropies, text_entropies),
    }


def entropy_of(weights):
    shares = weights / weights.sum()
    return -sum(share * math.log(share) for share in shares if share > 0)


def correlation_of_ranks(x, y):
    def ranks(values):
        return [sum(v < value for v in values) + sum(v == value for v in values) / 2
                for value in values]  # fmt: skip

    if len(set(x)) == 1:
        return math.nan
    return np.corrcoef(ranks(np.array(x)), ranks(np.array(y)))[0, 1]


def gains_by_hand(rows, inputs, successors, counts):
    """Nats that a row and the counts gain over the counts, for each second input."""
    text = sorted(counts)
    x = np.array([[row[t] for t in text] for row in rows], float)
    q = np.array([[successors[token][t] for t in text] for token in inputs], float)
    q /= q.sum(axis=1, keepdims=True)
    c = np.log([counts[t] for t in text])

    def nats(weights, places):
        logits = weights[0] * x[places] + weights[1] * c
        highest = logits.max(axis=1)
        sums = np.exp(logits - highest[:, None]).sum(axis=1)
        return highest + np.log(sums) - (q[places] * logits).sum(axis=1)

    fitted = slice(0, None, 2)
    measured = slice(1, None, 2)
    spread = x.std() or 1.0
    with_row = lowest(lambda w: nats([w[0] / spread, w[1]], fitted).mean(), moves_both=True)
    counts_alone = lowest(lambda w: nats([0, w[1]], fitted).mean(), moves_both=False)
    with_row = [with_row[0] / spread, with_row[1]]
    return nats([0, counts_alone[1]], measured) - nats(with_row, measured)


def lowest(function, moves_both):
    """Where a convex function of two weights is lowest: steps that become smaller."""
    weights = np.array([0.0, 1.0])
    moves = [np.array([a, b]) for a in (-1, 0, 1) for b in (-1, 0, 1)]
    if not moves_both:
        moves = [move for move in moves if move[0] == 0]
    value = function(weights)
    step = 0.5
    while step > 1e-4:
        best = min(moves, key=lambda move: function(weights + step * move))
        new = function(weights + step * best)
        if new < value:
            weights = weights + step * best
            value = new
        else:
            step /= 2
    return weights


def assert_same_figures(found, expected):
    assert found.keys() == expected.keys()
    for column, figures in found.items():
        assert figures.keys() == expected[column].keys()
        for name, figure in figures.items():
            expected_figure = pytest.approx(expected[column][name], abs=1e-5, nan_ok=True)
            assert figure == expected_figure, (column, name)


def name_of(token):
    """Some tokens are spellings of each other: 0 and 1, 2 and 3, ..."""
    return f" W{token // 2}" if token % 2 else f"w{token // 2}"


@pytest.mark.parametrize(
    "tied",
    [pytest.param(True, id="tied", marks=pytest.mark.slow), pytest.param(False, id="untied")],
)
def test_the_figures_equal_those_counted_with_loops(tied):
    ids = some_corpus().ids
    gpt2 = random_model(SMALL.with_head("tied" if tied else "untied"), dtype=np.float64)
    model = {
        "config": {"model_type": "gpt2", "layer_norm_epsilon": gpt2.config.layer_norm_epsilon},
        "W_E": gpt2.W_E.astype(np.float32),
        "W_U": gpt2.W_U.T.astype(np.float32),
        "norm": {part: gpt2.parameters[f"ln_f.{part}"] for part in ("weight", "bias")},
    }
    found, likeliest = head.study(model, head.count_text(ids, 2000), name_of)
    logits = normed(gpt2, np.arange(gpt2.config.vocab_size))
    assert_same_figures(found, count_by_hand(ids.tolist(), logits, name_of))
    assert all(len(row) == 10 for row in likeliest)


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.exists(), reason=f"{CORPUS} is not there")
@pytest.mark.parametrize(
    ("name", "overlap", "by_chance", "gain", "error"),
    [
        pytest.param("shakespeare-tied", 0.013, 0.012, 0.026, 0.007, id="tied"),
        pytest.param("shakespeare-untied", 0.350, 0.053, 1.312, 0.061, id="untied"),
    ],
)
def test_the_figures_of_the_shipped_models(name, overlap, by_chance, gain, error):
    model = head.open_model(WEIGHTS / name)
    written = CORPUS.read_text(encoding="utf-8")
    ids, text_of = head.read_tokens(WEIGHTS / name, "gpt2", written)
    tokenizer = tiedgpt.load_tokenizer(WEIGHTS / name)
    assert ids.tolist() == tokenizer.encode(written)
    found, _ = head.study(model, head.count_text(ids, 2000), text_of)
    gpt2 = tiedgpt.load_model(WEIGHTS / name).astype(np.float64)
    expected = count_by_hand(
        ids.tolist(),
        normed(gpt2, np.arange(1024)),
        lambda token: tokenizer.decode([token]),
    )
    assert_same_figures(found, expected)
    # These were measured by another program, which is not here.
    assert round(found["head"]["overlap"], 3) == overlap
    assert round(found["another"]["overlap"], 3) == by_chance
    assert round(found["head"]["gain"], 3) == gain
    assert round(found["head"]["error"], 3) == error


# ---- A model that is trained here, and the report ----


def text_of_a_chain():
    """20,000 words of two letters. Each of the 60 words has a favourite that follows it."""
    rng = np.random.default_rng(0)
    words = [consonant + vowel for consonant in "bcdfghjklmnp" for vowel in "aeiou"]
    place = 0
    chosen = []
    for is_favourite, random_place in zip(
        rng.random(20_000) < 0.5, rng.integers(0, 60, 20_000), strict=True
    ):
        place = (7 * place + 1) % 60 if is_favourite else int(random_place)
        chosen.append(words[place])
    return " ".join(chosen)


def train_llama(libraries, ids, vocab_size):
    """An untied Llama of one layer, after 80 steps on a text."""
    transformers, torch = libraries
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.as_tensor(ids)
    for _ in range(80):
        starts = torch.randint(len(ids) - 17, (32,))
        batch = torch.stack([ids[start : start + 17] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of transformers
def test_the_figures_of_a_trained_llama_are_those_of_its_twin_without_layers(
    libraries, tmp_path, run_head
):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    _, torch = libraries
    text = text_of_a_chain()
    text_file = tmp_path / "text.txt"
    text_file.write_text(text)
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], vocab_size=300)
    ids = tokenizer.encode(text).ids
    twin = train_llama(libraries, ids, vocab_size=300)
    twin.save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    twin.model.layers = torch.nn.ModuleList()
    logits = logits_of_transformers(torch, twin, np.arange(300)).astype(np.float64)
    found_ids, text_of = head.read_tokens(tmp_path, "llama", text)
    assert found_ids.tolist() == ids
    found, _ = head.study(head.open_model(tmp_path), head.count_text(found_ids, 2000), text_of)
    by_hand = count_by_hand(ids, logits, lambda token: tokenizer.decode([token]))
    assert_same_figures(found, by_hand)
    assert found["head"]["gain"] > 5 * found["head"]["error"]

    code, out, err = run_head(tmp_path, text_file)
    assert code == 0, err
    assert "The flag: untied. The file: two matrices. So W_U is not W_E^T." in out
    assert f"{found['head']['overlap']:.1%} are among" in out
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.exists(), reason=f"{CORPUS} is not there")
def test_the_page_shows_what_the_script_prints(run_head):
    page = (Path(head.__file__).parent / "head.md").read_text(encoding="utf-8")
    found = re.search(r"\$ python scripts/head.py (\S+) tinyshakespeare.txt\n(.*?)```", page, re.S)
    folder, shown = found.groups()
    code, out, err = run_head(WEIGHTS.parent / folder, CORPUS)
    assert (code, err) == (0, "")
    assert out.startswith(shown)
