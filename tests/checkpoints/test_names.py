"""The table of names and layouts: each row is read from files, from a state dict, and compared."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.checkpoint_files import assert_same, write_config, write_tensors
from support.checks import refuses
from support.layouts import in_layout
from support.models import SMALL, random_model
from support.torch_files import torch_file

import tiedgpt
from tiedgpt import Config, from_state_dict
from tiedgpt.checkpoints import Opened
from tiedgpt.checkpoints.names import (
    EMBEDDINGS,
    HEADS,
    IN_A_LAYER,
    LAYOUTS,
    MODULES_OF,
    OTHER_TABLE,
    by_layer,
    by_our_names,
    is_no_parameter,
    our_parameter,
    plain_name,
    with_N,
)
from tiedgpt.checkpoints.state_dicts import NOT_IN_SHAPES
from tiedgpt.checkpoints.tensors import (
    Joined,
    Tensor,
    have_same_values,
    in_pieces,
    join,
    zeros,
)
from tiedgpt.comparison.compare import compare
from tiedgpt.errors import ArgumentError
from tiedgpt.gpt2.backward import loss_and_gradients
from tiedgpt.gpt2.parameters import parameter_shapes

ROOT = Path(__file__).resolve().parents[2]
BY_PROGRAM = {layout.program: layout for layout in LAYOUTS}
# V, n_ctx, D, H, F: no two sizes are equal, and D is not 3 times another.
SIZES = Config(
    vocab_size=11,
    n_ctx=5,
    n_embd=8,
    n_layer=1,
    n_head=2,
    n_inner=12,
    bos_token_id=0,
    eos_token_id=0,
)
# What a state dict does not tell, so that nothing is assumed.
FIELDS = {name: getattr(SMALL, name) for name in (*NOT_IN_SHAPES, "bos_token_id", "eos_token_id")}
NORMS = {"ln_1": (8,), "ln_2": (8,)}
# The tensors of a model of one layer and SIZES, as the program itself prints names and shapes.
AS_PRINTED = {
    "transformers": """
        wte.weight 11x8, wpe.weight 5x8, h.0.ln_1.weight 8, h.0.ln_1.bias 8,
        h.0.attn.c_attn.weight 8x24, h.0.attn.c_attn.bias 24, h.0.attn.c_proj.weight 8x8,
        h.0.attn.c_proj.bias 8, h.0.ln_2.weight 8, h.0.ln_2.bias 8, h.0.mlp.c_fc.weight 8x12,
        h.0.mlp.c_fc.bias 12, h.0.mlp.c_proj.weight 12x8, h.0.mlp.c_proj.bias 8, ln_f.weight 8,
        ln_f.bias 8, lm_head.weight 11x8""",
    "nanoGPT, minGPT and mlx-lm": """
        wte.weight 11x8, wpe.weight 5x8, h.0.ln_1.weight 8, h.0.ln_1.bias 8,
        h.0.attn.c_attn.weight 24x8, h.0.attn.c_attn.bias 24, h.0.attn.c_proj.weight 8x8,
        h.0.attn.c_proj.bias 8, h.0.ln_2.weight 8, h.0.ln_2.bias 8, h.0.mlp.c_fc.weight 12x8,
        h.0.mlp.c_fc.bias 12, h.0.mlp.c_proj.weight 8x12, h.0.mlp.c_proj.bias 8, ln_f.weight 8,
        ln_f.bias 8, lm_head.weight 11x8""",
    "minGPT of 2020": """
        pos_emb 5x8, tok_emb.weight 11x8, blocks.0.ln1.weight 8, blocks.0.ln1.bias 8,
        blocks.0.ln2.weight 8, blocks.0.ln2.bias 8, blocks.0.attn.key.weight 8x8,
        blocks.0.attn.key.bias 8, blocks.0.attn.query.weight 8x8, blocks.0.attn.query.bias 8,
        blocks.0.attn.value.weight 8x8, blocks.0.attn.value.bias 8, blocks.0.attn.proj.weight 8x8,
        blocks.0.attn.proj.bias 8, blocks.0.mlp.0.weight 12x8, blocks.0.mlp.0.bias 12,
        blocks.0.mlp.2.weight 8x12, blocks.0.mlp.2.bias 8, ln_f.weight 8, ln_f.bias 8,
        head.weight 11x8""",
    "llm.c": """
        wte 11x8, wpe 5x8, ln1w 1x8, ln1b 1x8, qkvw 1x24x8, qkvb 1x24, attprojw 1x8x8,
        attprojb 1x8, ln2w 1x8, ln2b 1x8, fcw 1x12x8, fcb 1x12, fcprojw 1x8x12, fcprojb 1x8,
        lnfw 8, lnfb 8""",
    "TransformerLens": """
        embed.W_E 11x8, pos_embed.W_pos 5x8, blocks.0.ln1.w 8, blocks.0.ln1.b 8, blocks.0.ln2.w 8,
        blocks.0.ln2.b 8, blocks.0.attn.W_Q 2x8x4, blocks.0.attn.W_K 2x8x4,
        blocks.0.attn.W_V 2x8x4, blocks.0.attn.W_O 2x4x8, blocks.0.attn.b_Q 2x4,
        blocks.0.attn.b_K 2x4, blocks.0.attn.b_V 2x4, blocks.0.attn.b_O 8,
        blocks.0.mlp.W_in 8x12, blocks.0.mlp.b_in 12, blocks.0.mlp.W_out 12x8,
        blocks.0.mlp.b_out 8, ln_final.w 8, ln_final.b 8, unembed.W_U 8x11""",
    "OpenAI": """
        model/wte 11x8, model/wpe 5x8, model/h0/ln_1/g 8, model/h0/ln_1/b 8,
        model/h0/attn/c_attn/w 8x24, model/h0/attn/c_attn/b 24, model/h0/attn/c_proj/w 8x8,
        model/h0/attn/c_proj/b 8, model/h0/ln_2/g 8, model/h0/ln_2/b 8, model/h0/mlp/c_fc/w 8x12,
        model/h0/mlp/c_fc/b 12, model/h0/mlp/c_proj/w 12x8, model/h0/mlp/c_proj/b 8,
        model/ln_f/g 8, model/ln_f/b 8""",
    "LLMs-from-scratch": """
        tok_emb.weight 11x8, pos_emb.weight 5x8, trf_blocks.0.att.W_query.weight 8x8,
        trf_blocks.0.att.W_query.bias 8, trf_blocks.0.att.W_key.weight 8x8,
        trf_blocks.0.att.W_key.bias 8, trf_blocks.0.att.W_value.weight 8x8,
        trf_blocks.0.att.W_value.bias 8, trf_blocks.0.att.out_proj.weight 8x8,
        trf_blocks.0.att.out_proj.bias 8, trf_blocks.0.ff.layers.0.weight 12x8,
        trf_blocks.0.ff.layers.0.bias 12, trf_blocks.0.ff.layers.2.weight 8x12,
        trf_blocks.0.ff.layers.2.bias 8, trf_blocks.0.norm1.scale 8, trf_blocks.0.norm1.shift 8,
        trf_blocks.0.norm2.scale 8, trf_blocks.0.norm2.shift 8, final_norm.scale 8,
        final_norm.shift 8, out_head.weight 11x8""",
}


def heads(layout):
    """The heads that a program has."""
    return ["tied", "untied"] if "lm_head" in layout.modules else ["tied"]


ROWS = [
    pytest.param(layout, head, id=f"{layout.program}-{head}")
    for layout in LAYOUTS
    for head in heads(layout)
]


EMBEDDING_OF = {  # the last part of an embedding's name -> a program or a kind of models
    "wte": "GPT-2",
    "tok_emb": "minGPT",
    "embed_tokens": "Llama",
    "word_embeddings": "BERT",
    "embed_in": "GPT-NeoX",
    "tok_embeddings": "Llama, as Meta writes it",
    "tokens_embed": "GPT",
    "embeddings": "Mamba",
}
HEAD_OF = {
    "lm_head": "GPT-2",
    "head": "minGPT",
    "out_head": "LLMs-from-scratch",
    "embed_out": "GPT-NeoX",
    "output": "Llama, as Meta writes it",
    "decoder": "BERT",
    "output_projection": "BioGPT",
    "proj_out": "Whisper",
}


def test_the_names_of_embeddings_and_heads_of_other_models_are_known():
    assert EMBEDDING_OF.keys() <= set(EMBEDDINGS)
    assert HEAD_OF.keys() <= set(HEADS)
    assert not set(EMBEDDINGS) & set(HEADS)


@pytest.mark.parametrize(
    ("name", "is_other"),
    [
        ("transformer.wpe.weight", True),
        ("bert.embeddings.position_embeddings.weight", True),
        ("bert.embeddings.token_type_embeddings.weight", True),
        ("pos_emb.weight", True),
        ("model.embed_tokens_per_layer.weight", True),
        ("transformer.wte.weight", False),
        ("bert.embeddings.word_embeddings.weight", False),
    ],
)
def test_a_table_of_positions_is_none_of_tokens(name, is_other):
    assert bool(OTHER_TABLE.search(name)) == is_other


@pytest.mark.parametrize(
    ("name", "is_in_a_layer"),
    [
        ("h.0.attn.c_attn.weight", True),
        ("transformer.h.11.mlp.c_fc.weight", True),
        ("model.layers.3.mlp.weight", True),
        ("bert.encoder.layer.0.output.weight", True),
        ("block.7.0.weight", True),
        ("blocks.12.ln1.w", True),
        ("transformer.wte.weight", False),
        ("lm_head.0.weight", False),
    ],
)
def test_the_names_of_tensors_in_a_layer_are_known(name, is_in_a_layer):
    assert bool(IN_A_LAYER.search(name)) == is_in_a_layer


@pytest.mark.parametrize(
    "before",
    [
        "",
        "transformer.",
        "model.",
        "module.",
        "_orig_mod.module.transformer.",
        "model.module.model.",
    ],
)
def test_what_may_stand_before_a_name_is_removed(before):
    assert plain_name(f"{before}h.10.ln_1.weight") == "h.10.ln_1.weight"


def test_names_inside_of_transformer_lenss_bridge_are_plain_without_it():
    """It wraps each module of a model, and so adds to a name once for each."""
    name = "transformer.h.10._original_component.attn._original_component.c_attn.weight"
    assert plain_name(name) == "h.10.attn.c_attn.weight"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("h.10.ln_1.bias", ("h.N.ln_1.bias", "10")),
        ("blocks.123.mlp.0.weight", ("blocks.N.mlp.0.weight", "123")),
        ("model/h11/attn/c_attn/w", ("model/hN/attn/c_attn/w", "11")),
        ("wte.weight", ("wte.weight", "")),
        ("ln1w", ("ln1w", "")),
    ],
)
def test_the_number_of_the_layer_in_a_name(name, parts):
    assert with_N(name) == parts


def test_our_name_of_a_parameter():
    assert our_parameter("ln1w") == "h.N.ln_1.weight"  # one tensor has all layers
    assert our_parameter("model/h11/ln_1/g") == "h.11.ln_1.weight"
    assert our_parameter("h.0.attn.rotary.weight") == ""


def test_what_each_program_has_beside_the_parameters():
    masks = ["h.0.attn.bias", "h.11.attn.masked_bias", "blocks.0.attn.mask", "blocks.0.attn.IGNORE"]
    for name in (*masks, "trf_blocks.10.att.mask"):
        assert is_no_parameter(name), name
    for name in ("h.0.attn.c_attn.bias", "wte.weight", "unembed.b_U", "blocks.0.attn.b_O"):
        assert not is_no_parameter(name), name
    assert BY_PROGRAM["TransformerLens"].must_be_zero == ("unembed.b_U",)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, marks=pytest.mark.slow if program != "OpenAI" else ())
        for program in BY_PROGRAM
    ],
)
def test_a_model_of_more_than_ten_layers(program):
    """In the order of the alphabet, layer 10 would come before layer 2."""
    model = random_model(replace(SIZES, n_layer=11))
    read = from_state_dict(in_layout(model, BY_PROGRAM[program]), n_head=2, **FIELDS)
    assert read.config.n_layer == 11
    assert list(read.parameters) == list(model.parameters)
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(read.parameters[name], array, name)


@pytest.mark.parametrize("program", ["transformers", "nanoGPT, minGPT and mlx-lm", "OpenAI"])
def test_an_axis_of_1_before_each_tensor_is_left_out(program):
    model = random_model(SIZES)
    tensors = {name: x[np.newaxis] for name, x in in_layout(model, BY_PROGRAM[program]).items()}
    read = from_state_dict(tensors, config=SIZES)
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(read.parameters[name], array, name)


@pytest.mark.parametrize("shape", [(), (0, 8), (4097, 8)])
def test_a_tensor_of_all_layers_that_cannot_be_one(shape):
    tensors = in_layout(random_model(SIZES), BY_PROGRAM["llm.c"])
    message = re.escape(f"h.N.ln_2.weight of all layers has the shape {shape}")
    with pytest.raises(ArgumentError, match=f"^{message}$"):
        by_our_names(tensors | {"ln2w": np.zeros(shape)}, np.concatenate)


def test_a_tensor_of_all_layers_may_have_4096():
    layers = list(by_layer("h.N.ln_2.weight", "", np.arange(4096)))
    assert layers[-1] == ("h.4095.ln_2.weight", 4095)


@pytest.mark.parametrize("layout", LAYOUTS, ids=BY_PROGRAM)
def test_names_and_shapes_are_those_of_the_program(layout):
    model = random_model(SIZES.with_head(heads(layout)[-1]))
    printed = {}
    for line in AS_PRINTED[layout.program].split(","):
        name, shape = line.split()
        printed[name] = tuple(int(size) for size in shape.split("x"))
    assert {name: x.shape for name, x in in_layout(model, layout).items()} == printed


@pytest.mark.parametrize(
    "prefix",
    ["", *(pytest.param(prefix, marks=pytest.mark.slow) for prefix in ("module.", "model."))],
)
@pytest.mark.parametrize(("layout", "head"), ROWS)
def test_a_folder_of_each_layout(tmp_path, layout, head, prefix):
    """Written again, it is the same model with the names of transformers."""
    model = random_model(SMALL.with_head(head))
    tensors = {prefix + name: x for name, x in in_layout(model, layout).items()}
    loaded = tiedgpt.load_model(write_tensors(tmp_path, tensors, model.config))
    assert_same(loaded, model)
    tiedgpt.save_model(loaded, None, tmp_path / "copy")
    assert_same(tiedgpt.load_model(tmp_path / "copy"), model)


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_a_model_is_written_with_the_names_of_transformers(tmp_path, head):
    model = random_model(SMALL.with_head(head))
    tiedgpt.save_model(model, None, tmp_path / "copy")
    saved = Opened(tmp_path / "copy").saved
    assert saved.metadata == [{"format": "pt"}]  # without which transformers 4 refuses the file
    names = list(saved.tensors)
    own = ["lm_head.weight"] if head == "untied" else []
    assert names == [f"transformer.{name}" for name in random_model(SMALL).parameters] + own


@pytest.mark.parametrize(("layout", "head"), ROWS)
def test_a_file_of_torch_in_each_layout(tmp_path, layout, head):
    model = random_model(SMALL.with_head(head))
    write_config(tmp_path, model.config)
    (tmp_path / "mine.pt").write_bytes(torch_file(in_layout(model, layout)))
    assert_same(tiedgpt.load_model(tmp_path / "mine.pt"), model)


@pytest.mark.parametrize(("layout", "head"), ROWS)
def test_a_file_of_torch_whose_tensors_are_views_in_another_order(tmp_path, layout, head):
    """Such as a transposed matrix: in the file, a row of it does not lie in one stretch."""
    model = random_model(SMALL.with_head(head))
    write_config(tmp_path, model.config)
    views = {}
    for name, array in in_layout(model, layout).items():
        views[name] = np.ascontiguousarray(array.T).T
    (tmp_path / "mine.pt").write_bytes(torch_file(views))
    assert_same(tiedgpt.load_model(tmp_path / "mine.pt"), model)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("layout", "head"), ROWS)
def test_a_state_dict_of_each_layout(layout, head, dtype):
    model = random_model(SMALL.with_head(head))
    state = {name: x.astype(dtype) for name, x in in_layout(model, layout).items()}
    read = from_state_dict(state, config=model.config)
    assert read.dtype == dtype
    assert read.config == model.config
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(read.parameters[name], array, name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_does_not_change_with_the_state_dict_that_it_was_made_of(dtype):
    state = {name: x.astype(dtype) for name, x in random_model(SMALL).parameters.items()}
    read = from_state_dict(state, config=SMALL)
    before = {name: x.copy() for name, x in read.parameters.items()}
    for array in state.values():
        array += 1
    for name, array in before.items():
        np.testing.assert_array_equal(read.parameters[name], array, name)


@pytest.mark.parametrize(
    ("layout", "head"),
    [
        pytest.param(layout, head, marks=pytest.mark.slow if head != heads(layout)[-1] else ())
        for layout in LAYOUTS
        for head in heads(layout)
    ],
)
def test_gradients_of_each_layout_are_compared(layout, head):
    """One gradient that is doubled is the one that differs."""
    model = random_model(SMALL.with_head(head))
    ids = np.arange(4)
    tape: dict[str, np.ndarray] = {}
    model(ids, tape=tape)
    _, gradients = loss_and_gradients(model, ids, ids[::-1])
    theirs = in_layout(tiedgpt.GPT2(model.config, gradients), layout)
    logits = {"logits": tape["logits"]}
    report = compare(model, theirs | logits, ids, ids[::-1])
    assert report.same, str(report)
    assert len(report.rows) == len(gradients) + 1
    name = next(name for name in theirs if layout.parts[with_N(name)[0]].ours == "ln_f.bias")
    report = compare(model, theirs | logits | {name: 2 * theirs[name]}, ids, ids[::-1])
    assert [row.name for row in report.rows if row.differs] == ["ln_f.bias"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=BY_PROGRAM)
def test_masks_and_zeros_beside_the_parameters(tmp_path, layout):
    """Masks are left out. A parameter that no GPT-2 has must be 0."""
    model = random_model(SMALL)
    tensors = in_layout(model, layout)
    for name in layout.not_parameters:
        tensors |= {name.replace(".N.", ".1."): np.ones((1, 1, 3, 3))}
    tensors |= {name: np.zeros(5) for name in layout.must_be_zero}
    assert_same(tiedgpt.load_model(write_tensors(tmp_path, tensors, model.config)), model)
    from_state_dict(tensors, config=model.config)
    one = np.array([0.0, 0, 0, 1, 0])
    for name in layout.must_be_zero:
        write_tensors(tmp_path, tensors | {name: one}, model.config)
        message = f"{re.escape(name)} is not 0, and a GPT-2 has no such parameter$"
        refuses(message, tiedgpt.load_model, tmp_path)
        with pytest.raises(ArgumentError, match=f"^{message}"):
            from_state_dict(tensors | {name: one}, config=model.config)


def without_biases(model, is_kept=lambda name: False):
    """The model with biases of 0, but for those that are kept."""
    parameters = {}
    for name, x in model.parameters.items():
        is_zero = name.endswith(".bias") and not is_kept(name)
        parameters[name] = np.zeros_like(x) if is_zero else x
    return tiedgpt.GPT2(model.config, parameters)


@pytest.mark.parametrize("layout", LAYOUTS, ids=BY_PROGRAM)
def test_a_model_without_biases_has_biases_of_0(tmp_path, layout):
    model = without_biases(random_model(SMALL))
    tensors = in_layout(model, layout)
    for name in list(tensors):
        if layout.parts[with_N(name)[0]].ours.endswith(".bias"):
            del tensors[name]
    assert_same(tiedgpt.load_model(write_tensors(tmp_path, tensors, model.config)), model)
    assert_same(from_state_dict(tensors, config=model.config), model)


@pytest.mark.parametrize("layout", LAYOUTS, ids=BY_PROGRAM)
def test_a_model_that_lacks_the_biases_of_one_module(tmp_path, layout):
    """That is a model of LLMs-from-scratch with qkv_bias=False, or a damaged one."""
    model = without_biases(random_model(SMALL), lambda name: "c_attn" not in name)
    tensors = in_layout(model, layout)
    for name in list(tensors):
        if layout.parts[with_N(name)[0]].ours == "h.N.attn.c_attn.bias":
            del tensors[name]
    write_tensors(tmp_path, tensors, model.config)
    if layout.program == "LLMs-from-scratch":
        assert_same(tiedgpt.load_model(tmp_path), model)
    else:
        refuses("h.0.attn.c_attn.bias is missing", tiedgpt.load_model, tmp_path)


def test_a_layer_that_alone_lacks_the_biases_of_q_k_and_v(tmp_path):
    """The other layers have them, so the file is damaged: they are not 0."""
    tensors = in_layout(random_model(SMALL), BY_PROGRAM["LLMs-from-scratch"])
    for part in ("query", "key", "value"):
        del tensors[f"trf_blocks.1.att.W_{part}.bias"]
    message = "h.1.attn.c_attn.bias is missing"
    refuses(message, tiedgpt.load_model, write_tensors(tmp_path, tensors, SMALL))
    with pytest.raises(ArgumentError, match=message):
        from_state_dict(tensors, config=SMALL)


@pytest.mark.parametrize("layout", LAYOUTS, ids=BY_PROGRAM)
def test_each_tensor_is_needed(tmp_path, layout):
    """The error names it, or the tensor of ours of which it is a part."""
    tensors = in_layout(random_model(SIZES), layout)
    for name in tensors:
        rest = {other: x for other, x in tensors.items() if other != name}
        message = refuses("is missing", tiedgpt.load_model, write_tensors(tmp_path, rest, SIZES))
        assert name in message or layout.parts[with_N(name)[0]].ours.partition("N")[2] in message


def test_a_layout_by_head_tells_how_many_heads_there_are(tmp_path):
    """With another n_head, the shapes of our matrices would be the same, and the logits others."""
    model = random_model(SMALL)
    tensors = in_layout(model, BY_PROGRAM["TransformerLens"])
    assert_same(from_state_dict(tensors, **FIELDS), model)
    for n_head in (1, 7):
        message = f"n_head is {n_head}, but the tensors have 3 heads$"
        other = replace(SMALL, n_head=n_head)
        refuses(message, tiedgpt.load_model, write_tensors(tmp_path, tensors, other))
        with pytest.raises(ArgumentError, match=message):
            from_state_dict(tensors, config=other)
        with pytest.raises(ArgumentError, match=message):
            from_state_dict(tensors, n_head=n_head, **FIELDS)


@pytest.mark.parametrize("part", ["key", "value"])
def test_parts_that_do_not_fit_each_other(tmp_path, part):
    """Only together have they as many columns as c_attn. Each is needed."""
    tensors = in_layout(random_model(SMALL), BY_PROGRAM["LLMs-from-scratch"])
    name = f"trf_blocks.1.att.W_{part}.weight"
    tensors[name] = np.ones((tensors[name].shape[0], 3), np.float32)
    write_tensors(tmp_path, tensors, SMALL)
    assert refuses(".", tiedgpt.load_model, tmp_path) == (
        f"{tmp_path}: {name} of shape (3, 21) does not fit the other parts of "
        "h.1.attn.c_attn.weight"
    )
    del tensors[name]
    write_tensors(tmp_path, tensors, SMALL)
    assert refuses(".", tiedgpt.load_model, tmp_path) == (
        f"{tmp_path}: {name} is missing, a part of h.1.attn.c_attn.weight"
    )


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_a_name_of_ours_beside_its_name_in_another_layout(tmp_path, prefix):
    model = random_model(SMALL)
    tensors = in_layout(model, BY_PROGRAM["LLMs-from-scratch"])
    tensors[f"{prefix}wte.weight"] = model.W_E + 1
    write_tensors(tmp_path, tensors, SMALL)
    message = "'wte.weight' is there twice, also by its name in LLMs-from-scratch$"
    refuses(message, tiedgpt.load_model, tmp_path)


def test_nothing_is_read_before_values_are_asked_for(tmp_path, monkeypatch):
    def read(*_):
        pytest.fail("values are read")

    model = random_model(SMALL.with_head("untied"))
    monkeypatch.setattr(Tensor, "pieces", read)
    monkeypatch.setattr(Tensor, "values", read)
    for layout in LAYOUTS:
        tensors = in_layout(model, replace(layout, must_be_zero=()))
        opened = Opened(write_tensors(tmp_path, tensors, model.config))
        shapes = {name: tensor.shape for name, tensor in opened.tensors.items()}
        shapes.setdefault(
            "lm_head.weight", model.W_U.T.shape
        )  # of a program that has only tied ones
        assert shapes == parameter_shapes(model.config), layout.program


@pytest.mark.parametrize("program", ["transformers", "llm.c"])
def test_a_tensor_that_is_one_stretch_of_the_file_is_not_copied(tmp_path, program):
    """In llm.c's layout, a layer is a part of a tensor; its matrices are transposed, so copied."""
    model = random_model(SMALL)
    tensors = in_layout(model, BY_PROGRAM[program])
    loaded = tiedgpt.load_model(write_tensors(tmp_path, tensors, model.config))
    for name, array in loaded.parameters.items():
        is_matrix = name.startswith("h.") and array.ndim == 2
        if program == "transformers" or not is_matrix:
            assert not array.flags.owndata, name
            assert not isinstance(array.base, np.ndarray), name


def test_parts_that_are_not_in_row_order_are_no_stretch_of_the_file():
    """Two matrices follow each other in the file; the rows of their transposes do not."""
    values = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    both = Tensor(Path("x"), "x", "F32", values.shape, 0, values.nbytes, values.tobytes())
    parts = [both[0].T, both[1].T]
    expected = np.concatenate([values[0].T, values[1].T])
    np.testing.assert_array_equal(join(parts, axis=0).values(), expected)


def test_parts_of_two_files_or_of_two_types_are_no_stretch_of_the_file():
    """The second part begins where the first one ends: at byte 24."""
    memory = np.arange(12, dtype=np.float32).tobytes()
    other_memory = np.ones(12, np.float32).tobytes()
    first = Tensor(Path("x"), "x", "F32", (2, 3), 0, 24, memory)
    in_another_file = Tensor(Path("y"), "y", "F32", (2, 3), 24, 48, other_memory)
    of_another_type = Tensor(Path("x"), "y", "F16", (2, 3), 24, 36, memory)
    for second in (in_another_file, of_another_type):
        expected = np.concatenate([first.values(), second.values()])
        np.testing.assert_array_equal(join([first, second], axis=0).values(), expected)


def test_a_square_matrix_and_its_transpose_at_one_place_differ():
    values = np.arange(4, dtype=np.float32).reshape(2, 2)
    matrix = Tensor(Path("x"), "x", "F32", values.shape, 0, values.nbytes, values.tobytes())
    assert have_same_values(matrix, matrix)
    assert not have_same_values(matrix, matrix.T)
    assert matrix.equal_rows(matrix.T) == 0


# Tensors of a file, and parts of them


def as_tensor(values, dtype="F32"):
    """A tensor of a file that has these values alone."""
    content = np.ascontiguousarray(values).tobytes()
    return Tensor(Path("x.bin"), "a", dtype, values.shape, 0, len(content), content)


@pytest.mark.parametrize(("dtype", "kind"), [("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2")])
def test_the_transpose_and_the_layers_of_a_tensor_of_each_type(dtype, kind):
    values = np.arange(24).reshape(4, 2, 3).astype(kind)
    tensor = as_tensor(values, dtype)
    of_strides = replace(tensor, strides=values.strides)
    for each in (tensor, of_strides):
        for layer in (0, 3):
            part = each[layer]
            assert part.shape == (2, 3)
            assert part.start == layer * values[0].nbytes
            assert part.end == part.start + values[0].nbytes
            np.testing.assert_array_equal(part.values(), values[layer])
            np.testing.assert_array_equal(part.T.values(), values[layer].T)
            np.testing.assert_array_equal(part.T.T.values(copy=True), values[layer])
            np.testing.assert_array_equal(part.T[2].values(), values[layer].T[2])
        np.testing.assert_array_equal(each.T.values(), values.T)


def test_the_bytes_of_a_tensor_are_not_in_its_text():
    assert len(repr(as_tensor(np.zeros(1000, np.float32)))) < 200


def test_a_tensor_is_at_the_place_of_another_if_all_of_it_is():
    tensor = as_tensor(np.zeros((2, 2), np.float32))
    assert tensor.is_at_place_of(replace(tensor, name="b", file=Path("y.bin")))
    for change in (
        {"memory": bytes(bytearray(tensor.memory))},
        {"start": 4, "end": 20},
        {"dtype": "I32"},
        {"strides": (4, 8)},
    ):
        assert not tensor.is_at_place_of(replace(tensor, **change)), change


def test_the_whole_message_of_a_type_that_is_not_read():
    tensor = as_tensor(np.zeros(2, "<i8"), "I64")
    assert refuses(".", tensor.values) == (
        "x.bin: tensor 'a' is I64; expected one of F64, F32, F16, BF16"
    )
    tensor = as_tensor(np.zeros(2, np.int8), "F8_E5M2")
    assert refuses(".", tensor.read_exactly) == (
        "x.bin: tensor 'a' is F8_E5M2, which is not read; save it as F32 or F64"
    )


def test_parts_that_follow_each_other_are_one_stretch_of_the_file():
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    tensor = as_tensor(values)
    for each in (tensor, replace(tensor, strides=values.strides)):
        parts = [each[layer] for layer in range(4)]
        for some in (parts, parts[1:], parts[:3]):
            whole = join(some, axis=0)
            assert isinstance(whole, Tensor)
            assert (whole.start, whole.end) == (some[0].start, some[-1].end)
            np.testing.assert_array_equal(
                whole.values(), np.concatenate([x.values() for x in some])
            )


@pytest.mark.parametrize("order", [(0, 1, 3), (0, 2, 3), (0, 2, 1), (1, 0, 2), (0, 0, 1)])
def test_parts_with_a_hole_or_in_another_order_are_no_stretch_of_the_file(order):
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    tensor = as_tensor(values)
    parts = [tensor[layer] for layer in order]
    expected = np.concatenate([values[layer] for layer in order])
    np.testing.assert_array_equal(join(parts, axis=0).values(), expected)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_part_that_is_transposed_or_joined_makes_the_others_no_stretch(which):
    values = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    tensor = as_tensor(values)
    for change in (lambda part: part.T, lambda part: Joined([part], 0)):
        parts = [tensor[layer] for layer in range(3)]
        parts[which] = change(parts[which])
        expected = np.concatenate([part.values() for part in parts])
        np.testing.assert_array_equal(join(parts, axis=0).values(), expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_joined_parts_may_have_different_sizes(axis, monkeypatch):
    """The values of all of them come in pieces, too."""
    monkeypatch.setattr("tiedgpt.checkpoints.tensors.VALUES_PER_PIECE", 4)
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    cut = [1] if axis == 0 else [1, 3]
    joined = join([as_tensor(part) for part in np.split(values, cut, axis)], axis)
    assert joined.shape == (3, 5)
    np.testing.assert_array_equal(joined.values(), values)
    assert have_same_values(joined, as_tensor(values))
    assert not have_same_values(joined, as_tensor(values + (values == 14)))


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 8, 9])
def test_the_pieces_of_an_array_are_all_of_it(size, monkeypatch):
    monkeypatch.setattr("tiedgpt.checkpoints.tensors.VALUES_PER_PIECE", 4)
    values = np.arange(size)
    pieces = list(in_pieces(values))
    assert [piece.size for _, piece in pieces] == [4] * (size // 4) + [size % 4] * (size % 4 > 0)
    for place, piece in pieces:
        np.testing.assert_array_equal(values[place], piece)
    assert [place.start for place, _ in pieces] == list(range(0, size, 4))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3)])
def test_zeros_that_a_file_lacks(shape):
    tensor = zeros(Path("x.bin"), "ln_f.bias", shape)
    assert (tensor.file, tensor.name) == (Path("x.bin"), "ln_f.bias")
    for array in (tensor.values(), tensor.values(copy=True), tensor.read_exactly()):
        np.testing.assert_array_equal(array, np.zeros(shape))
        assert array.dtype == np.float32
    tensor.values()[...] = 1  # a model may be trained
    assert tensor.end == 4 * np.prod(shape)


# Who else names tensors


def test_the_page_on_formats_names_each_program():
    page = (ROOT / "weights" / "README.md").read_text(encoding="utf-8")
    for layout in LAYOUTS:
        for program in re.split(r", | and ", layout.program):
            assert program in page, program


def names_in(script):
    """The names of a GPT-2's tensors in the code of a script, with 0 for the layer."""
    text = (ROOT / "scripts" / script).read_text(encoding="utf-8")
    quoted = re.findall(r"""["']([\w.{}]+\.(?:weight|bias))["']""", text)
    names = {name.replace("{block}", "h.0") for name in quoted}
    return {name for name in names if re.match(r"(wte|wpe|h|ln_f|lm_head)\.", name)}


def test_the_names_in_the_scripts_are_those_of_the_table():
    """The scripts stand alone, so they have their own names. bigram.py reads no checkpoint."""
    names = parameter_shapes(SIZES.with_head("untied"))
    assert names_in("tied.py") == set(names)
    of_head = {"wte.weight", "ln_f.weight", "ln_f.bias", "lm_head.weight"}
    assert names_in("head.py") == of_head
    assert names_in("bigram.py") == set()


def test_check_knows_the_two_matrices_of_each_program(tmp_path, run):
    for module in MODULES_OF["wte"]:
        tensors = {f"{module}.weight": np.ones((11, 8))}
        write_tensors(tmp_path, tensors, SIZES)
        _code, out, _ = run("check", str(tmp_path), "--json")
        [report] = json.loads(out)["models"]
        assert report["holds"] == "embedding", module
