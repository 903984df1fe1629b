"""Config: config.json is read and written, and everything but GPT-2 is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.checks import deeply_nested_list

from tiedgpt import Config
from tiedgpt.errors import ConfigError

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


def test_gpt2s_own_file_is_the_default():
    """gpt2's config.json names neither n_inner nor tie_word_embeddings: 4 D and tied."""
    config = Config.from_json(GPT2_JSON)
    assert config == Config()
    assert config.n_inner == 3072
    assert config.tied
    assert config.head_width == 64


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"tie_word_embeddings": False}, id="untied"),
        pytest.param({"n_inner": 1000, "activation_function": "relu"}, id="mlp"),
        pytest.param(
            {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}, id="scores"
        ),
        pytest.param({"layer_norm_epsilon": 1e-3, "n_positions": 77}, id="epsilon-and-context"),
        pytest.param({"eos_token_id": [3, 4], "bos_token_id": None}, id="special-tokens"),
        pytest.param({"n_layer": 0}, id="no-layers"),
    ],
)
def test_every_honoured_field_survives_a_round_trip(changes):
    config = Config.from_json({**GPT2_JSON, **changes})
    assert config != Config()
    written = json.loads(json.dumps(config.to_json()))
    assert {name: written[name] for name in changes} == changes
    assert Config.from_json(written) == config


def test_transformers_other_names_for_the_same_fields():
    """GPT2Config takes hidden_size for n_embd, and so on."""
    config = Config.from_json(
        {
            "model_type": "gpt2",
            "hidden_size": 48,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "max_position_embeddings": 64,
        }
    )
    assert config.n_embd == 48
    assert config.n_head == 4
    assert config.n_layer == 3
    assert config.n_ctx == 64


def test_n_positions_is_the_context_and_not_n_ctx_which_old_files_have_too():
    assert GPT2_JSON["n_ctx"] == 1024
    assert Config.from_json({**GPT2_JSON, "n_positions": 64}).n_ctx == 64


def test_the_context_is_written_by_both_of_its_names():
    """llama.cpp and mlx-lm read n_ctx alone, transformers n_positions. An old n_ctx is not kept."""
    written = Config.from_json({**GPT2_JSON, "n_positions": 64}).to_json()
    assert (written["n_positions"], written["n_ctx"]) == (64, 64)


def test_fields_that_are_not_used_are_kept():
    written = Config.from_json({**GPT2_JSON, "attn_pdrop": 0.3, "pad_token_id": 7}).to_json()
    assert written["attn_pdrop"] == 0.3
    assert written["pad_token_id"] == 7
    assert written["task_specific_params"] == GPT2_JSON["task_specific_params"]


def test_fields_about_the_files_beside_it_are_not_kept():
    """When the model is saved again, its dtype and the program that writes it may be different."""
    about_the_files = {
        "dtype": "float16",
        "torch_dtype": "float16",
        "transformers_version": "4.0.0",
        "_name_or_path": "/somewhere/else",
    }
    written = Config.from_json({**GPT2_JSON, **about_the_files}).to_json()
    assert not about_the_files.keys() & written.keys()


NEUTRAL = [
    {"model_type": "gpt2"},
    {"add_cross_attention": False},
    {"is_encoder_decoder": False},
    {"pruned_heads": None},
    {"pruned_heads": {}},
    {"quantization_config": None},
    {"hidden_size": GPT2_JSON["n_embd"]},
    {"reorder_and_upcast_attn": True},  # it changes the rounding of float16 alone
]


@pytest.mark.parametrize("fields", NEUTRAL, ids=str)
def test_a_field_that_says_what_every_gpt2_does_changes_nothing(fields):
    read = Config.from_json({**GPT2_JSON, **fields})
    assert replace(read, others={}) == replace(Config.from_json(GPT2_JSON), others={})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"num_attention_heads": 4},
            "num_attention_heads is 4 but n_head, its other name, is 12",
            id="two-names-that-differ",
        ),
        pytest.param(
            {"num_hidden_layers": 4},
            "num_hidden_layers is 4 but n_layer, its other name, is 12",
            id="the-last-two-names",
        ),
        pytest.param({"model_type": ""}, "model_type is ''.*expected 'gpt2'", id="no-kind"),
        pytest.param({"add_cross_attention": None}, "add_cross_attention is None", id="null"),
        pytest.param(
            {"activation_function": ["relu"]},
            r"activation_function \['relu'\] is not supported",
            id="list-of-activation-functions",
        ),
        pytest.param(
            {"n_layer": -1},
            "n_layer must be a whole number from 0 to 1000, got -1",
            id="below-0-layers",
        ),
        pytest.param(
            {"n_layer": deeply_nested_list()},
            "n_layer must be a whole number .*, got a list too long to show$",
            id="layers-too-long-to-show",
        ),
        pytest.param(
            {"n_embd": 768.0}, r"n_embd must be a whole number .*got 768\.0", id="float-width"
        ),
        pytest.param({"n_embd": None}, "n_embd must be a whole number .*got None", id="no-width"),
        pytest.param({"vocab_size": 0}, "vocab_size must be a whole number from 1", id="no-tokens"),
        pytest.param(
            {"vocab_size": 10**5000},
            "vocab_size must be a whole number .*got a int too long to show",
            id="vocabulary-too-long-to-show",
        ),
        pytest.param(
            {"n_positions": "1024"},
            r"n_ctx \(n_positions in config\.json\) must be a whole number .*got",
            id="context-as-text",
        ),
        pytest.param(
            {"n_inner": 0}, "n_inner must be a whole number from 1", id="no-width-of-the-mlp"
        ),
        pytest.param(
            {"layer_norm_epsilon": "tiny"},
            "layer_norm_epsilon must be a number of at least 0, got 'tiny'",
            id="epsilon-as-text",
        ),
        pytest.param(
            {"embd_pdrop": 1},
            "embd_pdrop must be a number of at least 0 and below 1, got 1",
            id="embd-pdrop-1",
        ),
        pytest.param(
            {"resid_pdrop": 1},
            "resid_pdrop must be a number of at least 0 and below 1, got 1",
            id="resid-pdrop-1",
        ),
        pytest.param(
            {"attn_pdrop": 1},
            "attn_pdrop must be a number of at least 0 and below 1, got 1",
            id="attn-pdrop-1",
        ),
        pytest.param(
            {"eos_token_id": "end"}, "eos_token_id must be a whole number", id="end-of-text-as-text"
        ),
        pytest.param(
            {"eos_token_id": [1, -2]},
            "eos_token_id must be a whole number",
            id="end-of-text-below-0",
        ),
    ],
)
def test_a_bad_field_is_refused_by_its_name_in_the_file(changes, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_json({**GPT2_JSON, **changes})


LIMITS = [
    {"n_layer": 0},
    {"n_layer": 1000},
    {"vocab_size": 1},
    {"vocab_size": 2**31 - 1},
    {"n_ctx": 2**31 - 1},
    {"n_inner": 1},
    {"eos_token_id": 2**31 - 1},
    {"bos_token_id": 0},
    {"layer_norm_epsilon": 0},
    {"layer_norm_epsilon": 100.0},
    {"initializer_range": 0},
    {"initializer_range": 1e37},
    {"embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0},
]


def test_the_least_and_the_largest_values_are_accepted():
    for fields in LIMITS:
        config = Config(**fields)
        assert {name: getattr(config, name) for name in fields} == fields


def test_a_file_of_2019_without_a_model_type_has_the_sizes_of_a_gpt2():
    fields = {"vocab_size": 7, "n_positions": 5, "n_embd": 6, "n_layer": 2, "n_head": 3}
    config = Config.from_json(fields)
    assert config == Config(vocab_size=7, n_ctx=5, n_embd=6, n_layer=2, n_head=3)
    assert config.to_json()["model_type"] == "gpt2"
    for name in fields:
        others = {key: value for key, value in fields.items() if key != name}
        with pytest.raises(ConfigError, match='"model_type" is missing'):
            Config.from_json(others)


def test_an_end_of_minus_1_is_none():
    config = Config.from_json({"model_type": "gpt2", "eos_token_id": -1, "bos_token_id": -1})
    assert config.eos_token_ids == ()
    assert config.bos_token_id is None


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
        vocab_size=50257,
        n_layer=12,
        n_inner=3072,
        activation_function="relu",
        layer_norm_epsilon=1e-5,
        tied=True,
        attn_pdrop=0.5,
        bos_token_id=5,
        eos_token_id=(3, 4),
    )
    assert not any(isinstance(value, np.generic) for value in vars(config).values())
    assert [type(token) for token in config.eos_token_ids] == [int, int]
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_token_0_can_end_a_text():
    assert Config(eos_token_id=0).eos_token_ids == (0,)
    assert Config(eos_token_id=None).eos_token_ids == ()


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(np.float64(12), id="float64"),
        pytest.param(np.bool_(True), id="bool"),
        pytest.param(np.array(12), id="array"),
        pytest.param(np.int64(-1), id="below-0"),
        pytest.param(np.str_("12"), id="text"),
    ],
)
def test_what_is_not_a_number_of_layers_is_refused(value):
    with pytest.raises(ConfigError, match="n_layer must be a whole number from 0 to 1000, got"):
        Config(n_layer=value)


def test_with_head_sets_whether_the_model_is_tied():
    assert Config().with_head("untied") == Config(tied=False)
    assert Config(tied=False).with_head("tied") == Config()
    assert Config().head == "tied"
    assert Config(tied=False).head == "untied"
