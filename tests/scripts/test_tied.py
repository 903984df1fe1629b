"""scripts/tied.py, GPT-2 in one file, computes what the package computes, or refuses a checkpoint.

`folder` is a small tied checkpoint that a test may change. Its config.json may say that the model
is tied (`says_tied` True) or untied (False), or say nothing (None). Its file of weights may hold
an output matrix W_U or not. `--head tied` and `--head untied` choose a head. Without this flag,
tied.py uses the head that transformers 5 uses.
"""

import ast
import json
import shutil
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tied  # of scripts/
from support.commands import output
from support.models import CONFIG, SMALL, random_model
from support.reference import GPT2_MERGES, GPT2_VOCAB
from support.texts import assert_same_ids, random_texts

import tiedgpt
from tiedgpt.checkpoints import safetensors
from tiedgpt.gpt2.config import HEADS
from tiedgpt.gpt2.tokenizer import EOT

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "weights"
SHAKESPEARE = WEIGHTS / "shakespeare-tied"
GOLDENS = Path(__file__).parents[1] / "goldens"
HOSTILE_TEXTS = [
    "",
    " ",
    "   \n\n\t \r\n  x",
    "a" * 300,
    " " * 300,
    "!" * 99 + "?",
    "aaabdaaabac",
    "It's they'LL 's 'S ''s don'tt I'm'm",
    "0123456789 ²½Ⅷ٣८",
    "<|endoftext|",
    "ÄÖÜ é e\u0301 \u00ad\u0085\u00a0\u3000x",
    "\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001d518\U0001d52b",
    "\x00\x01\x7f\u2028\ufeff\ufffd",
    "日本語 العربية हिन्दी 한국어",
]


@pytest.fixture
def run_tied(run_script):
    """run_tied(*arguments) -> (exit code, stdout, stderr): runs tied.py in this process."""
    return partial(run_script, tied)


def assert_refused(result, message):
    """The result of run_tied is exit code 2 and one line on stderr, which has the message."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("tied.py: error: ")
    assert err.count("\n") == 1
    assert message in err


def in_float64(params):
    """A nested dict of arrays, each array in float64."""
    if isinstance(params, dict):
        return {name: in_float64(part) for name, part in params.items()}
    if isinstance(params, list):
        return [in_float64(part) for part in params]
    return params.astype(np.float64)


def read(folder, head=None):
    """What tied.py reads: the parameters, in float64, n_head, and whether the head is tied."""
    config = tied.read_json(folder / "config.json")
    tied.check_config(config)
    params, is_tied = tied.read_model(folder, config, head)
    return in_float64(params), config["n_head"], is_tied


def edit_json(path, **changes):
    """Change fields of a JSON file. A field whose new value is None is removed."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        data.pop(name, None)
        if value is not None:
            data[name] = value
    path.write_text(json.dumps(data), encoding="utf-8")


def edit_arrays(folder, edit):
    """Replace the arrays in model.safetensors: `edit` gets a dict of them, and returns another."""
    path = folder / "model.safetensors"
    arrays = {}
    tensors, _ = safetensors.read_header(path)
    for name, tensor in tensors.items():
        arrays[name] = tensor.values(copy=True)
    arrays = edit(arrays)
    with open(path, "wb") as file:
        safetensors.write(file, arrays.items())


@pytest.fixture
def folder(tmp_path, checkpoint):
    """A copy of a small tied checkpoint whose tokens are bytes. A test may change it."""
    return Path(shutil.copytree(checkpoint, tmp_path / "folder"))


# ---- One file ----


def test_tied_py_imports_numpy_regex_and_the_standard_library_alone():
    tree = ast.parse(Path(tied.__file__).read_text(encoding="utf-8"))
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            modules.add(node.module)
    assert modules - sys.stdlib_module_names == {"numpy", "regex"}


def test_tied_py_runs_as_a_script(tmp_path):
    script = ROOT / "scripts" / "tied.py"
    command = [sys.executable, str(script), str(SHAKESPEARE), "ROMEO:", "-n", "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ROMEO:")


# ---- The logits ----


def test_softmax_of_large_numbers():
    x = np.array([[1e4, 1e4], [-1e4, 0]])
    np.testing.assert_allclose(tied.softmax(x), [[0.5, 0.5], [0, 1]])


@pytest.mark.parametrize("head", HEADS)
def test_the_logits_are_those_of_the_package_in_float64(head):
    model = random_model(SMALL.with_head(head), dtype=np.float64)
    params = tied.nest(model.parameters, SMALL.n_layer)
    ids = np.random.default_rng(0).integers(0, SMALL.vocab_size, SMALL.n_ctx)
    logits = tied.gpt2(ids, params, n_head=SMALL.n_head, tied=head == "tied")
    np.testing.assert_allclose(logits, model(ids), rtol=0, atol=1e-12)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["shakespeare-tied", "shakespeare-untied"])
def test_the_logits_of_the_shipped_models_are_those_of_the_package(name, head):
    params, n_head, is_tied = read(WEIGHTS / name, head)
    assert is_tied == (head == "tied")
    model = tiedgpt.load_model(WEIGHTS / name, head=head).astype(np.float64)
    ids = np.random.default_rng(0).integers(0, 1024, 40)
    logits = tied.gpt2(ids, params, n_head=n_head, tied=is_tied)
    np.testing.assert_allclose(logits, model(ids), rtol=0, atol=1e-12)


GOLDENS_READ = ["tied", "untied", "unprefixed", "n_inner", "odd_vocabulary", "one_head"]
GOLDENS_REFUSED = {
    "bfloat16": "is BF16; only F32 is read",
    "float16": "is F16; only F32 is read",
    "gelu": "activation_function is 'gelu'; only 'gelu_new' is read",
    "quick_gelu": "activation_function is 'quick_gelu'",
    "relu": "activation_function is 'relu'",
    "silu": "activation_function is 'silu'",
    "tanh": "activation_function is 'tanh'",
    "inverse_layer_idx": "scale_attn_by_inverse_layer_idx is True; only False is read",
    "unscaled_attention": "scale_attn_weights is False; only True is read",
    "layer_norm_epsilon": "only 1e-05 is read",
    "sharded": "model.safetensors",  # this file is missing
    "tensorflow": "config.json",  # this file is missing
}


@pytest.mark.parametrize("name", GOLDENS_READ)
def test_the_logits_are_those_that_transformers_computed(name):
    params, n_head, is_tied = read(GOLDENS / name)
    computed = json.loads((GOLDENS / name / "expected.json").read_text(encoding="utf-8"))
    model = tiedgpt.load_model(GOLDENS / name).astype(np.float64)
    assert is_tied == model.config.tied
    for ids, expected in zip(computed["ids"], computed["logits"], strict=True):
        logits = tied.gpt2(ids, params, n_head=n_head, tied=is_tied)
        np.testing.assert_allclose(logits, model(ids), rtol=0, atol=1e-12)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", GOLDENS_REFUSED)
def test_the_other_goldens_are_refused(name):
    with pytest.raises((OSError, ValueError), match=GOLDENS_REFUSED[name]):
        read(GOLDENS / name)


def test_every_golden_is_read_or_refused():
    names = [path.name for path in GOLDENS.iterdir() if path.is_dir()]
    assert sorted(names) == sorted([*GOLDENS_READ, *GOLDENS_REFUSED])


# ---- The ids ----


@pytest.mark.parametrize("size", [100, pytest.param(1_000, marks=pytest.mark.slow)])
def test_with_shakespeares_vocabulary_the_ids_are_those_of_the_package(size):
    vocabulary = tied.read_json(SHAKESPEARE / "vocab.json")
    merges = tied.read_merges(SHAKESPEARE / "merges.txt")
    tokenizer = tiedgpt.load_tokenizer(SHAKESPEARE)
    texts = [*HOSTILE_TEXTS, *random_texts(size, seed=6)]
    assert_same_ids(texts, lambda text: tied.encode(text, vocabulary, merges), tokenizer.encode)


def test_of_equal_pairs_the_first_is_joined():
    assert tied.encode_word("aaa", {("a", "a"): 0}) == ["aa", "a"]


@pytest.mark.slow
def test_with_gpt2s_vocabulary_the_ids_are_those_of_the_package(gpt2):
    vocabulary = tied.read_json(GPT2_VOCAB)
    merges = tied.read_merges(GPT2_MERGES)
    texts = [*HOSTILE_TEXTS, *random_texts(1_000, seed=7)]
    assert_same_ids(texts, lambda text: tied.encode(text, vocabulary, merges), gpt2.encode)


def test_ids_are_decoded_as_the_package_does():
    vocabulary = tied.read_json(SHAKESPEARE / "vocab.json")
    tokenizer = tiedgpt.load_tokenizer(SHAKESPEARE)
    rng = np.random.default_rng(0)
    for _ in range(20):
        # Random ids: some of their tokens are parts of characters, or <|endoftext|>.
        ids = rng.integers(0, 1024, 30).tolist()
        assert tied.decode(ids, vocabulary) == tokenizer.decode(ids)


# ---- The text ----


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["shakespeare-tied", "shakespeare-untied"])
def test_greedy_ids_are_those_of_generate(name, head, run, run_tied, monkeypatch):
    prompt = "ROMEO:\nI'll be"
    options = ["--head", head, "--greedy", "-n", "12"]
    _, document, _ = run("generate", "-m", name, *options, "--json", prompt)
    report = json.loads(document)
    (sample,) = report["samples"]

    decode = tied.decode
    written = []  # the ids that tied.py decodes: the prompt and its continuation

    def record(ids, vocabulary):
        written.extend(ids)
        return decode(ids, vocabulary)

    monkeypatch.setattr(tied, "decode", record)
    code, out, _ = run_tied(WEIGHTS / name, prompt, *options)
    assert code == 0
    assert written == report["prompt_ids"] + sample["ids"]
    assert out == prompt + sample["text"] + "\n"


def test_with_the_same_seed_the_untied_model_writes_the_text_of_generate(run, run_tied):
    """The text is sampled with the model's own head, which writes another text than a tied one."""
    options = ["--seed", "1", "-n", "12", "My lord,"]
    expected = output(run, "generate", "-m", "shakespeare-untied", *options)
    result = run_tied(WEIGHTS / "shakespeare-untied", *options)
    assert result == (0, f"My lord,{expected}", "")
    tied_text = output(run, "generate", "-m", "shakespeare-untied", "--head", "tied", *options)
    assert tied_text != expected


def test_seed_0_is_the_default_and_another_seed_writes_another_text(run_tied):
    text = run_tied(SHAKESPEARE, "ROMEO:", "-n", "9")
    assert run_tied(SHAKESPEARE, "ROMEO:", "-n", "9", "--seed", "0") == text
    assert run_tied(SHAKESPEARE, "ROMEO:", "-n", "9", "--seed", "1") != text


def test_beyond_the_context_each_token_is_chosen_from_the_last_n_ctx_tokens(folder, run_tied):
    code, out, _ = run_tied(folder, "a" * CONFIG.n_ctx, "-n", "3", "--greedy")
    assert code == 0
    model = tiedgpt.load_model(folder)
    ids = [64] * CONFIG.n_ctx  # 64 is the id of "a"
    for _ in range(3):
        logits = model(ids[-CONFIG.n_ctx :])
        ids.append(int(logits[-1].argmax()))
    assert out == tiedgpt.load_tokenizer(folder).decode(ids) + "\n"


@pytest.fixture(params=["shakespeare", pytest.param("gpt2", marks=pytest.mark.slow)])
def tokenizer(request):
    if request.param == "gpt2":
        return request.getfixturevalue("gpt2")
    return tiedgpt.load_tokenizer(SHAKESPEARE)


def test_a_folder_like_openai_communitys_gpt2_is_read(tmp_path, tokenizer, run_tied):
    """It has the names of tensors, the causal masks and the files of the Hub's gpt2."""
    size = tokenizer.vocab_size
    config = tiedgpt.Config(vocab_size=size, n_embd=6, n_layer=1, n_head=2, n_ctx=32)
    tiedgpt.save_model(random_model(config), tokenizer, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 1024}))

    def as_on_the_hub(arrays):
        arrays = {name.removeprefix("transformer."): array for name, array in arrays.items()}
        causal_mask = np.tril(np.ones((1, 1, 32, 32), np.float32))
        arrays["h.0.attn.bias"] = causal_mask  # so it is named, though it is not a bias
        return arrays

    edit_arrays(tmp_path, as_on_the_hub)
    code, out, err = run_tied(tmp_path, "Alan Turing theorized", "-n", "5", "--greedy")
    assert (code, err) == (0, "")
    model = tiedgpt.load_model(tmp_path)
    ids = tokenizer.encode("Alan Turing theorized")
    ids += tiedgpt.generate(model, ids, max_new_tokens=5, greedy=True)
    assert out == tokenizer.decode(ids) + "\n"
    assert_refused(run_tied(tmp_path, f"a{EOT}b"), f"special token {EOT}")


# ---- The head ----


def change_one_number(array):
    """A copy whose number at [3, 5] is replaced by the next larger float32."""
    array = array.copy()
    array[3, 5] = np.nextafter(array[3, 5], np.float32(9))
    return array


# What the file of weights holds as W_U: a function of the wte in this file. None stands for no W_U.
HEADS_IN_FILES = {
    "none": lambda wte: None,
    "equal to wte": lambda wte: wte.copy(),
    "different": lambda wte: wte[::-1].copy(),
    "different in one number": change_one_number,
}


def set_head(folder, says_tied, W_U_in_file):
    """Change what config.json says of the head, and the W_U in the file of weights.

    W_U_in_file: a key of HEADS_IN_FILES.
    """
    edit_json(folder / "config.json", tie_word_embeddings=says_tied)

    def with_W_U(arrays):
        W_U = HEADS_IN_FILES[W_U_in_file](arrays["transformer.wte.weight"])
        if W_U is not None:
            arrays["lm_head.weight"] = W_U
        return arrays

    edit_arrays(folder, with_W_U)


@pytest.mark.parametrize(
    ("says_tied", "W_U_in_file", "head"),
    [
        pytest.param(True, "none", "tied", id="says-tied-no-W_U"),
        pytest.param(True, "equal to wte", "tied", id="says-tied-equal-W_U"),
        pytest.param(True, "different", "untied", id="says-tied-different-W_U"),
        pytest.param(True, "different in one number", "untied", id="says-tied-one-number"),
        pytest.param(None, "none", "tied", id="says-nothing-no-W_U"),
        pytest.param(None, "equal to wte", "tied", id="says-nothing-equal-W_U"),
        pytest.param(None, "different", "untied", id="says-nothing-different-W_U"),
        pytest.param(False, "equal to wte", "untied", id="says-untied-equal-W_U"),
        pytest.param(False, "different", "untied", id="says-untied-different-W_U"),
    ],
)
def test_the_head_that_is_used_without_a_flag(folder, says_tied, W_U_in_file, head):
    set_head(folder, says_tied, W_U_in_file)
    params, n_head, is_tied = read(folder)
    assert is_tied == (head == "tied")
    model = tiedgpt.load_model(folder, head=head).astype(np.float64)
    logits = tied.gpt2([1, 2, 3], params, n_head=n_head, tied=is_tied)
    np.testing.assert_allclose(logits, model([1, 2, 3]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("says_tied", "W_U_in_file"),
    [
        pytest.param(True, "different", id="says-tied"),
        pytest.param(True, "different in one number", id="says-tied-one-number"),
        pytest.param(None, "different", id="says-nothing"),
    ],
)
def test_an_untied_model_that_config_json_does_not_call_untied_has_a_note(
    folder, capsys, says_tied, W_U_in_file
):
    set_head(folder, says_tied, W_U_in_file)
    read(folder)
    note = capsys.readouterr().err
    assert note.startswith("tied.py: config.json does not say untied")
    assert note.count("\n") == 1


@pytest.mark.parametrize(
    ("says_tied", "W_U_in_file"),
    [
        pytest.param(True, "none", id="says-tied-no-W_U"),
        pytest.param(True, "equal to wte", id="says-tied-equal-W_U"),
        pytest.param(None, "none", id="says-nothing-no-W_U"),
        pytest.param(None, "equal to wte", id="says-nothing-equal-W_U"),
        pytest.param(False, "equal to wte", id="says-untied-equal-W_U"),
        pytest.param(False, "different", id="says-untied-different-W_U"),
    ],
)
def test_a_tied_model_and_one_that_config_json_calls_untied_have_no_note(
    folder, capsys, says_tied, W_U_in_file
):
    set_head(folder, says_tied, W_U_in_file)
    read(folder)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("W_U_in_file", HEADS_IN_FILES)
@pytest.mark.parametrize("says_tied", [True, None, False])
def test_transformers_chooses_the_same_head(folder, says_tied, W_U_in_file):
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: the extra `parity`"
    )
    if says_tied is False and W_U_in_file == "none":
        pytest.skip("tied.py refuses this file, and transformers makes a head of random numbers")
    set_head(folder, says_tied, W_U_in_file)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float64).eval()
        batch_of_one = torch.arange(20)[None]  # the tokens 0 to 19
        (expected,) = model(batch_of_one).logits.numpy()
    params, n_head, is_tied = read(folder)
    assert is_tied == (model.lm_head.weight is model.transformer.wte.weight)
    logits = tied.gpt2(np.arange(20), params, n_head=n_head, tied=is_tied)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-9)


def test_an_untied_model_without_a_W_U_needs_the_flag(folder, run_tied):
    edit_json(folder / "config.json", tie_word_embeddings=False)
    assert_refused(run_tied(folder, "a"), "model.safetensors has no lm_head.weight; choose --head")
    code, _, _ = run_tied(folder, "a", "--head", "tied")
    assert code == 0


def test_head_untied_without_a_W_U_uses_a_copy_of_wte_and_writes_the_same_text(folder, run_tied):
    tied_code, tied_out, _ = run_tied(folder, "Hello", "--greedy")
    code, out, err = run_tied(folder, "Hello", "--greedy", "--head", "untied")
    assert (code, out) == (tied_code, tied_out)
    assert err == "tied.py: the file has no W_U, so a copy of wte.T is used\n"


def test_head_untied_uses_the_W_U_of_the_file_and_head_tied_does_not(folder, run_tied):
    """The file has a W_U, although config.json says that the model is tied."""
    set_head(folder, says_tied=True, W_U_in_file="different")
    code, untied_out, err = run_tied(folder, "Hello", "--greedy", "--head", "untied")
    assert (code, err) == (0, "")
    code, out_without_a_flag, _ = run_tied(folder, "Hello", "--greedy")
    assert (code, out_without_a_flag) == (0, untied_out)
    code, tied_out, err = run_tied(folder, "Hello", "--greedy", "--head", "tied")
    assert (code, err) == (0, "")
    assert tied_out != untied_out


# ---- What is refused ----


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        pytest.param("model_type", "gpt_neo", "model_type is 'gpt_neo'", id="model"),
        pytest.param("activation_function", "gelu", "activation_function is 'gelu'", id="gelu"),
        pytest.param("layer_norm_epsilon", 1e-6, "layer_norm_epsilon is 1e-06", id="epsilon"),
        pytest.param("scale_attn_weights", False, "scale_attn_weights is False", id="unscaled"),
        pytest.param("scale_attn_by_inverse_layer_idx", True, "idx is True", id="by-layer"),
        pytest.param("n_layer", 1, "h.1.", id="one-layer"),
        pytest.param("n_layer", 3, "h.2.", id="three-layers"),
        pytest.param("n_inner", 50, "mlp.c_", id="n_inner"),
        pytest.param("n_positions", 65, "wpe.weight has shape (64, 21)", id="n_positions"),
        pytest.param("vocab_size", 256, "vocab.json", id="vocab_size"),
    ],
)
def test_the_config_of_another_model_is_refused(folder, run_tied, name, value, message):
    edit_json(folder / "config.json", **{name: value})
    assert_refused(run_tied(folder, "a"), message)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.json", "merges.txt"])
def test_a_missing_file_is_named(folder, run_tied, name):
    (folder / name).unlink()
    assert_refused(run_tied(folder, "a"), name)


@pytest.mark.parametrize("end", [-1, -4])
def test_weights_that_lack_their_end_are_refused(folder, run_tied, end):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:end])
    assert_refused(run_tied(folder, "a"), "")


def test_weights_with_a_nan_are_refused(folder, run_tied):
    def with_nan(arrays):
        arrays["transformer.wpe.weight"][0, 0] = np.nan
        return arrays

    edit_arrays(folder, with_nan)
    assert_refused(run_tied(folder, "a"), "the weights are damaged")
    assert_refused(run_tied(folder, "a", "--greedy"), "the weights are damaged")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        pytest.param("", "the prompt has 0 tokens; expected 1 to 64", id="empty"),
        pytest.param("a" * 65, "the prompt has 65 tokens; expected 1 to 64", id="too-long"),
        pytest.param(f"a{EOT}", f"the special token {EOT}", id="end-of-text"),
        pytest.param("a\udcff", "surrogates not allowed", id="not-Unicode"),
    ],
)
def test_prompts_that_are_refused(folder, run_tied, prompt, message):
    assert_refused(run_tied(folder, prompt), message)


def test_two_tokens_with_one_id_are_refused(folder, run_tied):
    edit_json(folder / "vocab.json", a=3)
    assert_refused(run_tied(folder, "a"), "vocab.json")
