"""Config: config.json is read and written, and everything but GPT-2 is refused."""

import json

import numpy as np
import pytest

from tiedgpt import Config
from tiedgpt.errors import ArgumentError, ConfigError

GPT2_JSON = {
    "embd_pdrop": 0.1,
    "resid_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}


def deeply_nested_list():
    """A list that is nested too deeply to be shown."""
    value = []
    for _ in range(100_000):
        value = [value]
    return value


def test_gpt2s_own_file_is_the_default():
    """gpt2's config.json names neither n_inner nor tie_word_embeddings: 4 D and tied."""
    config = Config.from_json(GPT2_JSON)
    assert config == Config()
    assert (config.n_inner, config.tied, config.head_width) == (3072, True, 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": False},
        {"n_inner": 1000, "activation_function": "relu"},
        {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
        {"layer_norm_epsilon": 1e-3, "n_positions": 77},
        {"eos_token_id": [3, 4], "bos_token_id": None},
        {"n_layer": 0},
    ],
)
def test_every_honoured_field_survives_a_round_trip(changes):
    config = Config.from_json({**GPT2_JSON, **changes})
    assert config != Config()
    written = json.loads(json.dumps(config.to_json()))
    assert {name: written[name] for name in changes} == changes
    assert Config.from_json(written) == config


def test_transformers_other_names_for_the_same_fields():
    """GPT2Config takes hidden_size for n_embd and so on; to pass it over would compute another
    model."""
    renamed = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3}
    config = Config.from_json({"model_type": "gpt2", **renamed, "max_position_embeddings": 64})
    assert (config.n_embd, config.n_head, config.n_layer, config.n_ctx) == (48, 4, 3, 64)
    assert Config.from_json({**GPT2_JSON, "n_positions": 64}).n_ctx == 64, (
        "not n_ctx, which old files have too"
    )


def test_unknown_fields_are_kept_but_not_those_of_the_file_alone():
    data = {
        **GPT2_JSON,
        "attn_pdrop": 0.3,
        "pad_token_id": 7,
        "dtype": "float16",
        "torch_dtype": "float16",
    }
    written = Config.from_json(data).to_json()
    assert (written["attn_pdrop"], written["pad_token_id"]) == (0.3, 7)
    assert written["task_specific_params"] == GPT2_JSON["task_specific_params"]
    assert not {"dtype", "torch_dtype", "transformers_version"} & written.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, r"model_type is 'llama'.*expected 'gpt2'"),
        ({"num_attention_heads": 4}, "num_attention_heads is 4 but n_head, its other name, is 12"),
        ({"add_cross_attention": True}, "add_cross_attention is True, which is another model"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        (
            {"activation_function": "xielu"},
            "activation_function 'xielu' is not supported; expected one of",
        ),
        ({"activation_function": ["relu"]}, r"activation_function \['relu'\] is not supported"),
        ({"n_head": 7}, "n_embd 768 does not divide into n_head 7"),
        ({"n_layer": -1}, "n_layer must be a whole number from 0 to 1000, got -1"),
        (
            {"n_layer": deeply_nested_list()},
            "n_layer must be a whole number .*, got a list too long to show$",
        ),
        ({"n_embd": 768.0}, r"n_embd must be a whole number .*got 768\.0"),
        ({"n_embd": None}, "n_embd must be a whole number .*got None"),
        ({"vocab_size": 0}, "vocab_size must be a whole number from 1"),
        (
            {"vocab_size": 10**5000},
            "vocab_size must be a whole number .*got a int too long to show",
        ),
        (
            {"n_positions": "1024"},
            r"n_ctx \(n_positions in config\.json\) must be a whole number .*got",
        ),
        ({"n_inner": 0}, "n_inner must be a whole number from 1"),
        (
            {"layer_norm_epsilon": "tiny"},
            "layer_norm_epsilon must be a number of at least 0, got 'tiny'",
        ),
        ({"embd_pdrop": 1}, "embd_pdrop must be a number of at least 0 and below 1, got 1"),
        ({"resid_pdrop": 1}, "resid_pdrop must be a number of at least 0 and below 1, got 1"),
        ({"attn_pdrop": 1}, "attn_pdrop must be a number of at least 0 and below 1, got 1"),
        (
            {"tie_word_embeddings": "no"},
            r"tie_word_embeddings in config\.json\) must be true or false, got",
        ),
        ({"eos_token_id": "end"}, "eos_token_id must be a whole number"),
        ({"eos_token_id": [1, -2]}, "eos_token_id must be a whole number"),
    ],
)
def test_a_bad_field_is_refused_by_its_name_in_the_file(changes, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_json({**GPT2_JSON, **changes})


def test_what_is_not_a_configuration_is_refused():
    with pytest.raises(ConfigError, match="expected a JSON object"):
        Config.from_json([])
    with pytest.raises(ConfigError, match='"model_type" is missing'):
        Config.from_json({})


def test_numpy_scalars_become_numbers_of_python():
    config = Config(
        vocab_size=np.uint16(50257),
        n_layer=np.int64(12),
        n_inner=np.int32(3072),
        activation_function=np.str_("relu"),
        layer_norm_epsilon=np.float64(1e-5),
        tied=np.True_,
        attn_pdrop=np.float32(0.5),
        bos_token_id=np.int64(5),
        eos_token_id=[np.int64(3), np.int8(4)],
    )
    assert config == Config(
        activation_function="relu", attn_pdrop=0.5, bos_token_id=5, eos_token_id=(3, 4)
    )
    assert not any(isinstance(value, np.generic) for value in vars(config).values())
    assert [type(token) for token in config.eos_token_ids] == [int, int]
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    "value", [np.float64(12), np.bool_(True), np.array(12), np.int64(-1), np.str_("12")]
)
def test_what_is_not_a_number_of_layers_is_refused(value):
    with pytest.raises(ConfigError, match="n_layer must be a whole number from 0 to 1000, got"):
        Config(n_layer=value)


def test_head_names_the_switch():
    assert Config().with_head("untied") == Config(tied=False)
    assert Config(tied=False).with_head("tied").head == "tied"
    with pytest.raises(ArgumentError, match='head must be "tied" or "untied", got \'both\''):
        Config().with_head("both")
