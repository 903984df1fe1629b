"""The names and layouts of other GPT-2s' activations.

A kind of activation has an N in its name if each layer has one: "attn.N.q" is that of layer N, and
"logits" is in no layer.
"""

import numpy as np
import pytest
from support.comparing import MODELS, some_ids, tape_of

from tiedgpt import compare
from tiedgpt.comparison.conventions import translate
from tiedgpt.errors import ArgumentError
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
