"""The whole message of each error of the package gpt2: the wrong value, what is right, and a hint.

MODEL is tied, with the sizes of SMALL: 101 tokens, a context of 31, two layers of width 21.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.models import SMALL, SMALL_MERGES, random_model

from tiedgpt import GPT2, Config, loss_and_gradients
from tiedgpt.errors import ArgumentError, ConfigError, TokenizerError
from tiedgpt.gpt2.parameters import count_matrices
from tiedgpt.gpt2.tokenizer import EOT, Tokenizer, spelled_ids

MODEL = random_model()
UNTIED = MODEL.untie()
IDS = [1, 2, 3]


def edited(edit):
    return MODEL(IDS, edit=edit)


def without(name):
    parameters = dict(MODEL.parameters)
    del parameters[name]
    return GPT2(SMALL, parameters)


def with_array(name, shape, dtype=np.float32):
    return GPT2(SMALL, {**MODEL.parameters, name: np.zeros(shape, dtype)})


def continued(cached, more, capacity=None):
    """Read `more` tokens after the `cached` ones."""
    cache = MODEL.new_cache(capacity=capacity)
    MODEL([0] * cached, cache)
    return MODEL([0] * more, cache)


ARGUMENTS = {
    "expected token ids, got text: encode it first, with tokenizer.encode(text)": (
        lambda: MODEL("text")
    ),
    "ids must be [T] or [B, T] with at least one token, got shape (0,)": lambda: MODEL([]),
    "ids must be whole numbers, got float64": lambda: MODEL([1.0]),
    "token id 108 is outside the vocabulary of 101 (0 to 100)": lambda: MODEL([5, 108, -1]),
    "the input has 32 tokens, more than the model's context of 31": lambda: MODEL([[0] * 32]),
    "targets have shape (2,); expected that of ids, (1, 2)": (
        lambda: loss_and_gradients(MODEL, [[1, 2]], [1, 2])
    ),
    "vocab_size must be at least 100: token 99 ends a text (eos_token_id), got 98": (
        lambda: random_model(replace(SMALL, eos_token_id=(0, 99))).resize(98)
    ),
    "vocab_size must be at least 100: token 99 begins a text (bos_token_id), got 98": (
        lambda: random_model(replace(SMALL, bos_token_id=99)).resize(98)
    ),
    "vocab_size must be a whole number from 1 to 2147483647, got 0": lambda: MODEL.resize(0),
    'init must be "mean" or "random", got \'zeros\'': lambda: MODEL.resize(9, init="zeros"),
    'init must be "copy", "random" or "zeros", got \'ones\'': lambda: MODEL.untie("ones"),
    "the model is untied already; to start W_U anew, use model.tie().untie(init)": (
        lambda: UNTIED.untie()
    ),
    "seed must be a whole number of at least 0, got -1": lambda: GPT2.random(SMALL, -1),
    "cache must come from this model's new_cache, got True": lambda: MODEL(IDS, cache=True),
    "the cache was made for another model: make one with this model's new_cache": (
        lambda: MODEL(IDS, MODEL.astype(np.float64).new_cache())
    ),
    "ids are 2 sequences, the cache holds 3": lambda: MODEL([IDS, IDS], MODEL.new_cache(3)),
    "the cache has 1 token, 31 more are given, there is room for 31": lambda: continued(1, 31),
    "the cache has 3 tokens, 4 more are given, there is room for 5": (
        lambda: continued(3, 4, capacity=5)
    ),
    "batch must be a whole number of at least 0, got -1": lambda: MODEL.new_cache(-1, 3),
    "capacity must be a whole number of at least 0, got 0.5": lambda: MODEL.new_cache(2, 0.5),
    "tape must be a dict to write to, got []": lambda: MODEL(IDS, tape=[]),
    "edit must map names of activations to functions, got ['mlp.0.out']": (
        lambda: edited(["mlp.0.out"])
    ),
    "'attn.7.out' is not an activation of this model; "
    "the nearest are attn.1.out, attn.0.out, attn.1.v": lambda: edited({"attn.7.out": np.tanh}),
    "the edit of mlp.0.out must be a function, got 3": lambda: edited({"mlp.0.out": 3}),
    "the edit of mlp.0.out returned no real numbers, but '1.0'": (
        lambda: edited({"mlp.0.out": lambda x: "1.0"})
    ),
    "the edit of mlp.0.out returned shape (3, 21); expected (1, 3, 21)": (
        lambda: edited({"mlp.0.out": lambda x: x[0]})
    ),
    "parameter h.1.ln_2.bias is missing; expected shape (21,) in a GPT-2 of 2 layers": (
        lambda: without("h.1.ln_2.bias")
    ),
    "parameter wpe.weight has shape (21, 31); expected (31, 21)": (
        lambda: with_array("wpe.weight", (21, 31))
    ),
    "parameter 'lm_head.weight' is not one of a tied GPT-2's of 2 layers": (
        lambda: with_array("lm_head.weight", (101, 21))
    ),
    "parameters must be all float32 or all float64, got float32, float64": (
        lambda: with_array("wte.weight", (101, 21), np.float64)
    ),
    'head must be "tied" or "untied", got \'both\'': lambda: SMALL.with_head("both"),
    "vocab must be a whole number from 1 to 1000000000000000000, got 0": (
        lambda: count_matrices(0, 4)
    ),
    "dim must be a whole number from 1 to 1000000000000000000, got 1.5": (
        lambda: count_matrices(50, 1.5)
    ),
    "total must be a whole number from 1 to 1000000000000000000, got -1": (
        lambda: count_matrices(50, 4, -1)
    ),
    "total must be a whole number from 1 to 1000000000000000000, got 0": (
        lambda: count_matrices(50, 4, 0)
    ),
    "total 1,999 is less than the token embedding alone, 2,000": (
        lambda: count_matrices(50, 40, 1_999)
    ),
    "special must be 'error', 'token' or 'text', got 'all'": (
        lambda: Tokenizer([]).encode("", special="all")
    ),
}


def read(**fields):
    """Read a config.json with these fields."""
    return Config.from_json({"model_type": "gpt2", **fields})


QUANTISED = "the weights are quantised, which is not read: load the model that they were made from"
CONFIGS = {
    "expected a JSON object, got []": lambda: Config.from_json([]),
    '"model_type" is missing; expected "gpt2"': lambda: Config.from_json({}),
    f"quantization is {{'bits': 4}}: {QUANTISED}": lambda: read(quantization={"bits": 4}),
    f"quantization_config is {{}}: {QUANTISED}": lambda: read(quantization_config={}),
    "model_type is 'llama', which is another model than GPT-2; expected 'gpt2'": (
        lambda: read(model_type="llama")
    ),
    "pruned_heads is {'0': [1]}, which is another model than GPT-2; expected None": (
        lambda: read(pruned_heads={"0": [1]})
    ),
    "add_cross_attention is True, which is another model than GPT-2; expected False": (
        lambda: read(add_cross_attention=True)
    ),
    "is_encoder_decoder is True, which is another model than GPT-2; expected False": (
        lambda: read(is_encoder_decoder=True)
    ),
    "hidden_size is 48 but n_embd, its other name, is 24": lambda: read(hidden_size=48, n_embd=24),
    "hidden_size is None but n_embd, its other name, is 24": (
        lambda: read(hidden_size=None, n_embd=24)
    ),
    "bos_token_id and eos_token_id must be a whole number from 0 to 2147483647, got -2": (
        lambda: read(bos_token_id=-2)
    ),
    "bos_token_id and eos_token_id must be a whole number from 0 to 2147483647, got 2147483648": (
        lambda: read(eos_token_id=[1, 2**31])
    ),
    "bos_token_id and eos_token_id must be a whole number from 0 to 2147483647, got -1.0": (
        lambda: read(eos_token_id=-1.0)
    ),
    "vocab_size must be a whole number from 1 to 2147483647, got 2147483648": (
        lambda: read(vocab_size=2**31)
    ),
    "n_ctx (n_positions in config.json) must be a whole number from 1 to 2147483647, got 0": (
        lambda: read(n_positions=0)
    ),
    "n_layer must be a whole number from 0 to 1000, got 1001": lambda: read(n_layer=1001),
    "layer_norm_epsilon must be a number of at least 0, got -1": (
        lambda: read(layer_norm_epsilon=-1)
    ),
    "initializer_range must be a number from 0 to 1e+37, got 1e+38": (
        lambda: read(initializer_range=1e38)
    ),
    "resid_pdrop must be a number of at least 0 and below 1, got 1.0": (
        lambda: read(resid_pdrop=1.0)
    ),
    "scale_attn_weights must be true or false, got 1": lambda: read(scale_attn_weights=1),
    "scale_attn_by_inverse_layer_idx must be true or false, got None": (
        lambda: read(scale_attn_by_inverse_layer_idx=None)
    ),
    "tied (tie_word_embeddings in config.json) must be true or false, got 'no'": (
        lambda: read(tie_word_embeddings="no")
    ),
    "n_embd 768 does not divide into n_head 7 equal heads": lambda: read(n_embd=768, n_head=7),
    "activation_function 'xielu' is not supported; expected one of gelu_new, gelu_accurate, "
    "gelu_fast, gelu_pytorch_tanh, gelu_python_tanh, gelu, gelu_python, quick_gelu, relu, silu, "
    "swish, tanh": lambda: read(activation_function="xielu"),
}

SOME_BYTES = {"a": 0, "b": 5, "c": 6}  # EOT has id 7
SURROGATE = "half of a surrogate pair: the input was not valid UTF-8"
TOKENIZERS = {
    "tokens '<a>' and '<b>' have one id, 256": lambda: Tokenizer([], {"<a>": 256, "<b>": 256}),
    "special token 'lo' has id 257, expected 256, its id as an ordinary token": (
        lambda: Tokenizer([("l", "o")], {"lo": 257})
    ),
    "token '!' has id True, expected a whole number from 0 to 4294967295": (
        lambda: Tokenizer([], {}, {"!": True})
    ),
    f"special token '{'<' * 56}... has 129 characters, expected 1 to 128": (
        lambda: Tokenizer([], {"<" * 129: 256})
    ),
    "special token 'é' is also the spelling of an ordinary token of another text": (
        lambda: Tokenizer([], {"é": 165})
    ),
    rf"character 0 of a special token is '\ud800', {SURROGATE}": (
        lambda: Tokenizer([], {"\ud800": 256})
    ),
    rf"character 1 of the name of a token is '\ud800', {SURROGATE}": (
        lambda: Tokenizer([], {}, {"a\ud800": 256})
    ),
    "merge 1, 'l o': 'lo' has no id": lambda: Tokenizer([("l", "o")], {}, spelled_ids([])),
    "merge 2, 'lo wer': 'wer' is no byte and no earlier merge": (
        lambda: Tokenizer([("l", "o"), ("lo", "wer")])
    ),
    "merge 2, 'l o': exists already": lambda: Tokenizer([("l", "o"), ("l", "o")]),
    "the text contains special token '<|endoftext|>' at character 4; "
    "special='token' reads it as that token, special='text' as ordinary characters": (
        lambda: Tokenizer([]).encode(f"low {EOT}{EOT}")
    ),
    "the text must be a str, got b'low'": lambda: Tokenizer([]).encode(b"low"),
    rf"character 2 of the text is '\udcff', {SURROGATE}": (
        lambda: Tokenizer([]).encode("ab\udcff\udcfe")
    ),
    r"the vocabulary has no token for byte 0x0a of '\n\n'": (
        lambda: Tokenizer([], ids=SOME_BYTES).encode("ab\n\n")
    ),
    "1 is not a token id from 0 to 7": lambda: Tokenizer([], ids=SOME_BYTES).decode([7, 1]),
    "'1' is not a token id from 0 to 261": lambda: Tokenizer(SMALL_MERGES).decode(["1"]),
}


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        pytest.param(ArgumentError, ARGUMENTS, id="arguments"),
        pytest.param(ConfigError, CONFIGS, id="configurations"),
        pytest.param(TokenizerError, TOKENIZERS, id="tokenizers"),
    ],
)
def test_the_whole_message_of_each_error(error, calls):
    for message, call in calls.items():
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("begins", "call"),
    [
        pytest.param("ids must be [T] or [B, T]: ", lambda: MODEL([[1, 2], [3]]), id="ids"),
        pytest.param(
            "the edit of final returned no array: ",
            lambda: edited({"final": lambda x: [[1], [1, 2]]}),
            id="edit",
        ),
    ],
)
def test_what_numpy_says_of_rows_of_two_lengths_is_the_end_of_a_message(begins, call):
    with pytest.raises(ArgumentError) as caught:
        call()
    reason = caught.value.__cause__
    assert "inhomogeneous" in str(reason)
    assert str(caught.value) == f"{begins}{reason}"
