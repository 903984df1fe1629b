"""Readers agree: transformers, tokenizers and tiedgpt read the same, or refuse.

A checkpoint that tiedgpt reads has the same tensors in transformers. What transformers would fill
with random numbers, tiedgpt refuses. test_vocabulary.py compares folders of vocabularies, and
test_safetensors.py files that break a rule.
"""

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoint_files import write_config, write_shards, write_tensors
from support.models import SMALL, SMALL_MERGES, random_model
from support.vocabularies import BYTE_LEVEL, added_token, bpe_model, tokenizer_json

import tiedgpt
from tiedgpt import Config
from tiedgpt.errors import CheckpointError, TiedGPTWarning
from tiedgpt.gpt2.special_tokens import Flags
from tiedgpt.gpt2.tokenizer import EOT, spelled_ids

ALL_REFUSE = "all refuse"
WE_REFUSE = "we refuse"  # transformers reads it with other numbers, or with random ones
SAME = "the same"
REFUSED = "refused"

Tensors = dict[str, np.ndarray]
Change = Callable[[Tensors, dict[str, Any]], object]  # of the tensors and of config.json

HEAD = random_model(SMALL.with_head("untied")).parameters["lm_head.weight"]
UNTIED = {"tie_word_embeddings": False}
MASKS = {
    "h.0.attn.bias": np.ones((1, 1, SMALL.n_ctx, SMALL.n_ctx), np.uint8),
    "h.0.attn.masked_bias": np.float32([-1e4]),
}

# A change of a small tied checkpoint, whose tensors have no prefix -> who reads it
CHECKPOINTS: dict[str, tuple[Change, str]] = {
    "as-it-is": (lambda tensors, config: None, SAME),
    "masks": (lambda tensors, config: tensors.update(MASKS), SAME),
    "prefix": (lambda tensors, config: prefix(tensors), SAME),
    "float16": (lambda tensors, config: change_dtype(tensors, np.float16), SAME),
    "float64": (lambda tensors, config: change_dtype(tensors, np.float64), SAME),
    "config-says-float16": (lambda tensors, config: config.update(dtype="float16"), SAME),
    "head-of-an-untied-model": (lambda tensors, config: untie(tensors, config), SAME),
    "matrix-under-its-other-name": (lambda tensors, config: rename_wte(tensors), SAME),
    "another-head-beside-it": (
        lambda tensors, config: tensors.update({"score.weight": np.ones((2, 21), np.float32)}),
        SAME,
    ),
    "no-model-type": (lambda tensors, config: config.pop("model_type"), SAME),
    "end-of-minus-1": (lambda tensors, config: config.update(eos_token_id=-1), SAME),
    "copied-head": (lambda tensors, config: copy_head(tensors), SAME),
    "head-that-config-does-not-say": (lambda tensors, config: add_head(tensors), SAME),
    "n-inner-null": (lambda tensors, config: widen(tensors, config), SAME),
    "activation": (lambda tensors, config: config.update(activation_function="relu"), SAME),
    "no-activation": (lambda tensors, config: config.pop("activation_function"), SAME),
    "no-epsilon": (lambda tensors, config: config.pop("layer_norm_epsilon"), SAME),
    "scores-not-scaled": (lambda tensors, config: config.update(scale_attn_weights=False), SAME),
    "scores-by-layer": (
        lambda tensors, config: config.update(scale_attn_by_inverse_layer_idx=True),
        SAME,
    ),
    "no-head-of-an-untied-model": (lambda tensors, config: config.update(UNTIED), WE_REFUSE),
    "tensor-missing": (lambda tensors, config: tensors.pop("h.1.mlp.c_fc.bias"), WE_REFUSE),
    "layer-too-many": (lambda tensors, config: config.update(n_layer=3), WE_REFUSE),
    "layer-too-few": (lambda tensors, config: config.update(n_layer=1), WE_REFUSE),
    "cross-attention": (lambda tensors, config: config.update(add_cross_attention=True), WE_REFUSE),
    "another-model": (lambda tensors, config: config.update(model_type="gpt_neo"), WE_REFUSE),
    "context-too-long": (lambda tensors, config: config.update(n_positions=32), ALL_REFUSE),
    "vocabulary-too-small": (lambda tensors, config: config.update(vocab_size=100), ALL_REFUSE),
    "n-head-that-does-not-divide": (lambda tensors, config: config.update(n_head=4), ALL_REFUSE),
    "unknown-activation": (
        lambda tensors, config: config.update(activation_function="gelu_newer"),
        ALL_REFUSE,
    ),
    "turned-matrix": (lambda tensors, config: turn(tensors, "h.0.attn.c_attn.weight"), ALL_REFUSE),
}


def prefix(tensors: Tensors) -> None:
    for name in list(tensors):
        tensors[f"transformer.{name}"] = tensors.pop(name)


def change_dtype(tensors: Tensors, dtype: type) -> None:
    for name, values in tensors.items():
        tensors[name] = values.astype(dtype)


def add_head(tensors: Tensors) -> None:
    """Add a W_U. In files that have one, all other names have the prefix."""
    prefix(tensors)
    tensors["lm_head.weight"] = HEAD


def untie(tensors: Tensors, config: dict[str, Any]) -> None:
    add_head(tensors)
    config.update(UNTIED)


def copy_head(tensors: Tensors) -> None:
    add_head(tensors)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]


def rename_wte(tensors: Tensors) -> None:
    """As safetensors' save_model writes a tied model: a matrix is stored under one of its names."""
    prefix(tensors)
    tensors["lm_head.weight"] = tensors.pop("transformer.wte.weight")


def widen(tensors: Tensors, config: dict[str, Any]) -> None:
    """Without n_inner, the width of an MLP is 4 * n_embd."""
    config["n_inner"] = None
    width = 4 * SMALL.n_embd
    rng = np.random.default_rng(0)
    for layer in range(SMALL.n_layer):
        for name, shape in (
            ("c_fc.weight", (SMALL.n_embd, width)),
            ("c_fc.bias", (width,)),
            ("c_proj.weight", (width, SMALL.n_embd)),
        ):
            values = rng.standard_normal(shape).astype(np.float32)
            tensors[f"h.{layer}.mlp.{name}"] = values


def turn(tensors: Tensors, name: str) -> None:
    tensors[name] = np.ascontiguousarray(tensors[name].T)


Read = tuple[Tensors, np.ndarray]  # parameters by our names, and logits


def read_by_us(folder: Path, ids: np.ndarray) -> Read | str:
    try:
        model = tiedgpt.load_model(folder)
    except CheckpointError:
        return REFUSED
    return {"lm_head.weight": model.W_U, **model.parameters}, model(ids)


def read_by_transformers(folder: Path, ids: np.ndarray) -> Read | str:
    """A tensor that is missing, or that nothing uses, is refused: transformers only reports it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    try:
        model, report = transformers.GPT2LMHeadModel.from_pretrained(
            folder, output_loading_info=True, dtype=torch.float32
        )
    except (RuntimeError, ValueError, KeyError, OSError):
        return REFUSED
    assert isinstance(report, dict)
    tensors = {}
    for name, values in model.state_dict().items():
        tensors[name.removeprefix("transformer.")] = values.numpy()
    with torch.no_grad():
        logits = model(torch.from_numpy(ids[None])).logits[0].numpy()
    return tensors, logits


@pytest.mark.filterwarnings(f"ignore::{TiedGPTWarning.__module__}.TiedGPTWarning")
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_is_read_as_transformers_reads_it_or_refused(tmp_path, name):
    change, expected = CHECKPOINTS[name]
    tensors = dict(random_model().parameters)
    config = SMALL.to_json()
    change(tensors, config)
    write_tensors(tmp_path, tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_verdict(tmp_path, expected)


def assert_verdict(folder: Path, expected: str) -> None:
    ids = np.arange(12)
    ours = read_by_us(folder, ids)
    theirs = read_by_transformers(folder, ids)
    if expected == SAME:
        assert REFUSED not in (ours, theirs)
        assert_same_read(ours, theirs)
    else:
        assert ours == REFUSED
        assert (theirs == REFUSED) == (expected == ALL_REFUSE)


def assert_same_read(ours: Read, theirs: Read) -> None:
    our_tensors, our_logits = ours
    their_tensors, their_logits = theirs
    for name, values in their_tensors.items():
        if name.endswith(("attn.bias", "attn.masked_bias")):  # masks, which are no parameters
            continue
        expected = np.ascontiguousarray(our_tensors[name])
        # Of a tied model we have W_U [D, V], and they have lm_head.weight [V, D].
        if name == "lm_head.weight" and expected.shape != values.shape:
            expected = expected.T
        np.testing.assert_array_equal(values, expected, name)
    np.testing.assert_allclose(our_logits, their_logits, rtol=1e-4, atol=1e-4)


def test_several_files_are_read_as_transformers_reads_them(tmp_path):
    write_shards(tmp_path, random_model())
    index = tmp_path / "model.safetensors.index.json"
    # transformers needs the entry "metadata", which write_shards leaves out.
    index.write_text(json.dumps({"metadata": {}, **json.loads(index.read_text())}))
    assert_verdict(tmp_path, SAME)


# Files of PyTorch

PICKLED = ["zip", "old", "half", "bfloat16", "parameters", "views", "masks", "shards"]
CONFIGS = {
    "gpt2": {},
    "CodeParrot": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    "Cerebras-GPT": {"activation_function": "gelu"},
    "epsilon": {"layer_norm_epsilon": 0.01},
}


@pytest.mark.parametrize("kind", PICKLED)
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_a_pytorch_model_bin_is_read_as_transformers_reads_it(tmp_path, kind, head):
    write_pickled(tmp_path, SMALL.with_head(head), kind)
    assert_verdict(tmp_path, SAME)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_config_json_beside_a_pytorch_model_bin_counts(tmp_path, name):
    """With the fields of gpt2, the logits would differ by 0.001 to 0.5."""
    write_pickled(tmp_path, SMALL, "zip")
    config = SMALL.to_json() | CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_verdict(tmp_path, SAME)


def write_pickled(folder: Path, config: Config, kind: str) -> None:
    """A model as transformers 4 saved it: lm_head.weight is there, tied or not."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    write_config(folder, config)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config.to_json()))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3, generator=generator)
    state = theirs.state_dict()
    wte, head = state["transformer.wte.weight"], state["lm_head.weight"]
    assert (wte.data_ptr() == head.data_ptr()) == config.tied
    parts = {"pytorch_model.bin": change_state(torch, state, kind)}
    if kind == "shards":
        parts = {"pytorch_model-00001-of-00002.bin": {}, "pytorch_model-00002-of-00002.bin": {}}
        weight_map = {}
        for name in state:
            weight_map[name] = list(parts)[".h.1." in name]
            parts[weight_map[name]][name] = state[name]
        index = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
        (folder / "pytorch_model.bin.index.json").write_text(index)
    for file, part in parts.items():
        torch.save(part, folder / file, _use_new_zipfile_serialization=kind != "old")


def change_state(torch: Any, state: dict[str, Any], kind: str) -> dict[str, Any]:
    """The tensors in another form."""
    if kind in ("half", "bfloat16"):
        return {name: tensor.to(getattr(torch, kind)) for name, tensor in state.items()}
    if kind == "parameters":
        return {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}
    if kind == "views":  # in the order of columns
        return {
            name: tensor.mT.contiguous().mT if tensor.ndim == 2 else tensor
            for name, tensor in state.items()
        }
    if kind == "masks":
        masks = {}
        for layer in range(SMALL.n_layer):
            masks[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 31, 31).bool()
            masks[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        return state | masks
    return state


# Added tokens

# Their texts overlap: one is a part of another, or begins inside it, or with a space.
# "low" and "b" are ordinary tokens, too.
OVERLAPPING = ["<a>", "<a><b>", "a>", "><", "low", " low", "lo w", "\n", " ", "b", "_", "ab c", EOT]
# White space of each kind, and characters that are a part of a word or not.
BETWEEN = [*" \t\n\r\x0b\x0c\x1c\x85\xa0\u2003\u200b\u3000", *"x_7é²-<", "  ", "e\u0301", "foo"]


def random_added_tokens(rng: random.Random) -> list[dict[str, Any]]:
    """Up to seven entries of added_tokens with random flags."""
    ids = spelled_ids(SMALL_MERGES, first_id=0)
    entries = []
    for text in rng.sample(OVERLAPPING, rng.randrange(1, 8)):
        flags = {flag: rng.random() < 0.4 for flag in asdict(Flags())}
        if text.isspace():
            flags["lstrip"] = False  # tokenizers ends the process for some texts
        entries.append(added_token(text, ids.setdefault(text, len(ids)), **flags))
    return entries


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 9))]
)
def test_tokenizers_finds_the_same_added_tokens(seed):
    """The ids and the decoded text are the same for added tokens with any flags."""
    tokenizers = pytest.importorskip("tokenizers")
    rng = random.Random(seed)
    for _ in range(30):
        added = random_added_tokens(rng)
        prefix_space = rng.random() < 0.5
        theirs = tokenizers.Tokenizer.from_str(
            json.dumps(
                tokenizer_json(
                    added_tokens=added,
                    pre_tokenizer=BYTE_LEVEL | {"add_prefix_space": prefix_space},
                    decoder=BYTE_LEVEL,
                    model=bpe_model(vocab=spelled_ids(SMALL_MERGES, first_id=0)),
                )
            )
        )
        ours = tiedgpt.Tokenizer(
            SMALL_MERGES,
            {token["content"]: token["id"] for token in added},
            flags={
                token["content"]: Flags(**{flag: token[flag] for flag in asdict(Flags())})
                for token in added
            },
            prefix_space=prefix_space,
        )
        pieces = [*ours.special_tokens, *BETWEEN]
        texts = ["".join(rng.choices(pieces, k=rng.randrange(10))) for _ in range(20)]
        for special in ("token", "text"):
            theirs.encode_special_tokens = special == "text"
            for text in texts:
                ids = ours.encode(text, special)
                assert ids == theirs.encode(text, add_special_tokens=False).ids, text
                assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False), text
