"""The names and layouts of other GPT-2s' activations.

A kind of activation has an N in its name if each layer has one: "attn.N.q" is that of layer N, and
"logits" is in no layer.
"""

import numpy as np
import pytest
from support.checks import refuses
from support.comparing import MODELS, some_ids, tape_of

from tiedgpt import compare
from tiedgpt.comparison.conventions import known_name, our_name, shape_error, translate
from tiedgpt.errors import ArgumentError, short_repr
from tiedgpt.testing import TINY, random_model

# Our kind -> its name in the other program. In TRANSFORMERS, a module's name stands for its output,
# with ":in" for its input, and with ":1" for its second output.
TRANSFORMERS = {
    "embed": "drop",
    "resid_pre.N": "h.N:in",
    "attn.N.in": "h.N.ln_1",
    "attn.N.qkv": "h.N.attn.c_attn",
    "attn.N.pattern": "h.N.attn:1",
    "attn.N.heads": "h.N.attn.c_proj:in",
    "attn.N.out": "h.N.attn",
    "mlp.N.in": "h.N.ln_2",
    "mlp.N.pre": "h.N.mlp.c_fc",
    "mlp.N.post": "h.N.mlp.act",
    "mlp.N.out": "h.N.mlp",
    "resid_post.N": "h.N",
    "final": "ln_f",
    "logits": "lm_head",
}
TRANSFORMER_LENS = {
    "resid_pre.N": "blocks.N.hook_resid_pre",
    "attn.N.q": "blocks.N.attn.hook_q",
    "attn.N.k": "blocks.N.attn.hook_k",
    "attn.N.v": "blocks.N.attn.hook_v",
    "attn.N.pattern": "blocks.N.attn.hook_pattern",
    "attn.N.heads": "blocks.N.attn.hook_z",
    "resid_mid.N": "blocks.N.hook_resid_mid",
    "mlp.N.in": "blocks.N.ln2.hook_out",
    "mlp.N.post": "blocks.N.mlp.out.hook_in",
    "final": "ln_final",
    "logits": "unembed",
}
LLM_C = {
    "embed": "encoded",
    "attn.N.in": "ln1",
    "attn.N.qkv": "qkv",
    "attn.N.pattern": "att",
    "attn.N.heads": "atty",
    "attn.N.out": "attproj",
    "resid_mid.N": "residual2",
    "mlp.N.in": "ln2",
    "mlp.N.pre": "fch",
    "mlp.N.post": "fch_gelu",
    "mlp.N.out": "fcproj",
    "resid_post.N": "residual3",
    "final": "lnf",
    "logits": "logits",
}
# More names of the same activations: inputs of modules, modules of other versions of a program.
MORE_NAMES = {
    "attn.N.in": [
        "h.N.attn:in",
        "h.N.attn.c_attn:in",
        "blocks.N.ln1",
        "blocks.N.ln1.hook_out",
    ],
    "attn.N.q": ["blocks.N.attn.q", "blocks.N.attn.q.hook_out"],
    "attn.N.k": ["blocks.N.attn.k", "blocks.N.attn.k.hook_out"],
    "attn.N.v": ["blocks.N.attn.v", "blocks.N.attn.v.hook_out"],
    "attn.N.pattern": ["h.N.attn.attn_dropout:in"],
    "attn.N.heads": ["blocks.N.attn.o:in", "blocks.N.attn.o.hook_in"],
    "attn.N.out": [
        "h.N.attn.c_proj",
        "blocks.N.attn",
        "blocks.N.attn.hook_out",
        "blocks.N.hook_attn_out",
    ],
    "resid_pre.N": ["blocks.N:in", "blocks.N.hook_in"],
    "resid_mid.N": [],
    "mlp.N.in": ["h.N.mlp:in", "h.N.mlp.c_fc:in", "blocks.N.ln2"],
    "mlp.N.pre": [
        "blocks.N.mlp.c_fc",
        "blocks.N.mlp.in",
        "blocks.N.mlp.in.hook_out",
        "blocks.N.mlp.hook_pre",
    ],
    "mlp.N.post": [
        "h.N.mlp.gelu",
        "h.N.mlp.c_proj:in",
        "blocks.N.mlp.c_proj:in",
        "blocks.N.mlp.out:in",
        "blocks.N.mlp.hook_post",
    ],
    "mlp.N.out": [
        "h.N.mlp.c_proj",
        "h.N.mlp",
        "blocks.N.mlp",
        "blocks.N.mlp.hook_out",
        "blocks.N.hook_mlp_out",
    ],
    "resid_post.N": ["blocks.N", "blocks.N.hook_out", "blocks.N.hook_resid_post"],
    "final": ["lm_head:in", "unembed:in", "unembed.hook_in", "ln_final.hook_out"],
    "logits": ["unembed.hook_out"],
}
# Those of llm.c that are accepted: ours has no such arrays
NOT_COMPARED = [
    *("probs", "losses", "preatt", "ln1_mean", "ln1_rstd", "ln2_mean", "ln2_rstd"),
    *("lnf_mean", "lnf_rstd"),
]
HEADS = ("attn.N.q", "attn.N.k", "attn.N.v", "attn.N.heads")  # [B, H, T, K] on our tape


def is_in_each_layer(kind):
    return "N" in kind


def layers_of(arrays, kind):
    """The arrays of a kind, one for each layer, or one if it is in no layer."""
    if is_in_each_layer(kind):
        return [arrays[kind.replace("N", str(layer))] for layer in range(TINY.n_layer)]
    return [arrays[kind]]


def joined_heads(array):  # [B, H, T, K] -> [B, T, D]
    B, H, T, K = array.shape
    return array.swapaxes(1, 2).reshape(B, T, H * K)


def heads_last_but_one(array):  # [B, H, T, K] -> [B, T, H, K]
    return array.swapaxes(1, 2)


@pytest.mark.parametrize(
    ("names", "prefix", "heads_of"),
    [
        pytest.param(TRANSFORMERS, "transformer.", joined_heads, id="transformers"),
        pytest.param(
            TRANSFORMER_LENS, "_original_component.", heads_last_but_one, id="transformer-lens"
        ),
    ],
)
def test_names_of_other_programs(names, prefix, heads_of):
    """`heads_of` gives an array of HEADS the shape that the other program has."""
    model = MODELS["tiny"]
    ids = some_ids(model)
    tape = tape_of(model, ids)
    given = {}
    for kind, name in names.items():
        for layer, array in enumerate(layers_of(tape, kind)):
            if kind in HEADS:
                array = heads_of(array)
            given[prefix + name.replace("N", str(layer))] = array
    report = compare(model, given, ids)
    assert report.first is None, str(report)
    assert len(report.rows) == len(given), "all are compared"


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in MORE_NAMES.items() for name in names]
)
def test_each_name_of_an_activation_is_known(kind, name):
    """With any prefix it is one of ours, in our layout."""
    model = MODELS["tiny"]
    tape = tape_of(model, some_ids(model))
    layer = str(TINY.n_layer - 1)
    ours = kind.replace("N", layer)
    given = heads_last_but_one(tape[ours]) if kind in HEADS else tape[ours]
    for prefix in ("", "transformer.", "module.transformer.", "_orig_mod.", "model."):
        translated = translate(prefix + name.replace("N", layer), given, tape, TINY.n_layer)
        assert list(translated) == [ours]
        np.testing.assert_array_equal(translated[ours], tape[ours])


@pytest.mark.parametrize(
    "name", ["h.0.attn.bias", "transformer.h.0.attn.masked_bias", "blocks.0.attn.mask"]
)
def test_a_mask_of_a_state_dict_is_not_compared(name):
    assert translate(name, np.ones((1, 1, 9, 9)), {}, TINY.n_layer) == {}


@pytest.mark.parametrize("name", NOT_COMPARED)
def test_an_array_that_only_llm_c_has_is_accepted(name):
    model = MODELS["tiny"]
    ids = some_ids(model)
    logits = tape_of(model, ids)["logits"]
    report = compare(model, {name: np.ones(3), "logits": logits}, ids)
    assert [row.name for row in report.rows] == ["logits"]


def test_names_of_transformer_lens_that_are_not_compared():
    """Our tape has no parts of the embedding. So the first three arrays may be wrong."""
    model = MODELS["tiny"]
    ids = some_ids(model)
    tape = tape_of(model, ids)
    given = {
        "hook_embed": 2 * tape["embed"],
        "embed.hook_out": 2 * tape["embed"],
        "pos_embed.hook_out": 2 * tape["embed"],
        "blocks.0.hook_resid_pre": tape["resid_pre.0"],
    }
    report = compare(model, given, ids)
    assert report.first is None, str(report)
    assert [row.name for row in report.rows] == ["resid_pre.0"]


def test_names_of_llm_c():
    model = MODELS["tiny"]
    ids = some_ids(model)
    tape = tape_of(model, ids)
    given = {}
    array_count = 0
    for kind, name in LLM_C.items():
        arrays = layers_of(tape, kind)
        array_count += len(arrays)
        if kind in HEADS:
            arrays = [joined_heads(array) for array in arrays]
        if is_in_each_layer(kind):
            given[name] = np.stack(arrays)  # [L, ...]
        else:
            given[name] = arrays[0]
    report = compare(model, given, ids)
    assert report.first is None, str(report)
    assert len(report.rows) == array_count, "all are compared, each layer in a row of its own"


def test_a_tensor_of_torch_with_a_negative_or_conjugate_bit():
    """torch's `float` would drop the imaginary part."""
    torch = pytest.importorskip("torch")
    numbers = torch.complex(torch.ones(2, 211), torch.ones(2, 211)).conj()
    for wrong in (numbers, numbers.imag):
        with pytest.raises(ArgumentError, match="must be an array of floats"):
            compare(random_model(), {"logits": wrong}, [1, 2])


OUR_NAMES = [
    ("h.12.mlp.act", "mlp.12.post"),
    ("transformer.h.10", "resid_post.10"),
    ("h.10:in", "resid_pre.10"),
    ("h.11.attn:1", "attn.11.pattern"),
    ("blocks.10.mlp.out.hook_in", "mlp.10.post"),
    ("blocks.11.hook_resid_post", "resid_post.11"),
    ("attn.10.scores", "attn.10.scores"),
    ("h.10.ln_1.weight", "h.10.ln_1.weight"),
    ("h.10.attn.bias", "-"),
    ("lnf_rstd", "-"),
    ("h.ln_1", ""),
    ("embed.hook_out", ""),
    (12, ""),
]


def test_our_names_in_layers_of_two_digits_and_of_what_is_not_known():
    for name, ours in OUR_NAMES:
        assert our_name(name) == ours


UNKNOWN_NAMES = [
    ("transformer.h.12.mlp.akt", None, "h.12.mlp.act, "),
    ("h.10.mlp.c_fc.wieght", None, "h.10.mlp.c_fc.weight, "),
    ("ln_g", None, "ln_f, "),
    ("module.transformer.ln_g", None, "ln_f, lnf, "),
    ("mlp.past", None, "mlp.N.post, "),
    ("my_hook_z", None, ""),
    (12, "12", ""),
    (300 * "x", short_repr(300 * "x"), ""),
]


def test_of_an_unknown_name_the_three_nearest_are_named():
    """They have the layer's number of the unknown name, and not its prefix."""
    for name, shown, nearest in UNKNOWN_NAMES:
        message = refuses("is no activation of a GPT-2", known_name, name, error=ArgumentError)
        start, _, names = message.partition("; the nearest are ")
        assert start == f"{shown or repr(name)} is no activation of a GPT-2"
        assert names.startswith(nearest)
        assert len(names.split(", ")) == 3


@pytest.mark.parametrize("name", ["hook_embed", "blocks.10.attn.hook_rot_q"])
def test_another_hook_is_not_compared(name):
    assert known_name(name) == "-"


OTHER_SHAPES = [
    ((3, 2), (2, 3), "; its transpose by axes (1, 0) would fit"),
    ((5, 6, 2, 3, 4), (2, 3, 4, 5, 6), "; its transpose by axes (2, 3, 4, 0, 1) would fit"),
    ((2, 3, 4, 5, 7, 6), (2, 3, 4, 5, 6, 7), ""),
    ((2, 3), (2, 4), ""),
    ((6,), (2, 3), ""),
    ((), (2,), ""),
]


def test_a_transpose_that_would_fit_is_told_of_up_to_five_axes():
    for shape, expected, hint in OTHER_SHAPES:
        error = shape_error("embed", shape, expected)
        assert str(error) == f"embed has shape {shape}; expected {expected}{hint}"


TAPES = {  # the number of texts -> their tape
    B: tape_of(MODELS["tiny"], some_ids(MODELS["tiny"], B=B, T=5)) for B in (1, 2)
}
ADDED = (
    "6 tokens, and ids has 5: a token was added. TransformerLens prepends one (BOS) unless "
    "prepend_bos=False is given"
)


WRONG_SHAPES = [
    (2, "qkv", (4, 2, 5, 144), "attn.3.qkv was given, but the model's layers are 0 to 2"),
    (2, "h.12.mlp.act", (2,), "mlp.12.post was given, but the model's layers are 0 to 2"),
    (2, "embed", (2, 6, 48), f"embed has {ADDED}"),
    (2, "attn.0.q", (2, 3, 6, 16), f"attn.0.q has {ADDED}"),
    (2, "resid_post.1", (2, 6, 48), f"resid_post.1 has {ADDED}"),
    (2, "logits", (2, 6, 211), f"logits has {ADDED}"),
    (1, "ln_f", (1, 6, 48), f"final has {ADDED}"),
    (1, "h.2.ln_1", (6, 48), f"attn.2.in has {ADDED}"),
    (2, "ln_f", (5, 48), "final has shape (5, 48); expected (2, 5, 48)"),
    (2, "logits", (2, 5, 210), "logits has shape (2, 5, 210); expected (2, 5, 211)"),
    (2, "ln_f", (6, 48), "final has shape (6, 48); expected (2, 5, 48)"),
    (2, "attn.0.scores", (2, 3, 6, 6), f"attn.0.scores has {ADDED}"),
    (1, "h.1.attn:1", (3, 6, 6), f"attn.1.pattern has {ADDED}"),
    (2, "logits", (2, 4, 300), "logits has shape (2, 4, 300); expected (2, 5, 211)"),
    (2, "att", (3, 2, 3, 5, 6), "attn.0.pattern has shape (2, 3, 5, 6); expected (2, 3, 5, 5)"),
    (
        2,
        "blocks.0.attn.hook_z",
        (2, 3, 5, 16),
        "attn.0.heads has shape (2, 3, 5, 16); expected (2, 5, 3, 16); its transpose by axes "
        "(0, 2, 1, 3) would fit",
    ),
    (
        2,
        "attn.0.heads",
        (2, 5, 3, 16),
        "attn.0.heads has shape (2, 5, 3, 16); expected (2, 3, 5, 16); its transpose by axes "
        "(0, 2, 1, 3) would fit",
    ),
]


def test_an_array_of_another_shape_is_refused():
    for B, name, shape, message in WRONG_SHAPES:
        arguments = name, np.ones(shape), TAPES[B], TINY.n_layer
        assert refuses(".", translate, *arguments, error=ArgumentError) == message


def test_a_text_in_place_of_numbers_is_refused_under_its_own_name():
    arguments = "transformer.h.0.mlp", np.array(["a"]), TAPES[1], TINY.n_layer
    message = refuses(".", translate, *arguments, error=ArgumentError)
    assert message.startswith("'transformer.h.0.mlp' must be an array of floats, got <U1")


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("B", TAPES)
def test_heads_in_each_layout_are_ours(B, kind):
    """Those of another program come in two layouts, and a single text without B."""
    ours = kind.replace("N", "1")
    theirs = "blocks.1.attn.hook_" + {"attn.N.heads": "z"}.get(kind, ours[-1])
    array = TAPES[B][ours]
    for given in (joined_heads(array), heads_last_but_one(array)):
        for each in (given, given[0]) if B == 1 else (given,):
            translated = translate(theirs, each, TAPES[B], TINY.n_layer)
            assert list(translated) == [ours]
            np.testing.assert_array_equal(translated[ours], array)
    for each in (array, array[0]) if B == 1 else (array,):
        translated = translate(ours, each, TAPES[B], TINY.n_layer)
        np.testing.assert_array_equal(translated[ours], array)


@pytest.mark.parametrize(
    "name", ["ln_f.bias", "transformer.h.0.attn.c_attn.weight", "lm_head.weight"]
)
def test_a_parameter_is_no_activation(name):
    assert translate(name, np.ones(3), TAPES[1], TINY.n_layer) == {}
