"""from_state_dict: models from the state dicts of other programs, and what it refuses.

test_names.py has each layout of the table of names. A kind of parameter has an N in its name if
each layer has one: "h.N.ln_1.bias" is that of layer N.
"""

import json
import re
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from tiedgpt import from_state_dict
from tiedgpt.checkpoints.model_names import MODELS
from tiedgpt.checkpoints.state_dicts import config_of_shapes
from tiedgpt.errors import ArgumentError, ConfigError, TiedGPTError, TiedGPTWarning
from tiedgpt.gpt2.config import QUANTISED
from tiedgpt.gpt2.parameters import parameter_shapes
from tiedgpt.testing import TINY, random_model

LLM_C_PARAMETERS = {
    "wte.weight": "wte",
    "wpe.weight": "wpe",
    "h.N.ln_1.weight": "ln1w",
    "h.N.ln_1.bias": "ln1b",
    "h.N.attn.c_attn.weight": "qkvw",
    "h.N.attn.c_attn.bias": "qkvb",
    "h.N.attn.c_proj.weight": "attprojw",
    "h.N.attn.c_proj.bias": "attprojb",
    "h.N.ln_2.weight": "ln2w",
    "h.N.ln_2.bias": "ln2b",
    "h.N.mlp.c_fc.weight": "fcw",
    "h.N.mlp.c_fc.bias": "fcb",
    "h.N.mlp.c_proj.weight": "fcprojw",
    "h.N.mlp.c_proj.bias": "fcprojb",
    "ln_f.weight": "lnfw",
    "ln_f.bias": "lnfb",
}


def is_in_each_layer(kind):
    return "N" in kind


def layers_of(arrays, kind):
    """The arrays of a kind, one for each layer, or one if it is in no layer."""
    if is_in_each_layer(kind):
        return [arrays[kind.replace("N", str(layer))] for layer in range(TINY.n_layer)]
    return [arrays[kind]]


def prefixed(model, prefix):
    """The parameters under names with this prefix, and lm_head.weight, which has none."""
    state = {"lm_head.weight": model.W_U.T}
    for name, array in model.parameters.items():
        if name != "lm_head.weight":
            state[prefix + name] = array
    return state


def transposed(state):
    """The matrices of the blocks transposed, as in nanoGPT and llm.c."""
    arrays = {}
    for name, array in state.items():
        is_of_a_block = "h." in name  # the names may have a prefix
        if is_of_a_block and array.ndim == 2:
            arrays[name] = array.T.copy()  # in C order, as these programs have it
        else:
            arrays[name] = array
    return arrays


def transformers_state(model):
    """A state dict of transformers, with a causal mask, which older versions have in it."""
    mask = np.zeros((1, 1, 3, 3), bool)
    return prefixed(model, "transformer.") | {"transformer.h.0.attn.bias": mask}


def nano_gpt_state(model):
    """A state dict of nanoGPT, with the prefix `_orig_mod.` that torch.compile adds."""
    return transposed(prefixed(model, "_orig_mod.transformer."))


def llm_c_state(model):
    """The parameters of llm.c: those of all blocks in one array with a first axis of layers."""
    arrays = transposed(model.parameters)
    state = {}
    for kind, name in LLM_C_PARAMETERS.items():
        if is_in_each_layer(kind):
            state[name] = np.stack(layers_of(arrays, kind))
        else:
            state[name] = arrays[kind]
    return state


def assert_read_as(model, read):
    """The model that was read, `read`, is `model`, which has the sizes of TINY."""
    assert read.config.tied == model.config.tied
    assert read.config.n_layer == 3
    assert read.config.n_inner == 100
    assert list(read.parameters) == list(model.parameters)
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(read.parameters[name], array)
        assert read.parameters[name].flags.c_contiguous, name


# What no array of a state dict tells. All fields are given, because from_state_dict warns of those
# that it assumes.
IN_THE_ARRAYS = ("vocab_size", "n_ctx", "n_embd", "n_layer", "n_inner", "tied")
NOT_IN_THE_ARRAYS = {
    "n_head": TINY.n_head,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}
STATES = [
    pytest.param(lambda model: model.parameters, id="tiedgpt"),
    pytest.param(transformers_state, id="transformers"),
    pytest.param(nano_gpt_state, id="nanoGPT"),
]


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("state_of", STATES)
def test_from_state_dict(state_of, head):
    model = random_model(TINY.with_head(head))
    assert_read_as(model, from_state_dict(state_of(model), **NOT_IN_THE_ARRAYS))


def test_a_state_dict_of_nano_gpt_needs_its_activation_function():
    """Models of nanoGPT have the exact gelu, but no array tells that."""
    state = nano_gpt_state(random_model())
    with pytest.warns(TiedGPTWarning) as caught:
        model = from_state_dict(state, n_head=TINY.n_head)
    assert model.config.activation_function == "gelu_new"
    assert [str(warning.message) for warning in caught] == [
        "a state dict does not tell these fields, which are assumed: "
        "activation_function='gelu_new', layer_norm_epsilon=1e-05, scale_attn_weights=True, "
        "scale_attn_by_inverse_layer_idx=False; pass config, such as the path of a config.json, or "
        "the fields. This one has the layout of nanoGPT, whose models have the exact gelu: pass "
        'activation_function="gelu", or "gelu_new" if this model has GPT-2\'s'
    ]
    with pytest.warns(TiedGPTWarning) as caught:  # the one that is given is not spoken of
        from_state_dict(state, n_head=TINY.n_head, activation_function="gelu")
    [message] = [str(warning.message) for warning in caught]
    assert message.endswith("such as the path of a config.json, or the fields")
    assert "activation_function" not in message


def test_a_state_dict_with_its_activation_function():
    state = nano_gpt_state(random_model())
    fields = NOT_IN_THE_ARRAYS | {"activation_function": "gelu"}
    assert from_state_dict(state, **fields).config.activation_function == "gelu"


def test_one_warning_names_the_fields_that_are_assumed():
    """Those that are given are not named, and what no field can change is no assumption."""
    with pytest.warns(TiedGPTWarning) as caught:
        model = from_state_dict(
            random_model().parameters, n_head=TINY.n_head, layer_norm_epsilon=1e-6
        )
    assert model.config.layer_norm_epsilon == 1e-6
    [message] = [str(warning.message) for warning in caught]
    assert message == (
        "a state dict does not tell these fields, which are assumed: "
        "activation_function='gelu_new', scale_attn_weights=True, "
        "scale_attn_by_inverse_layer_idx=False; pass config, such as the path of a config.json, or "
        "the fields"
    )
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    "other",
    [
        "v_head.summary.weight",
        "module.score.weight",
        "classifier.bias",
        "multiple_choice_head.summary.weight",
        "qa_outputs.weight",
    ],
)
def test_another_head_of_a_state_dict_is_left_out_with_a_warning(other):
    model = random_model()
    state = model.parameters | {other: np.ones((1, TINY.n_embd))}
    with pytest.warns(TiedGPTWarning, match=other) as caught:
        read = from_state_dict(state, config=TINY)
    assert_read_as(model, read)
    # The warning names the line that called from_state_dict, and there is only one.
    assert [warning.filename for warning in caught] == [__file__]


def test_each_of_several_other_heads_is_named():
    model = random_model()
    names = ["v_head.summary.weight", "v_head.summary.bias"]
    state = model.parameters | {name: np.ones((1, TINY.n_embd)) for name in names}
    with pytest.warns(TiedGPTWarning) as caught:
        from_state_dict(state, config=TINY)
    assert [str(warning.message) for warning in caught] == [
        "the state dict: v_head.summary.weight, v_head.summary.bias: of another head than the one "
        "that predicts tokens, so it is not used"
    ]


UNUSUAL = replace(
    TINY,
    activation_function="relu",
    layer_norm_epsilon=0.1,
    scale_attn_by_inverse_layer_idx=True,
    eos_token_id=7,
)


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("kind", ["Config", "dict", "str", "Path"])
@pytest.mark.parametrize("state_of", STATES)
def test_a_state_dict_with_its_config(tmp_path, state_of, kind, head):
    expected = UNUSUAL.with_head(head)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(expected.to_json()))
    config = {"Config": expected, "dict": expected.to_json(), "str": str(path), "Path": path}[kind]
    model = random_model(expected)
    read = from_state_dict(state_of(model), config=config)
    assert_read_as(model, read)
    assert read.config == model.config


def test_a_config_may_be_any_mapping():
    config = MappingProxyType(UNUSUAL.to_json())
    assert from_state_dict(random_model().parameters, config=config).config == UNUSUAL


@pytest.mark.parametrize("state_of", STATES)
def test_a_config_that_says_tied_beside_another_head(state_of):
    """The head of the arrays is used, with a warning, as load_model does."""
    model = random_model(UNUSUAL.with_head("untied"))
    with pytest.warns(TiedGPTWarning) as caught:
        read = from_state_dict(state_of(model), config=UNUSUAL)
    assert_read_as(model, read)
    assert str(caught[0].message) == (
        "config says tied, but the state dict has another lm_head.weight, which is used: untied, "
        "as transformers 5 reads it; for tied, leave lm_head.weight out; for untied without this "
        "warning, say so in config (tie_word_embeddings false)"
    )
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("state_of", STATES)
def test_a_config_that_says_untied_without_a_head(state_of):
    state = state_of(random_model(UNUSUAL))
    state.pop("lm_head.weight", None)
    with pytest.raises(ArgumentError) as caught:
        from_state_dict(state, config=UNUSUAL.with_head("untied"))
    assert str(caught.value) == (
        "config says untied (tie_word_embeddings false), but the state dict has no lm_head.weight; "
        "say tied in config, and call the model's untie() to start from a copy"
    )


def test_a_config_that_says_untied_beside_a_copy_of_wte():
    """load_model reads it as untied, too."""
    model = random_model(UNUSUAL).untie("copy")
    read = from_state_dict(transformers_state(model), config=model.config)
    assert_read_as(model, read)


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("given", ["fields", "config"])
def test_a_tied_matrix_may_be_stored_under_lm_head_alone(prefix, given):
    """safetensors' save_model stores one of two names of a matrix."""
    model = random_model()
    state = {f"{prefix}{name}": array for name, array in model.parameters.items()}
    state[f"{prefix}lm_head.weight"] = state.pop(f"{prefix}wte.weight")
    known = {"config": TINY} if given == "config" else NOT_IN_THE_ARRAYS
    assert_read_as(model, from_state_dict(state, **known))
    with pytest.raises(ArgumentError, match=r"no matrix wte\.weight"):
        from_state_dict(state, config=TINY.with_head("untied"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (7, "^config must be a Config, a dict or a path, got 7$"),
        ("a\0b", r"^'a\\x00b' is not the name of a file$"),
        ({"model_type": "bert"}, "model_type"),
        ("no-such-file.json", r"no-such-file\.json"),
        (replace(TINY, n_layer=1), "GPT-2's of 1 layer"),
        (replace(TINY, n_ctx=5), r"wpe\.weight"),
    ],
)
def test_a_config_that_is_none_or_another(config, message):
    with pytest.raises(TiedGPTError, match=message):
        from_state_dict(random_model().parameters, config=config)


def test_a_config_that_is_wrong_is_named_with_its_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_layer": -1}), encoding="utf-8")
    for config in (path, str(path)):
        with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: n_layer must be"):
            from_state_dict(random_model().parameters, config=config)


@pytest.mark.parametrize("others", [{"n_head": 3}, {"n_head": 0}, {"layer_norm_epsilon": 1e-5}])
def test_a_config_and_other_fields(others):
    with pytest.raises(ArgumentError, match=r"^pass config, or n_head and other fields, not both$"):
        from_state_dict(random_model().parameters, config=TINY, **others)


@pytest.mark.parametrize(
    "name", ["activation", "vocab_size", "n_ctx", "n_embd", "n_layer", "n_inner", "tied"]
)
def test_a_field_that_cannot_be_given(name):
    with pytest.raises(ArgumentError, match=f"^'{name}' is not a field") as caught:
        from_state_dict(random_model().parameters, n_head=3, layer_norm_epsilon=0.1, **{name: 3})
    known = set(vars(TINY)) - {*NOT_IN_THE_ARRAYS, *IN_THE_ARRAYS}
    message = str(caught.value)
    assert message.startswith(f"'{name}' is not a field that can be given; expected one of activ")
    assert known < set(message.partition("one of ")[2].split(", "))
    assert not set(IN_THE_ARRAYS) & set(message.partition("one of ")[2].split(", "))


def test_from_a_state_dict_of_llm_c():
    """Models of llm.c are always tied."""
    model = random_model()
    assert_read_as(model, from_state_dict(llm_c_state(model), **NOT_IN_THE_ARRAYS))


@pytest.mark.parametrize("state_of", STATES)
def test_float64_stays_float64(state_of):
    state = state_of(random_model())
    wide = {name: array.astype(np.float64) for name, array in state.items()}
    model = from_state_dict(wide, **NOT_IN_THE_ARRAYS)
    assert model.dtype == np.float64


def test_arrays_in_the_byte_order_of_other_machines():
    model = random_model()
    state = {name: x.astype(x.dtype.newbyteorder(">")) for name, x in model.parameters.items()}
    read = from_state_dict(state, config=model.config)
    np.testing.assert_array_equal(read([1, 2]), model([1, 2]))


def test_float64_of_other_machines_stays_float64():
    """A third is another number in float32."""
    parameters = random_model().parameters
    state = {name: np.full(x.shape, 1 / 3, dtype=">f8") for name, x in parameters.items()}
    read = from_state_dict(state, config=TINY)
    for array in read.parameters.values():
        assert array.dtype == np.float64
        assert (array == 1 / 3).all()


def test_half_precision_and_whole_numbers_in_lists_become_float32():
    model = random_model()
    half = {name: x.astype(np.float16) for name, x in model.parameters.items()}
    half["ln_f.bias"] = [0, -7] * 24
    read = from_state_dict(half, config=TINY)
    assert {array.dtype.name for array in read.parameters.values()} == {"float32"}
    np.testing.assert_array_equal(read.W_E, half["wte.weight"])
    np.testing.assert_array_equal(read.parameters["ln_f.bias"], [0, -7] * 24)


@pytest.mark.parametrize("state_of", STATES)
def test_bfloat16_becomes_float32(state_of):
    torch = pytest.importorskip("torch")
    state = state_of(random_model())
    half = {name: torch.from_numpy(array.copy()).bfloat16() for name, array in state.items()}
    model = from_state_dict(half, **NOT_IN_THE_ARRAYS)
    assert model.dtype == np.float32


@pytest.mark.parametrize("state_of", STATES)
def test_parameters_of_torch_in_float64_stay_so(state_of):
    """They have gradients, so torch makes an array of them only after detach()."""
    torch = pytest.importorskip("torch")
    state = {}
    for name, array in state_of(random_model()).items():
        state[name] = torch.nn.Parameter(torch.from_numpy(array.astype(np.float64)))
    assert from_state_dict(state, **NOT_IN_THE_ARRAYS).dtype == np.float64


@pytest.mark.parametrize("kind", ["meta", "sparse"])
def test_a_tensor_that_has_no_array(kind):
    torch = pytest.importorskip("torch")
    state = {name: torch.from_numpy(x.copy()) for name, x in random_model().parameters.items()}
    wte = state["wte.weight"]
    state["wte.weight"] = wte.to("meta") if kind == "meta" else wte.to_sparse()
    with pytest.raises(ArgumentError, match=r"'wte.weight' must be .* tensor"):
        from_state_dict(state, **NOT_IN_THE_ARRAYS)


def test_a_model_without_biases_gets_biases_of_0():
    state = {}
    for name, array in random_model().parameters.items():
        if not name.endswith(".bias"):
            state[name] = array
    model = from_state_dict(state, **NOT_IN_THE_ARRAYS)
    for name in parameter_shapes(model.config):
        if name.endswith(".bias"):
            assert not model.parameters[name].any()


@pytest.mark.parametrize("name", MODELS)
def test_n_head_of_the_sizes_of_openais_models_is_known(name):
    """From arrays of these shapes, which take no memory."""
    expected = MODELS[name].config
    shapes = parameter_shapes(expected)
    arrays = {each: np.broadcast_to(np.float32(0), shape) for each, shape in shapes.items()}
    assert config_of_shapes(arrays, None, {}) == expected
    assert config_of_shapes(arrays, 2, {}).n_head == 2
    arrays = {each: array for each, array in arrays.items() if not each.startswith("h.3.")}
    layers = expected.n_layer - 1
    message = f"^n_head .* shapes of {layers} layers of width {expected.n_embd}: pass n_head=$"
    with pytest.raises(ArgumentError, match=message):
        config_of_shapes(arrays, None, {})


@pytest.mark.parametrize("n_head", [0, 5])
def test_an_n_head_that_cannot_be(n_head):
    with pytest.raises(ConfigError, match=f"n_head .*{n_head}"):
        from_state_dict(random_model().parameters, **NOT_IN_THE_ARRAYS | {"n_head": n_head})


def test_a_state_dict_without_one_of_the_two_matrices():
    parameters = random_model().parameters
    for name in ("wte.weight", "wpe.weight"):
        message = f"^this is not the state dict of a GPT-2: it has no matrix {re.escape(name)}$"
        without = {each: array for each, array in parameters.items() if each != name}
        for state in (without, parameters | {name: np.ones(48)}):
            with pytest.raises(ArgumentError, match=message):
                from_state_dict(state, **NOT_IN_THE_ARRAYS)


@pytest.mark.parametrize("wide", ["wte.weight", "wpe.weight"])
def test_the_matrix_of_tokens_says_which_precision_a_model_has(wide):
    parameters = random_model().parameters
    state = parameters | {wide: parameters[wide].astype(np.float64)}
    model = from_state_dict(state, config=TINY)
    expected = np.float64 if wide == "wte.weight" else np.float32
    assert {array.dtype.type for array in model.parameters.values()} == {expected}


def test_n_head_has_to_be_given():
    message = "n_head cannot be read from the shapes of 3 layers of width 48: pass n_head="
    with pytest.raises(ArgumentError, match=message):
        from_state_dict(random_model().parameters)


def test_a_state_dict_without_an_embedding():
    message = r"this is not the state dict of a GPT-2: it has no matrix wte\.weight"
    with pytest.raises(ArgumentError, match=message):
        from_state_dict({"ln_f.weight": np.ones(3)})


def test_two_names_of_one_parameter():
    """With the same values they are one parameter, with others an error: neither counts more."""
    model = random_model()
    state = {**model.parameters, "transformer.wte.weight": model.W_E.copy()}
    assert_read_as(model, from_state_dict(state, config=model.config))
    with_nan = np.full_like(model.parameters["wpe.weight"], np.nan)
    twice = {**state, "wpe.weight": with_nan, "transformer.wpe.weight": with_nan.copy()}
    from_state_dict(twice, config=model.config)
    state["transformer.wte.weight"] = model.W_E + 1
    with pytest.raises(ArgumentError) as caught:
        from_state_dict(state, config=model.config)
    assert str(caught.value) == (
        "'wte.weight' and 'transformer.wte.weight' are both wte.weight, and they differ: give one "
        "of them"
    )


NOT_FLOATS = {  # a kind of value -> one, and what the error calls it
    "int8": (np.ones((211, 48), np.int8), "int8"),
    "bool": (np.ones((211, 48), bool), "bool"),
    "complex": (np.ones((211, 48), complex), "complex128"),
    "a number": (np.float32(1), "float32 ()"),
    "None": (None, "object ()"),
}


@pytest.mark.parametrize(("value", "shown"), NOT_FLOATS.values(), ids=NOT_FLOATS)
@pytest.mark.parametrize("name", ["wte.weight", "module.h.1.mlp.c_fc.weight"])
def test_a_value_that_is_no_array_of_floats(name, value, shown):
    with pytest.raises(ArgumentError) as caught:
        from_state_dict({**random_model().parameters, name: value}, config=TINY)
    assert str(caught.value) == f"'{name}' must be an array of floats, got {shown}"


@pytest.mark.parametrize("name", ["wte.weight", "h.1.mlp.c_fc.weight"])
def test_a_vector_in_place_of_a_matrix(name):
    state = {**random_model().parameters, name: np.ones(48)}
    with pytest.raises(ArgumentError, match=re.escape(name)):
        from_state_dict(state, config=TINY)


@pytest.mark.parametrize("name", ["wte.weight", "h.1.mlp.c_fc.weight"])
def test_an_error_of_numpy_is_shown(name):
    """The rows of the value have unequal lengths."""
    value = [[1.0], [1.0, 2.0]]
    with pytest.raises(ValueError, match="sequence") as of_numpy:
        np.asarray(value)
    beginning = str(of_numpy.value)[:100]  # short_repr cuts a long text
    with pytest.raises(ArgumentError) as caught:
        from_state_dict({**random_model().parameters, name: value}, config=TINY)
    assert str(caught.value).startswith(f"'{name}' must be an array of floats: '{beginning}")


def test_a_quantised_tensor_of_torch():
    torch = pytest.importorskip("torch")
    state = {**random_model().parameters, "wte.weight": torch.ones(211, 48, dtype=torch.int8)}
    with pytest.raises(ArgumentError, match=r"'wte\.weight' must be .* floats, got torch\.int8"):
        from_state_dict(state, config=TINY)


def test_a_tensor_of_torch_with_a_negative_or_conjugate_bit():
    """torch's `float` would drop the imaginary part."""
    torch = pytest.importorskip("torch")
    numbers = torch.complex(torch.ones(211, 48), torch.ones(211, 48)).conj()
    for wrong in (numbers, numbers.imag):
        with pytest.raises(ArgumentError, match=r"'wte\.weight' must be an array of floats"):
            from_state_dict({**random_model().parameters, "wte.weight": wrong}, config=TINY)


def test_weights_as_lists():
    state = {name: array.tolist() for name, array in random_model().parameters.items()}
    assert_read_as(random_model(), from_state_dict(state, config=TINY))


@pytest.mark.parametrize("state", [None, [np.ones(3)], np.ones(3)], ids=["None", "list", "array"])
def test_a_state_dict_that_is_no_dict(state):
    with pytest.raises(ArgumentError) as caught:
        from_state_dict(state)
    assert str(caught.value) == (
        f"a state dict maps names to arrays, got {state!r}; a torch module's is module.state_dict()"
    )


def test_a_state_dict_of_quantised_weights():
    state = random_model().parameters | {"h.1.attn.c_attn.qweight": np.ones((2, 2), np.int32)}
    with pytest.raises(ArgumentError, match=f"^'h.1.attn.c_attn.qweight': {QUANTISED}$"):
        from_state_dict(state, config=TINY)


def test_a_state_dict_inside_of_a_checkpoint_is_named():
    state = {"model_state_dict": random_model().parameters, "epoch": 3}
    with pytest.raises(ArgumentError, match=r"^'model_state_dict' is a dict: .* the model's$"):
        from_state_dict(state, config=TINY)


def test_an_unknown_parameter():
    with pytest.raises(ArgumentError, match="'conv1' is no parameter of a GPT-2"):
        from_state_dict({"conv1": np.ones(3)})
    with pytest.raises(
        ArgumentError, match=r"'wpe\.weigth' is no .* the nearest are wpe\.weight, "
    ):
        from_state_dict({"wpe.weigth": np.ones(3)})
    with pytest.raises(ArgumentError, match=r"'ln_1\.weight' is no .* are .*h\.N\.ln_1\.weight"):
        from_state_dict({"ln_1.weight": np.ones(3)})  # of which layer is not known
    nearest = "h.10.ln_1.weight, h.10.ln_2.weight, "  # of the same layer
    with pytest.raises(ArgumentError, match=f"'module.h.10.ln_1.wight' is no .* are {nearest}"):
        from_state_dict({"module.h.10.ln_1.wight": np.ones(3)})


def test_a_masked_array_is_refused():
    state = dict(random_model().parameters)
    values = state["ln_f.bias"]
    state["ln_f.bias"] = np.ma.masked_array(values, mask=[True] + [False] * (values.size - 1))
    with pytest.raises(ArgumentError, match=r"^'ln_f\.bias' is a masked array: .* without a mask$"):
        from_state_dict(state, config=TINY)
    state["ln_f.bias"] = np.ma.masked_array(values)  # which masks nothing
    np.testing.assert_array_equal(
        from_state_dict(state, config=TINY).parameters["ln_f.bias"], values
    )
