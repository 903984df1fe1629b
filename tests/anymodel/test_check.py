"""`check` and `params` of language models of any kind: what the flag, the files and readers say.

The models of these tests are not whole: a few tensors and a config.json are all that is read.
test_check_kinds.py has whole models, which transformers makes and reads.

A report says what the files hold ("holds": one matrix, two equal or two different ones) and how
three readers read them ("transformers4", "transformers" for version 5, and "others" for vLLM-like
programs); None is not known. A mend has the flags to write, by their places in config.json.
"""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoint_files import safetensors_content
from support.checks import peak_memory, refuses
from support.commands import answer, assert_one_error_line, output
from support.loopback_hub import COMMIT, INDEX, NAME, WEIGHTS, Fault
from support.loopback_hub import CONFIG as HUB_CONFIG

from tiedgpt.anymodel import counting, headers, kinds, ties
from tiedgpt.anymodel.headers import open_any
from tiedgpt.anymodel.kinds import values_of
from tiedgpt.anymodel.matrices import matrix_shape
from tiedgpt.anymodel.ties import tie_report
from tiedgpt.checkpoints.opened import Opened
from tiedgpt.errors import TiedGPTError

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

V, D = 40, 8
E = "model.embed_tokens.weight"  # the embedding of Llama
H = "lm_head.weight"
FLAG = "tie_word_embeddings"
TOP = ""  # the place of a flag that stands in config.json itself, not in a part such as text_config
CONFIG = {"model_type": "llama", "vocab_size": V, "hidden_size": D}
rng = np.random.default_rng(0)
EMBEDDING = rng.normal(size=(V, D)).astype(np.float32)
OTHER = rng.normal(size=(V, D)).astype(np.float32)
LAYER = {"model.layers.0.mlp.up_proj.weight": np.ones((V, D), np.float32)}  # of their shape


def write(directory: Path, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / WEIGHTS).write_bytes(safetensors_content(arrays))
    return str(directory)


def report_of(path: str) -> dict[str, Any]:
    return tie_report("model", open_any(path))


def bfloat16(array: np.ndarray) -> np.ndarray:
    """The upper half of the bits of float32 numbers."""
    return (array.view(np.uint32) >> 16).astype(np.uint16)


def test_the_facts_are_whole():
    """Each class has a rule for each version that measured it, with a letter for each matrix."""
    content = kinds.load_kinds()
    assert set(content["measured"]) == set(kinds.VERSIONS)
    for kind, classes in content["kinds"].items():
        for name in classes:
            known = kinds.read_class(kind, name)
            assert known.rules, name
            assert len({len(names) for names in known.names}) == 1
            for rules in known.rules.values():
                by_states = [by_state for rule in rules if rule for by_state in rule.values()]
                assert by_states, name
                for state, reading in (item for each in by_states for item in each.items()):
                    assert len(state) == len(known.names[0])
                    assert reading == "!" or len(values_of(reading)) == len(state)
    assert len(content["kinds"]) > 200


# What the files hold, beside a flag

STORED = {
    "embedding": {E: EMBEDDING},
    "head": {H: EMBEDDING},
    "equal": {E: EMBEDDING, H: EMBEDDING},
    "different": {E: EMBEDDING, H: OTHER},
}
READ = [  # flag, what is stored, what transformers 5 and most others read, whether it is a conflict
    (True, "embedding", "tied", "tied", False),
    (True, "head", "tied", "error", True),
    (True, "equal", "tied", "tied", False),
    (True, "different", "untied", "tied", True),
    (False, "embedding", "random head", "error", True),
    (False, "head", "random embedding", "error", True),
    (False, "equal", "untied", "untied", False),
    (False, "different", "untied", "untied", False),
]


@pytest.mark.parametrize(("flag", "holds", "transformers", "others", "is_conflict"), READ)
def test_the_flag_and_the_files(tmp_path, run, flag, holds, transformers, others, is_conflict):
    path = write(tmp_path / "model", {**CONFIG, FLAG: flag}, {**STORED[holds], **LAYER})
    code, out, _err = run("check", path, "--json")
    [report] = json.loads(out)["models"]
    assert report["holds"] == holds
    assert (report["transformers"], report["others"]) == (transformers, others)
    assert bool(report["conflict"]) == bool(report["mend"]) == is_conflict
    assert code == int(is_conflict)
    assert report["equal_rows"] == {"equal": V, "different": 0}.get(holds)
    assert report["compared_rows"] == (V if holds in ("equal", "different") else None)
    assert report["wasted_bytes"] == (4 * V * D if holds == "equal" else 0)
    tied, untied = report["parameters"]["tied"], report["parameters"]["untied"]
    assert (tied["total"], untied["total"]) == (2 * V * D, 3 * V * D)  # LAYER is one V D
    _code, table, _err = run("check", path)
    is_plain = transformers == others and not is_conflict
    first_line = f"{path}: {others}"
    table_in_a_line = " ".join(table.split())  # a line may break anywhere
    assert table_in_a_line.startswith(f"{first_line} ") == is_plain
    assert ("conflict:" in table) == is_conflict


RANDOM = "transformers 4 and transformers 5 make {} random"
NOT_READ = "vLLM-like programs cannot read it"
LOST = {  # flag, what is stored -> what config.json says, what the files have, and what is lost
    (True, "head"): (
        "tied, and the files have no embedding: transformers 4 and vLLM-like programs cannot read "
        "it; transformers 5 reads what is there"
    ),
    (True, "different"): (
        f"tied, and the files have another head: transformers 4 and vLLM-like programs drop {H}; "
        "transformers 5 keeps both"
    ),
    (False, "embedding"): (
        f"untied, and the files have no head: {RANDOM.format('the head')}; {NOT_READ}"
    ),
    (False, "head"): (
        f"untied, and the files have no embedding: {RANDOM.format('the embedding')}; {NOT_READ}"
    ),
}


@pytest.mark.parametrize(("flag", "holds"), LOST)
def test_a_conflict_says_what_is_lost(tmp_path, flag, holds):
    path = write(tmp_path / "model", {**CONFIG, FLAG: flag}, {**STORED[holds], **LAYER})
    assert report_of(path)["conflict"] == f"config.json says {LOST[flag, holds]}"


@pytest.mark.parametrize(
    ("holds", "conflict"),
    [
        ("embedding", "config.json says, by default, untied, and the files have no head: "),
        ("head", "config.json says, by default, untied, and the files have no embedding: "),
    ],
)
def test_a_conflict_says_that_the_flag_is_the_default(tmp_path, holds, conflict):
    path = write(tmp_path / "model", CONFIG, {**STORED[holds], **LAYER})
    assert report_of(path)["conflict"].startswith(conflict)


def test_a_llama_with_another_head_is_untied_by_default(tmp_path):
    path = write(tmp_path / "model", CONFIG, {**STORED["different"], **LAYER})
    assert (report_of(path)["verdict"], report_of(path)["conflict"]) == ("untied", "")


OF_BART = ["model.shared", "lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens"]
LOST_OF_BART = {  # flag, the numbers of the matrices that are stored -> what is lost
    (True, (1,)): "transformers 4 cannot read it",
    (True, (2,)): "transformers 4 cannot read it",
    (True, (0, 1)): f"transformers 4 drops {H}; ",
    (True, (0, 1, 2, 3)): f"transformers 4 drops {H} and {OF_BART[2]}.weight and {OF_BART[3]}.",
    (False, (0,)): RANDOM.format("the head and another matrix"),
    (False, (1,)): RANDOM.format("the embedding and another matrix"),
    (False, (2,)): RANDOM.format("the embedding and the head and another matrix"),
    (False, (0, 1)): RANDOM.format("another matrix"),
}


@pytest.mark.parametrize(("flag", "numbers"), LOST_OF_BART)
def test_a_conflict_of_an_encoder_and_a_decoder_says_which_matrices_are_lost(
    tmp_path, flag, numbers
):
    arrays = {f"{OF_BART[number]}.weight": EMBEDDING + number for number in numbers}  # all differ
    arrays["model.encoder.layernorm_embedding.weight"] = EMBEDDING[0]
    config = {"model_type": "bart", "architectures": ["BartForConditionalGeneration"]}
    config |= {"vocab_size": V, "d_model": D, FLAG: flag}
    conflict = report_of(write(tmp_path / "model", config, arrays))["conflict"]
    assert LOST_OF_BART[flag, numbers] in conflict


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("holds", ["embedding", "head"])
def test_a_kind_that_transformers_never_ties_needs_a_copy(tmp_path, run, flag, holds):
    """No flag gives it the matrix that the files lack; to load and save it stores a random one."""
    config = {**CONFIG, "model_type": "kimi_linear", "pad_token_id": 0, FLAG: flag}
    path = write(tmp_path / "model", config, {**STORED[holds], **LAYER})
    code, out, _err = run("check", path, "--json")
    [report] = json.loads(out)["models"]
    assert code == 1
    assert report["transformers"].startswith("random")
    assert report["conflict"].endswith("; transformers 5 never ties KimiLinearForCausalLM")
    # Programs that go by the flag make one matrix of two copies, and transformers does not.
    assert [mend["flags"] for mend in report["mends"]] == [{TOP: False} if flag else {}]
    assert ".clone()" in report["mend"]
    write(tmp_path / "model", {**config, FLAG: False}, {**STORED["equal"], **LAYER})
    assert run("check", path)[0] == 0


@pytest.mark.parametrize(
    ("config", "names", "columns"),
    [
        pytest.param(
            {"model_type": "kimi_linear", "pad_token_id": 0, FLAG: True},
            [E, H],
            {"transformers": "untied", "others": "tied"},
            id="never tied",
        ),
        pytest.param(
            {"model_type": "t5", "d_model": D, FLAG: False},
            ["shared.weight", H],
            {"transformers4": "untied", "transformers": "tied"},
            id="transformers 4 and 5 differ",
        ),
    ],
)
def test_equal_copies_that_are_one_matrix_for_some_are_a_conflict(
    tmp_path, run, config, names, columns
):
    """The exit code is 0 only if the model is tied, or untied, for all who read it."""
    stored = dict.fromkeys(names, EMBEDDING)
    path = write(tmp_path / "model", CONFIG | config, stored)
    code, out, _ = run("check", path, "--json")
    [report] = json.loads(out)["models"]
    assert {reader: report[reader] for reader in columns} == columns
    assert (code, report["verdict"], report["holds"]) == (1, "conflict", "equal")
    assert "keeps the head apart" in report["conflict"]
    [mend] = report["mends"]
    write(tmp_path / "model", CONFIG | config | {FLAG: mend["flags"][TOP]}, stored)
    assert run("check", path)[0] == 0


def test_a_class_without_a_head_needs_none_though_its_kind_is_never_tied(tmp_path, run):
    config = {
        **CONFIG,
        "model_type": "kimi_linear",
        "architectures": ["KimiLinearModel"],
        FLAG: False,
    }
    path = write(tmp_path / "model", config, {**STORED["embedding"], **LAYER})
    assert run("check", path, "--json")[0] == 0


def test_one_changed_number_in_the_last_row_is_another_head(tmp_path):
    changed = EMBEDDING.copy()
    changed[-1, -1] += 1e-6
    path = write(tmp_path / "model", {**CONFIG, FLAG: True}, {E: EMBEDDING, H: changed})
    report = report_of(path)
    assert (report["holds"], report["equal_rows"]) == ("different", V - 1)


def test_the_rows_of_large_matrices_are_counted_over_their_pieces(tmp_path, monkeypatch):
    piece = "tiedgpt.checkpoints.tensors.VALUES_PER_PIECE"
    monkeypatch.setattr(piece, 7)  # a piece ends in the middle of a row
    changed = EMBEDDING.copy()
    changed[[0, 3, V - 1], [0, D - 1, D // 2]] += 1
    path = write(tmp_path / "model", {**CONFIG, FLAG: True}, {E: EMBEDDING, H: changed})
    assert report_of(path)["equal_rows"] == V - 3


def test_the_mend_of_config_json_ends_the_conflict(tmp_path, run):
    path = write(tmp_path / "model", {**CONFIG, FLAG: True}, STORED["different"])
    code, out, _err = run("check", path)
    assert code == 1
    assert f'"{FLAG}": false' in out
    write(tmp_path / "model", {**CONFIG, FLAG: False}, STORED["different"])
    assert run("check", path)[0] == 0


def test_an_old_copy_of_the_head_may_be_removed(tmp_path):
    """Or the head was trained, and the flag is wrong. Which of them is right is not known."""
    path = write(tmp_path / "model", {**CONFIG, FLAG: True}, STORED["different"])
    flag, removal = report_of(path)["mends"]
    assert flag["flags"] == {TOP: False}
    assert flag["text"].startswith(f'if this head was trained, write "{FLAG}": false into')
    assert (removal["flags"], f'del tensors["{H}"]' in removal["python"]) == ({}, True)
    assert removal["text"].startswith("if it is an old copy, run")
    assert report_of(path)["mend"] == f"{flag['text']}\n{removal['text']}"


def test_equal_matrices_of_two_files_are_a_waste_wherever_they_begin(tmp_path):
    """Here both begin at the same byte of their files, because the headers are equally long."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, FLAG: True}))
    weight_map = {}
    for name, other_name in [(E, H), (H, E)]:
        filler = "x" * len(other_name)
        file = f"{len(name)}.safetensors"
        (tmp_path / file).write_bytes(safetensors_content({name: EMBEDDING, filler: EMBEDDING}))
        weight_map |= {name: file, filler: file}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    model = open_any(str(tmp_path))
    assert model.stored[E].start == model.stored[H].start
    assert tie_report("model", model)["wasted_bytes"] == 4 * V * D


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_is_compared(tmp_path, dtype):
    def half(array):
        return bfloat16(array) if dtype == "BF16" else array.astype(np.float16)

    stored = {E: half(EMBEDDING), H: half(EMBEDDING)}
    path = write(tmp_path / "model", {**CONFIG, FLAG: True}, stored)
    report = report_of(path)
    assert (report["holds"], report["wasted_bytes"]) == ("equal", 2 * V * D)
    assert report["embedding"]["dtype"] == report["head"]["dtype"] == dtype
    stored[H] = half(OTHER)
    write(tmp_path / "model", {**CONFIG, FLAG: True}, stored)
    assert report_of(path)["holds"] == "different"


QUANTISED = {  # the tensors of a quantised head
    "GPTQ": {"lm_head.qweight": np.zeros((2, V), np.uint8), "lm_head.scales": OTHER},
    "MLX": {H: np.zeros((V, 2), np.uint8), "lm_head.scales": OTHER},
    "FP8": {H: np.zeros((V, D), np.uint8), "lm_head.weight_scale": OTHER},
    "bytes": {H: np.zeros((V, D), np.uint8)},
}


@pytest.mark.parametrize("head", QUANTISED.values(), ids=QUANTISED)
def test_a_quantised_head_cannot_be_compared(tmp_path, head):
    path = write(tmp_path / "model", {**CONFIG, FLAG: True}, {E: EMBEDDING, **head})
    report = report_of(path)
    assert (report["holds"], report["transformers"]) == ("not comparable", None)
    assert (report["others"], report["verdict"]) == ("tied", "not known")
    assert report["not_measured"] == f"{next(iter(head))} is quantised"
    assert report["parameters"] is None
    write(tmp_path / "model", {**CONFIG, FLAG: False}, {E: EMBEDDING, **head})
    report = report_of(path)
    assert (report["transformers"], report["others"]) == (None, "untied")


PARTS_OF_QUANTISED = (
    *("qweight", "qzeros", "scales", "biases", "weight_packed", "weight_scale"),
    *("weight_scale_inv", "SCB", "weight_format", "absmax", "quant_map"),
)


@pytest.mark.parametrize("part", PARTS_OF_QUANTISED)
@pytest.mark.parametrize("kind", ["llama", "of no known kind"])
def test_a_part_beside_a_head_says_that_it_is_quantised(tmp_path, kind, part):
    """Its numbers may be floats: they are to be multiplied with the part, so none is compared."""
    config = {**CONFIG, "model_type": kind, FLAG: True}
    arrays = {E: EMBEDDING, H: EMBEDDING, f"lm_head.{part}": OTHER[:1]}
    report = report_of(write(tmp_path / "model", config, arrays))
    assert (report["holds"], report["verdict"]) == ("not comparable", "not known")
    assert report["parameters"] is None


def test_parameters_are_not_known_if_several_numbers_may_be_packed_into_one(tmp_path, run):
    stored = {E: EMBEDDING, "model.layers.0.mlp.up_proj.weight": np.zeros((4, 4), np.uint8)}
    path = write(tmp_path / "model", {**CONFIG, FLAG: True}, stored)
    assert report_of(path)["parameters"] is None
    sentence = (
        f"{path}: its parameters are not known: its matrices are not clear, it is quantised, or a "
        "bias is stored twice and differs\n"
    )
    assert_one_error_line(run("params", path), sentence)


@pytest.mark.parametrize(
    "width", ["word_embed_proj_dim", "embedding_size", "hidden_size", "n_embd", "d_model"]
)
def test_each_name_of_the_width_is_known(width):
    assert matrix_shape({"vocab_size": V, width: D}) == (V, D)
    both = {"hidden_size": 2 * D, "vocab_size": V, width: D}
    assert matrix_shape(both) == (V, 2 * D if width in ("n_embd", "d_model") else D)


def test_parameters_are_not_known_without_an_embedding_and_a_head(tmp_path):
    """The only matrix of tokens in the file is one that is never tied: a protein encoder's."""
    name = "model.protein_encoder.model.embeddings.word_embeddings.weight"
    config = {"model_type": "evolla", "architectures": ["EvollaForProteinText2Text"]}
    report = report_of(write(tmp_path / "model", config, {name: EMBEDDING}))
    assert report["parameters"] is None


@pytest.mark.parametrize(
    ("shape", "said"), [((), "one number"), ((5,), "5"), ((2, 2, 2), "2 x 2 x 2")]
)
def test_a_matrix_without_two_axes_is_named_though_config_json_has_no_sizes(tmp_path, shape, said):
    arrays = {E: np.ones(shape, np.float32), "model.more.weight": OTHER}
    report = report_of(write(tmp_path / "model", {"model_type": "llama"}, arrays))
    assert report["verdict"] == "not known"
    sentence = f"the shape of {E} is {said}, not that of a matrix [V, D]"
    assert report["not_measured"] == sentence


@pytest.mark.parametrize("head", [{}, QUANTISED["MLX"]], ids=["tied", "untied"])
def test_how_transformers_reads_a_quantised_embedding_is_not_known(tmp_path, head):
    embedding = {E: np.zeros((V, 2), np.uint8), "model.embed_tokens.scales": OTHER}
    path = write(tmp_path / "model", {**CONFIG, FLAG: not head}, embedding | head)
    report = report_of(path)
    assert (report["transformers"], report["others"]) == (None, "untied" if head else "tied")
    names = f"{H}, {E}" if head else E  # in the order of their letters
    assert report["not_measured"] == f"{names} is quantised"


def test_shards(tmp_path):
    path = write(tmp_path / "model", {**CONFIG, FLAG: True}, {})
    (tmp_path / "model" / WEIGHTS).unlink()
    (tmp_path / "model" / "a.safetensors").write_bytes(safetensors_content({E: EMBEDDING}))
    (tmp_path / "model" / "b.safetensors").write_bytes(safetensors_content({H: OTHER}))
    weight_map = {E: "a.safetensors", H: "b.safetensors"}
    (tmp_path / "model" / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    report = report_of(path)
    assert report["holds"] == "different"
    assert (report["embedding"]["file"], report["head"]["file"]) == tuple(weight_map.values())
    (tmp_path / "model" / "b.safetensors").unlink()
    refuses("b.safetensors", report_of, path)


# What is not clear

UNCLEAR = {  # a tensor that may be the missing matrix, by its name, beside the one that is there
    "a head by another name": ("unembed.weight", OTHER, E),
    "a transposed head": ("unembed.weight", OTHER.T.copy(), E),
    "an embedding by another name": ("table.weight", OTHER, H),
    "two embeddings": ("encoder.embed_tokens.weight", OTHER, E),
    "a head with more rows": (H, np.zeros((V + 1, D), np.float32), E),
    "a wrapped head": ("lm_head.original_module.weight", OTHER, E),
}


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(("name", "array", "beside"), UNCLEAR.values(), ids=UNCLEAR)
def test_what_is_not_clear_is_not_known(tmp_path, run, name, array, beside, flag):
    path = write(tmp_path / "model", {**CONFIG, FLAG: flag}, {beside: EMBEDDING, name: array})
    code, out, _ = run("check", path, "--json")
    assert code == 1
    [report] = json.loads(out)["models"]
    assert (report["holds"], report["transformers"], report["others"]) == (None, None, None)
    assert report["unclear"] == [name]
    sentence = f"these may be the matrices: {name}"
    if name == H:
        sentence = f"the shape of {H} is {V + 1} x {D}, but vocab_size is {V} in config.json"
    assert report["not_measured"] == sentence
    _, out, _ = run("check", path)
    assert name in out


def test_tables_of_positions_and_of_layers_make_nothing_unclear(tmp_path):
    others = {"transformer.wpe.weight": OTHER, "model.layers.10.embed_tokens.weight": OTHER}
    others["token_type.embeddings.weight"] = OTHER
    path = write(tmp_path / "model", {**CONFIG, FLAG: True}, {E: EMBEDDING, **others})
    assert report_of(path)["transformers"] == "tied"


def test_a_file_without_a_config_has_no_flag(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(safetensors_content(STORED["different"]))
    (tmp_path / WEIGHTS).write_bytes(safetensors_content(STORED["different"]))
    for path in (tmp_path / "a.safetensors", tmp_path):
        report = report_of(str(path))
        assert (report["flag"]["tied"], report["holds"]) == (None, "different")
        assert (report["transformers"], report["others"]) == (None, None)


UNUSUAL = {  # the names of both matrices, which are not those that transformers looks for
    "of Meta's files": ("tok_embeddings.weight", "output.weight"),
    "of a wrapped model": (f"_orig_mod.{E}", f"_orig_mod.{H}"),
    "with a prefix": (f"language_model.{E}", f"language_model.{H}"),
    "of another kind": ("transformer.wte.weight", H),
    "of another kind's head": (E, "embed_out.weight"),
}


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("names", UNUSUAL.values(), ids=UNUSUAL)
def test_matrices_by_unusual_names_are_told_but_not_how_they_are_read(tmp_path, run, names, flag):
    """transformers finds none of them, and makes random matrices in their place."""
    for arrays, holds in (
        ({names[0]: EMBEDDING, names[1]: OTHER}, "different"),
        ({names[0]: EMBEDDING, names[1]: EMBEDDING}, "equal"),
    ):
        path = write(tmp_path / "model", {**CONFIG, FLAG: flag}, arrays)
        code, out, _err = run("check", path, "--json")
        [report] = json.loads(out)["models"]
        assert (report["holds"], report["usual"]) == (holds, False)
        assert (report["transformers"], report["others"]) == (None, None)
        assert (code, report["verdict"]) == (1, "not known")
    assert "other names" in run("check", path)[1]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ("embed_tokens.weight", H)),  # as the model without its head is saved
        ({"model_type": "gpt2", "n_embd": D}, ("wte.weight", H)),
        (
            {
                "model_type": "llava",
                "text_config": {"vocab_size": V, "hidden_size": D, FLAG: False},
            },
            (f"language_model.{E}", f"language_model.{H}"),
        ),
        ({"model_type": "gpt_neox"}, ("gpt_neox.embed_in.weight", "embed_out.weight")),
    ],
)
def test_the_usual_names_of_a_kind(tmp_path, fields, names):
    arrays = dict(zip(names, (EMBEDDING, OTHER), strict=True))
    report = report_of(write(tmp_path / "model", {**CONFIG, FLAG: False, **fields}, arrays))
    assert (report["usual"], report["transformers"]) == (True, "untied")


@pytest.mark.parametrize(("kind", "transformers"), [("llama", "untied"), ("gemma", None)])
def test_a_text_model_of_a_kind_with_another_default_is_not_known(tmp_path, kind, transformers):
    """LLaVA takes a text model of any kind. Without a flag this part has the kind's default."""
    text = {"model_type": kind, "vocab_size": V, "hidden_size": D}
    arrays = {f"language_model.{E}": EMBEDDING, f"language_model.{H}": OTHER}
    config = {"model_type": "llava", "text_config": text, FLAG: False}
    report = report_of(write(tmp_path / "model", config, arrays))
    assert (report["transformers"], report["others"]) == (transformers, transformers)
    assert (report["flag"]["tied"] is None) == (transformers is None)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(("kind", "is_known"), [("mistral", True), ("opt", False), ("xyz", False)])
@pytest.mark.parametrize("has_embedding", [False, True])
def test_a_text_model_whose_embedding_has_another_name_is_not_known(
    tmp_path, kind, is_known, flag, has_embedding
):
    """OPT's is decoder.embed_tokens: transformers 5 has an error, and no remedy helps."""
    text = {"model_type": kind, "vocab_size": V, "hidden_size": D, FLAG: flag}
    config = {"model_type": "llava", "text_config": text, FLAG: flag}
    arrays = {f"language_model.{H}": EMBEDDING}
    if has_embedding:
        arrays[f"language_model.{E}"] = OTHER
    report = report_of(write(tmp_path / "model", config, arrays))
    assert report["flag"]["tied"] == flag
    assert (report["transformers"] is not None) == is_known
    if not is_known:
        assert report["mend"] == ""
        sentence = "LlavaForConditionalGeneration was not measured with a text_config of kind "
        assert report["not_measured"] == f"{sentence}'{kind}'"


@pytest.mark.parametrize(
    ("kind", "text_kind", "is_known"),
    [("glm46v", "glm4v_text", True), ("glm46v", "glm_other_text", False)],
)
def test_the_text_model_that_was_measured_may_have_a_name_of_another_kind(
    tmp_path, kind, text_kind, is_known
):
    text = {"model_type": text_kind, "vocab_size": V, "hidden_size": D}
    config = {"model_type": kind, "text_config": text, FLAG: False}
    arrays = {f"model.language_model.{E.removeprefix('model.')}": EMBEDDING, H: OTHER}
    report = report_of(write(tmp_path / "model", config, arrays))
    assert (report["transformers"] == "untied") == is_known
    if not is_known:
        assert text_kind in report["not_measured"]


@pytest.mark.parametrize(
    ("kind", "embedding", "beginning"),  # that of all names of a larger model of this kind
    [
        ("t5", "shared.weight", "transformer."),
        ("gemma3_text", E, "language_model."),
        ("llama", E, ""),
    ],
)
def test_one_tensor_of_a_larger_model_makes_transformers_4_look_elsewhere(
    tmp_path, kind, embedding, beginning
):
    """It finds neither matrix under its usual name then."""
    arrays = {embedding: EMBEDDING, H: OTHER, f"{beginning}more.weight": np.ones(3, np.float32)}
    config = {**CONFIG, "d_model": D, "model_type": kind, FLAG: False}
    report = report_of(write(tmp_path / "model", config, arrays))
    assert report["transformers"] == "untied"
    assert report["transformers4"] == (None if beginning else "untied")
    assert report["verdict"] == ("not known" if beginning else "untied")
    sentence = (
        f"beside '{beginning}more.weight' transformers 4 may not look for the matrices under their "
        "usual names"
    )
    assert report["not_measured"] == (sentence if beginning else None)


def test_a_base_model_has_no_tensor_whose_name_begins_with_its_prefix(tmp_path):
    """transformers 4 looks for model.embed_tokens.weight if any name begins with model."""
    arrays = {"embed_tokens.weight": EMBEDDING}
    config = {**CONFIG, FLAG: True}
    assert report_of(write(tmp_path / "model", config, arrays))["transformers4"] == "tied"
    assert report_of(str(tmp_path / "model"))["others"] is None
    arrays["models.weight"] = np.ones(3, np.float32)
    assert report_of(write(tmp_path / "model", config, arrays))["verdict"] == "not known"


def test_no_remedy_renames_an_embedding_and_leaves_the_other_tensors(tmp_path):
    """The head alone may have a wrong name. If the embedding has, so have all tensors."""
    text = {"model_type": "qwen2", "vocab_size": V, "hidden_size": D, FLAG: True}
    config = {"model_type": "qwen2_audio", "text_config": text, FLAG: True}
    for embedding, is_renamed in (
        (f"model.language_model.{E.removeprefix('model.')}", False),
        (E, True),
    ):
        of_kind = CONFIG if is_renamed else config
        head = f"model.{H}" if is_renamed else H
        arrays = {embedding: EMBEDDING, head: OTHER}
        report = report_of(write(tmp_path / "model", {**of_kind, FLAG: True}, arrays))
        assert report["verdict"] == "conflict"
        assert ("pop(" in report["mend"]) == is_renamed


METADATA = [  # of a safetensors file, and whether it is known what transformers 4 reads
    (None, True),
    ({"format": "pt"}, True),
    ({"format": "mlx", "step": "1"}, True),
    ({"format": "np"}, False),
    ({"format": "tf"}, False),
    ({"step": "1"}, False),
    ({}, False),
]
METADATA_AT_PLACES = []
for place in ("one file", "a shard", "the hub"):
    for metadata, is_known in METADATA:
        is_sample = place == "one file" or metadata in ({"format": "pt"}, {})
        marks = () if is_sample else pytest.mark.slow
        METADATA_AT_PLACES.append(
            pytest.param(place, metadata, is_known, marks=marks, id=f"{place}-{metadata}")
        )


@pytest.mark.parametrize(("place", "metadata", "is_known"), METADATA_AT_PLACES)
def test_transformers_4_refuses_other_metadata(tmp_path, request, place, metadata, is_known):
    other = safetensors_content({H: OTHER}, metadata=metadata)
    files = {"a.safetensors": safetensors_content({E: EMBEDDING}), "b.safetensors": other}
    files[INDEX] = json.dumps({"weight_map": {E: "a.safetensors", H: "b.safetensors"}}).encode()
    if place == "one file":
        files = {WEIGHTS: safetensors_content({E: EMBEDDING, H: OTHER}, metadata=metadata)}
    files["config.json"] = json.dumps({**CONFIG, FLAG: False}).encode()
    name = str(tmp_path)
    if place == "the hub":
        name = "owner/model"
        request.getfixturevalue("hub_server").put(name, files)
    for file, written in files.items():
        (tmp_path / file).write_bytes(written)
    report = report_of(name)
    assert report["transformers"] == "untied"
    assert report["transformers4"] == ("untied" if is_known else None)
    if not is_known:
        assert report["verdict"] == "not known"
        got = repr(metadata.get("format"))
        sentence = "transformers 4 may refuse a safetensors file with metadata that lack "
        assert report["not_measured"] == f'{sentence}"format": "pt": got {got}'


def test_a_head_that_is_one_with_another_matrix_than_the_embedding_is_not_tied(tmp_path):
    """Marian in transformers 5: the encoder's own embedding is the input's."""
    config = {"model_type": "marian", "architectures": ["MarianMTModel"], FLAG: True}
    config |= {"vocab_size": V, "d_model": D, "pad_token_id": V - 1}
    stored = {"model.encoder.embed_tokens.weight": EMBEDDING, H: OTHER}
    report = report_of(write(tmp_path / "model", config, stored))
    assert report["embedding"]["name"] == "model.encoder.embed_tokens.weight"
    assert report["transformers"] == "untied"
    assert [H, "model.shared.weight", "model.decoder.embed_tokens.weight"] in report["one"]


def test_a_file_of_a_model_without_its_head_is_not_said_to_be_an_error(tmp_path):
    """transformers 4 refuses such names only beside a tensor of the head."""
    config = {**CONFIG, "model_type": "bert", "architectures": ["BertForMaskedLM"]}
    arrays = {"embeddings.word_embeddings.weight": EMBEDDING}
    report = report_of(write(tmp_path / "model", config, arrays))
    assert (report["transformers4"], report["transformers"]) == (None, "tied")
    sentence = "was not measured with transformers 4 in this state of flags and files"
    assert report["not_measured"] == f"BertForMaskedLM {sentence}"


def test_an_output_matrix_that_is_joined_of_two_tensors_is_not_known(tmp_path):
    """MobileBERT's: without the second one, most of its numbers are random."""
    config = {**CONFIG, "model_type": "mobilebert", "architectures": ["MobileBertForMaskedLM"]}
    arrays = {"mobilebert.embeddings.word_embeddings.weight": EMBEDDING}
    for more in ({}, {"cls.predictions.decoder.weight": OTHER}):
        report = report_of(write(tmp_path / "model", {**config, FLAG: True}, arrays | more))
        assert report["verdict"] == "not known"
        assert report["transformers4"] is report["transformers"] is None


@pytest.mark.parametrize("name", ["tie_embedding", "tie_embeddings"])
def test_another_flag_that_ties_leaves_no_rule(tmp_path, name):
    """Lfm2 is tied by tie_embedding, whatever the usual flag says."""
    config = {**CONFIG, FLAG: False, name: True}
    report = report_of(write(tmp_path / "model", config, STORED["embedding"]))
    assert (report["verdict"], report["others"], report["conflict"]) == ("not known", None, "")


def test_transformers_4_fails_at_a_quantization_of_null(tmp_path):
    config = {**CONFIG, FLAG: True, "quantization_config": None}
    report = report_of(write(tmp_path / "model", config, STORED["embedding"]))
    assert (report["transformers4"], report["transformers"]) == (None, "tied")
    sentence = 'transformers 4 fails at "quantization_config": null in config.json'
    assert report["not_measured"] == sentence
    # Of a conflict there is no remedy then: version 4 may not read it.
    write(tmp_path / "model", {**config, FLAG: False}, STORED["embedding"])
    report = report_of(str(tmp_path / "model"))
    assert (report["verdict"], report["mends"]) == ("conflict", [])


@pytest.mark.parametrize(("version", "expected"), [("4.57.6", "tied"), ("5.24.0", None)])
def test_what_transformers_5_saved_and_4_cannot_load(tmp_path, version, expected):
    """Qwen3-MoE: the number of experts has another name."""
    known = kinds.read_class("qwen3_moe", "Qwen3MoeForCausalLM")
    config = {**CONFIG, "model_type": "qwen3_moe", "architectures": [known.name], FLAG: True}
    arrays = {known.names[0][0]: EMBEDDING}
    path = write(tmp_path / "model", config | {"transformers_version": version}, arrays)
    report = report_of(path)
    assert (report["transformers4"], report["transformers"]) == (expected, "tied")
    sentence = f"transformers 4 cannot load a {known.name} that transformers 5 saved"
    assert report["not_measured"] == (None if expected else sentence)


def test_matrices_beside_those_of_the_class_are_named(tmp_path):
    """Medusa's heads lie beside a whole model."""
    more = ["medusa_head.0.1.weight", "medusa_head.1.1.weight"]
    arrays = {E: EMBEDDING, H: OTHER, **dict.fromkeys(more[::-1], OTHER)}
    report = report_of(write(tmp_path / "model", {**CONFIG, FLAG: False}, arrays))
    assert report["verdict"] == "not known"
    sentence = f"beside the matrices there may be others: {', '.join(more)}"
    assert report["not_measured"] == sentence


@pytest.mark.parametrize("flag", [True, False])
def test_a_head_alone_beside_names_without_the_prefix_is_not_known_of_transformers_4(
    tmp_path, flag
):
    """transformers 4 says that the state dict is corrupted, and 5 does not."""
    arrays = {H: EMBEDDING, "layers.0.mlp.up_proj.bias": EMBEDDING[0]}
    report = report_of(write(tmp_path / "model", {**CONFIG, FLAG: flag}, arrays))
    assert (report["transformers4"], report["transformers"] is None) == (None, False)
    sentence = "transformers 4 may refuse a head beside names without model"
    assert report["not_measured"] == sentence


BIASES = [  # kind, class, name of the bias, whether the head is stored
    ("roberta", "RobertaForMaskedLM", "lm_head.bias", True),
    ("roberta", "RobertaForMaskedLM", "lm_head.bias", False),
    ("roberta", "RobertaForMaskedLM", "lm_head.decoder.bias", True),
    ("phi", "PhiForCausalLM", "lm_head.bias", True),
]


@pytest.mark.parametrize(("kind", "class_name", "name", "has_head"), BIASES)
@pytest.mark.parametrize("length", [V, V - 1])
def test_a_bias_of_the_head_with_another_length_is_not_known(
    tmp_path, kind, class_name, name, has_head, length
):
    """transformers 5 saves a RoBERTa so, whose vocabulary was resized. No version loads it."""
    embedding, head = kinds.read_class(kind, class_name).names[0]
    config = {"model_type": kind, "architectures": [class_name], "vocab_size": V}
    config |= {"hidden_size": D, FLAG: not has_head}
    arrays = {embedding: EMBEDDING, name: np.zeros(length, np.float32)}
    if has_head:
        arrays[head] = OTHER
    report = report_of(write(tmp_path / "model", config, arrays))
    if length == V:
        assert report["verdict"] == ("untied" if has_head else "tied")
    else:
        matrix = head if has_head else embedding
        assert (report["verdict"], report["transformers"]) == ("not known", None)
        assert report["not_measured"] == f"the shape of {name} is 39, and {matrix} has 40 rows"


def test_the_tie_of_the_version_that_ties_is_counted(tmp_path):
    """transformers 5 never ties BigBirdPegasusForCausalLM, and transformers 4 does."""
    known = kinds.read_class("bigbird_pegasus", "BigBirdPegasusForCausalLM")
    config = {"model_type": "bigbird_pegasus", "architectures": [known.name], "vocab_size": V}
    config |= {"d_model": D, FLAG: True}
    report = report_of(write(tmp_path / "model", config, {known.names[0][0]: EMBEDDING}))
    counts = report["parameters"]
    assert (counts["tied"]["total"], counts["untied"]["total"]) == (V * D, 2 * V * D)


PADDING = [  # kind, class, fields of config.json; whether the padding token is one that loads
    ("roberta", "RobertaForMaskedLM", {"pad_token_id": 5, "max_position_embeddings": 6}, True),
    ("roberta", "RobertaForMaskedLM", {"pad_token_id": 6, "max_position_embeddings": 6}, False),
    ("roberta", "RobertaForMaskedLM", {"pad_token_id": 511, "vocab_size": 600}, True),
    ("roberta", "RobertaForMaskedLM", {"pad_token_id": 512, "vocab_size": 600}, False),
    (
        "m2m_100",
        "M2M100ForConditionalGeneration",
        {"pad_token_id": 2000, "vocab_size": 9999},
        False,
    ),
    ("gpt2", "GPT2LMHeadModel", {"pad_token_id": 6, "n_positions": 6}, True),
    ("glm", "GlmForCausalLM", {}, False),  # without one, it is 151,329
    ("glm", "GlmForCausalLM", {"pad_token_id": None}, True),
    ("glm", "GlmForCausalLM", {"of_any_name": {"pad_token_id": 1}}, True),
]


@pytest.mark.parametrize(("kind", "class_name", "fields", "is_known"), PADDING)
def test_a_padding_token_beyond_a_table_is_not_known(tmp_path, kind, class_name, fields, is_known):
    known = kinds.read_class(kind, class_name)
    config = {"model_type": kind, "architectures": [class_name], FLAG: True, "vocab_size": V}
    config |= dict.fromkeys(("hidden_size", "n_embd", "d_model"), D) | fields
    embedding = np.ones((config["vocab_size"], D), np.float32)
    report = report_of(write(tmp_path / "model", config, {known.names[0][0]: embedding}))
    assert (report["transformers"] is not None) == is_known
    assert (report["not_measured"] is None) == is_known


def test_a_head_of_another_width_that_is_not_stored_is_not_counted(tmp_path, run):
    """RemBERT's embedding is narrower than its head."""
    known = kinds.read_class("rembert", "RemBertForMaskedLM")
    config = {**CONFIG, "model_type": "rembert", "architectures": [known.name], FLAG: False}
    config |= {"input_embedding_size": D - 1, "output_embedding_size": D + 1}
    arrays = {known.names[0][0]: EMBEDDING[:, 1:]}
    path = write(tmp_path / "model", config, arrays)
    assert report_of(path)["parameters"] is None
    assert_one_error_line(run("params", path), "its parameters are not known: ")
    arrays[known.names[0][1]] = np.ones((V, D + 1), np.float32)
    counts = report_of(write(tmp_path / "model", config, arrays))["parameters"]
    assert counts["tied"]["total"] == counts["untied"]["total"] == 2 * V * D


MEASURED = [
    *({"additional_vocab_size": 0}, {"torchscript": False}, {"asm": False}, {"legacy": True}),
    *({"tie_encoder_decoder": False}, {"decoder_vocab_size": V}, {"pad_token_id": V - 1}),
    *({"dtype": name} for name in (None, "float64", "float32", "float16", "bfloat16")),
    *({"torch_dtype": name} for name in (None, "float32")),
    *({"text_config": None}, {"pad_token_id": -1}, {"pruned_heads": {}}),
]


@pytest.mark.parametrize("fields", MEASURED, ids=str)
def test_settings_as_they_were_measured_are_known(tmp_path, fields):
    path = write(tmp_path / "model", {**CONFIG, FLAG: True, **fields}, STORED["embedding"])
    report = report_of(path)
    assert (report["verdict"], report["not_measured"]) == ("tied", None)


OTHER_VALUE = "{}, with its value in config.json, was not measured"
OTHER_PART = "config.json has {}, which LlamaForCausalLM has not"
OTHER_DTYPE = "{} in config.json was not measured"
NO_CLASS = "the kind llama, without one class that config.json names, was not measured"
NOT_MEASURED = {  # why it is not known -> fields of config.json
    "config.json does not say vocab_size, as a whole number": {"vocab_size": None},
    "config.json does not say hidden_size, as a whole number": {"hidden_size": 8.0},
    "GPT2LMHeadModel of kind llama was not measured": {"architectures": ["GPT2LMHeadModel"]},
    "the kind xyz, without one class that config.json names, was not measured": {
        "model_type": "xyz"
    },
    "XyzForCausalLM of kind xyz was not measured": {
        "model_type": "xyz",
        "architectures": ["XyzForCausalLM"],
    },
    "a model without a model_type in a config.json was not measured": {"model_type": None},
    OTHER_PART.format("text_config"): {"text_config": {FLAG: True, "vocab_size": 5}},
    OTHER_PART.format("decoder"): {"decoder": {"vocab_size": 5}},
    OTHER_PART.format("vlm_config"): {"vlm_config": {"vocab_size": 5}},
    OTHER_VALUE.format("tie_encoder_decoder"): {"tie_encoder_decoder": True},
    OTHER_VALUE.format("shared_embeddings"): {"shared_embeddings": True},
    OTHER_VALUE.format("additional_vocab_size"): {"additional_vocab_size": 2},
    OTHER_VALUE.format("torchscript"): {"torchscript": True},
    OTHER_VALUE.format("asm"): {"asm": True},
    OTHER_VALUE.format("legacy"): {"legacy": False},
    OTHER_VALUE.format("decoder_vocab_size"): {"decoder_vocab_size": V + 1},
    OTHER_VALUE.format("pruned_heads"): {"pruned_heads": {"0": [1]}},
    "config.json says that the model is quantised": {"quantization_config": {}},
    f"pad_token_id is {V}, and the vocabulary has {V} tokens": {"pad_token_id": V},
    f"pad_token_id is {V + 2}, and the vocabulary has {V} tokens": {
        "of_any_name": {"pad_token_id": V + 2}
    },
    OTHER_DTYPE.format("dtype 'float8_e4m3fn'"): {"dtype": "float8_e4m3fn"},
    OTHER_DTYPE.format("dtype 'auto'"): {"dtype": "auto"},
    OTHER_DTYPE.format("torch_dtype ['float32']"): {"torch_dtype": ["float32"]},
    OTHER_DTYPE.format("torch_dtype 'torch.float16'"): {"torch_dtype": "torch.float16"},
}
NOT_MEASURED_AT_ALL = list(NOT_MEASURED.items())
for two_classes in (["LlamaForCausalLM", "LlamaModel"], ["LlamaModel", "LlamaForCausalLM"]):
    NOT_MEASURED_AT_ALL.append((NO_CLASS, {"architectures": two_classes}))
for part in ("text_config", "decoder", "generator", "text_encoder"):
    for value in ({}, [], 0, "", "abc", True):
        NOT_MEASURED_AT_ALL.append((OTHER_PART.format(part), {part: value}))


@pytest.mark.parametrize(("sentence", "fields"), NOT_MEASURED_AT_ALL)
def test_settings_that_were_not_measured_are_not_known(tmp_path, sentence, fields):
    config = {**CONFIG, FLAG: True, **fields}
    config = {name: value for name, value in config.items() if value is not None}
    report = report_of(write(tmp_path / "model", config, STORED["embedding"]))
    assert (report["verdict"], report["transformers"]) == ("not known", None)
    assert report["not_measured"] == sentence


@pytest.mark.parametrize("place", ["text_config", "decoder", "generator"])
def test_a_nested_config_that_is_null_is_none(tmp_path, place):
    config = {**CONFIG, FLAG: True, place: None}
    assert report_of(write(tmp_path / "model", config, STORED["embedding"]))["verdict"] == "tied"


def test_matrices_that_are_equal_in_half_precision_may_be_one_in_memory(tmp_path):
    """transformers 5 compares them in the dtype of the model."""
    arrays = {**STORED["different"]}
    first, second = arrays
    arrays[second] = arrays[first] * np.float32(1 + 1e-6)
    report = report_of(write(tmp_path / "model", {**CONFIG, FLAG: True}, arrays))
    assert (report["holds"], report["transformers"]) == ("different", None)
    sentence = "the matrices differ by less than bfloat16 or float16 may round"
    assert report["not_measured"] == sentence
    assert report["mends"] == []


def test_how_the_code_of_a_repository_reads_the_files_is_not_known(tmp_path):
    config = {**CONFIG, FLAG: True, "model_type": "xyz", "auto_map": {}}
    path = write(tmp_path / "model", config, STORED["embedding"])
    assert report_of(path)["transformers"] is None


@pytest.mark.parametrize("nested", [None, True, False])
@pytest.mark.parametrize("flag", [None, True, False])
@pytest.mark.parametrize("holds", STORED)
def test_how_transformers_reads_a_kind_that_was_not_measured_is_not_known(
    tmp_path, run, flag, nested, holds
):
    """Models of texts and images, for example: some are tied by either flag. Nothing is advised."""
    text = {"vocab_size": V, "hidden_size": D, FLAG: nested}
    config = {"model_type": "not_measured", "text_config": text, FLAG: flag}
    for fields in (text, config):
        if fields[FLAG] is None:
            del fields[FLAG]
    report = report_of(write(tmp_path / "model", config, STORED[holds]))
    assert (report["transformers"], report["mend"]) == (None, "")


@pytest.mark.parametrize(
    ("name", "is_conflict"),
    [
        ("LlamaForCausalLM", True),
        ("GPT2LMHeadModel", True),
        ("LlamaModel", False),
        ("LlamaForSequenceClassification", False),
    ],
)
def test_a_model_without_a_head_by_its_class_needs_none(tmp_path, run, name, is_conflict):
    config = {**CONFIG, FLAG: False, "architectures": [name]}
    path = write(tmp_path / "model", config, STORED["embedding"])
    code, out, _err = run("check", path, "--json")
    [report] = json.loads(out)["models"]
    assert (code, report["verdict"] == "no head") == (int(is_conflict), not is_conflict)
    assert report["flag"]["class_without_head"] == (None if is_conflict else name)
    if not is_conflict:
        assert report["not_measured"] == f"{name} has no output matrix"
    for architectures in ([], [3], "LlamaModel", {}):
        write(tmp_path / "model", config | {"architectures": architectures}, STORED["embedding"])
        assert run("check", path)[0] == 1


@pytest.mark.parametrize(
    ("kind", "name", "embedding"),
    [
        ("electra", "ElectraForPreTraining", "electra.embeddings.word_embeddings.weight"),
        ("bert", "BertForNextSentencePrediction", "bert.embeddings.word_embeddings.weight"),
        ("t5", "T5EncoderModel", "shared.weight"),
        ("distilbert", "DistilBertModel", "embeddings.word_embeddings.weight"),
    ],
)
@pytest.mark.parametrize("flag", [True, False])
def test_a_class_without_an_output_matrix_has_no_head(tmp_path, run, kind, name, embedding, flag):
    """Whatever the files hold, and whatever the flag says: no program has a head of this class."""
    config = {**CONFIG, "model_type": kind, FLAG: flag, "architectures": [name]}
    for arrays in ({embedding: EMBEDDING}, {embedding: EMBEDDING, H: OTHER}):
        path = write(tmp_path / "model", config, arrays)
        code, out, _err = run("check", path, "--json")
        [report] = json.loads(out)["models"]
        assert (code, report["verdict"], report["conflict"]) == (0, "no head", "")
        assert report["others"] is None
        printed = " ".join(run("check", path)[1].split())  # a line may break anywhere
        assert f"{name}, which has no output matrix" in printed
        assert (f"leaves out {H}" in printed) == (H in arrays)


def test_a_class_that_was_not_measured_has_no_column_by_rule(tmp_path, run):
    """Its name says no output matrix, so programs that go by the flag may have none."""
    config = {**CONFIG, FLAG: False, "architectures": ["LlamaForRanking"]}
    path = write(tmp_path / "model", config, STORED["embedding"])
    code, out, _err = run("check", path, "--json")
    [report] = json.loads(out)["models"]
    assert (code, report["verdict"], report["others"]) == (1, "not known", None)


@pytest.mark.parametrize("kind", ["youtu", "funnel"])
def test_equal_copies_that_a_padding_token_makes_two_are_not_known(tmp_path, kind):
    """These classes set a row of the embedding to 0 before they compare it with the head."""
    [known] = [each for each in kinds.all_classes() if each.kind == kind]
    embedding, head = known.names[0]
    config = {"model_type": kind, "vocab_size": V, "hidden_size": D, "d_model": D, FLAG: True}
    config |= {"architectures": [known.name]}
    path = write(tmp_path / "model", config, {embedding: EMBEDDING, head: EMBEDDING})
    report = report_of(path)
    assert (report["verdict"], report["transformers"]) == ("not known", None)
    write(tmp_path / "model", config, {embedding: EMBEDDING, head: OTHER})
    assert report_of(path)["transformers"] == "untied"


def test_a_version_that_was_not_measured_but_has_the_class_is_not_known(tmp_path, run):
    """Evolla is in transformers 4, where it was not measured; Youtu is in transformers 5 alone."""
    path = write(tmp_path / "model", {**CONFIG, "model_type": "youtu"}, STORED["embedding"])
    code, out, _err = run("check", path)
    assert (code, "no such class" in out) == (0, True)
    evolla = kinds.read_class("evolla", "EvollaForProteinText2Text")
    assert ("4" in evolla.versions, "4" in evolla.rules) == (True, False)
    config = {**CONFIG, "model_type": "evolla", "architectures": [evolla.name], FLAG: True}
    write(tmp_path / "model", config, dict.fromkeys(evolla.names[0], EMBEDDING))
    report = report_of(path)
    assert (report["verdict"], report["transformers4"]) == ("not known", None)
    assert report["transformers"] is not None
    assert report["without_class"] == []
    assert report["not_measured"] == f"{evolla.name} was not measured with transformers 4"
    assert run("check", path)[0] == 1


def test_no_remedy_where_a_version_that_has_the_class_was_not_measured(tmp_path):
    """After it, `check` would not know whether this version reads what the files hold."""
    evolla = kinds.read_class("evolla", "EvollaForProteinText2Text")
    config = {**CONFIG, "model_type": "evolla", "architectures": [evolla.name], FLAG: False}
    path = write(tmp_path / "model", config, {evolla.names[0][0]: EMBEDDING})
    report = report_of(path)
    assert report["conflict"]
    assert report["mends"] == []


def test_no_rule_for_an_encoder_and_a_decoder_that_were_not_measured(tmp_path):
    """FSMT may have two vocabularies. Its head is another one than transformers names."""
    config = {"model_type": "fsmt", "architectures": ["FSMTForConditionalGeneration"]}
    config |= {"d_model": D, "src_vocab_size": V, "tgt_vocab_size": V - 1, FLAG: False}
    arrays = {"model.encoder.embed_tokens.weight": EMBEDDING}
    arrays["model.decoder.output_projection.weight"] = OTHER[1:]
    report = report_of(write(tmp_path / "model", config, arrays))
    assert (report["verdict"], report["others"], report["conflict"]) == ("not known", None, "")


def test_a_flat_config_of_a_model_of_images_and_text_is_said_to_be_one(tmp_path):
    """So are those of Qwen2-VL on the hub: the sizes are not in a text_config."""
    known = kinds.read_class("qwen2_vl", "Qwen2VLForConditionalGeneration")
    config = {**CONFIG, "model_type": "qwen2_vl", "architectures": [known.name], FLAG: True}
    path = write(tmp_path / "model", config, {known.names[0][0]: EMBEDDING})
    report = report_of(path)
    assert report["verdict"] == "not known"
    sentence = (
        f"config.json has hidden_size and no text_config: {known.name} was measured with "
        "hidden_size in text_config alone"
    )
    assert report["not_measured"] == sentence
    path = write(tmp_path / "model", config | {"text_config": {}}, {known.names[0][0]: EMBEDDING})
    sentence = "config.json does not say text_config.hidden_size, as a whole number"
    assert report_of(path)["not_measured"] == sentence


def test_two_shapes_that_config_json_contradicts_are_both_named(tmp_path):
    arrays = {E: EMBEDDING[1:], H: OTHER[1:]}
    report = report_of(write(tmp_path / "model", {**CONFIG, FLAG: False}, arrays))
    said = [
        f"the shape of {name} is {V - 1} x {D}, but vocab_size is {V} in config.json"
        for name in arrays
    ]
    assert report["not_measured"] == "; ".join(said)


def test_a_shape_that_config_json_contradicts_is_named_with_both_numbers(tmp_path, run):
    for head, sentence in (
        (OTHER[:-1], f"{V - 1} x {D}, but vocab_size is {V} in config.json"),
        (OTHER[:, :-1], f"{V} x {D - 1}, but hidden_size is {D} in config.json"),
        (
            np.ones((1234, D - 1), np.float32),
            f"1,234 x {D - 1}, but vocab_size is {V} and hidden_size is {D} in config.json",
        ),
        (OTHER.ravel(), f"{V * D}, not that of a matrix [V, D]"),
    ):
        path = write(tmp_path / "model", {**CONFIG, FLAG: False}, {E: EMBEDDING, H: head})
        report = report_of(path)
        assert report["verdict"] == "not known"
        assert report["not_measured"] == f"the shape of lm_head.weight is {sentence}"
        assert (report["holds"], report["parameters"]) == (None, None)
        assert run("check", path)[0] == 1


@pytest.mark.parametrize(
    "beside",
    [
        "pytorch_model.bin",
        "model-00002-of-00002.safetensors",
        "model.fp16.safetensors",
        "consolidated.00.pth",
        "model.pt",
        "last.ckpt",
    ],
)
def test_weights_beside_are_named_and_no_remedy_leaves_them_out(tmp_path, beside):
    """They may have the trained head that the files lack."""
    path = write(tmp_path / "model", {**CONFIG, FLAG: False}, STORED["embedding"])
    assert report_of(path)["mends"]
    (tmp_path / "model" / beside).write_bytes(safetensors_content({H: OTHER}))
    (tmp_path / "model" / "training_args.bin").write_bytes(b"")
    report = report_of(path)
    assert (report["not_read"], report["mends"]) == ([beside], [])
    assert report["conflict"].endswith(f"; not looked at: {beside} beside them")
    assert report["verdict"] == "conflict"
    # Of the file alone, nothing is beside.
    assert report_of(str(tmp_path / "model" / WEIGHTS))["not_read"] == []
    # Programs like vLLM read all safetensors files of a folder.
    assert report["others"] == (None if beside.endswith(".safetensors") else "error")


def test_all_weights_beside_are_named_in_the_order_of_their_names(tmp_path):
    path = write(tmp_path / "model", {**CONFIG, FLAG: False}, STORED["embedding"])
    beside = [f"{letter}.pt" for letter in "abcdefgh"]
    for file in beside[::-1]:
        (tmp_path / "model" / file).touch()
    report = report_of(path)
    assert report["not_read"] == beside
    assert report["conflict"].endswith(f"; not looked at: {', '.join(beside)} beside them")


def test_another_safetensors_file_is_read_by_vllm_if_no_index_leaves_it_out(tmp_path, run):
    """Mistral's folders have an index, and consolidated.safetensors beside the files in it."""
    model = tmp_path / "model"
    path = write(model, {**CONFIG, FLAG: False}, STORED["different"])
    (model / "consolidated.safetensors").write_bytes(safetensors_content({H: OTHER}))
    report = report_of(path)
    assert (report["verdict"], report["others"]) == ("not known", None)
    sentence = "vLLM-like programs may read consolidated.safetensors, which was not looked at"
    assert report["not_measured"] == sentence
    assert run("check", path)[0] == 1
    (model / WEIGHTS).rename(model / "model-00001-of-00001.safetensors")
    weight_map = dict.fromkeys((E, H), "model-00001-of-00001.safetensors")
    (model / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    report = report_of(path)
    assert (report["verdict"], report["others"]) == ("untied", "untied")


@pytest.mark.parametrize("beside", ["training.safetensors", "optimizer.pt", "rng_state_0.pth"])
def test_what_a_training_leaves_is_no_weights(tmp_path, beside):
    path = write(tmp_path / "model", {**CONFIG, FLAG: False}, STORED["different"])
    (tmp_path / "model" / beside).write_bytes(b"")
    report = report_of(path)
    assert (report["verdict"], report["not_read"]) == ("untied", [])


@pytest.mark.parametrize(
    ("kind", "bias", "second"),
    [
        ("bert", "cls.predictions.bias", "cls.predictions.decoder.bias"),
        ("roberta", "lm_head.bias", "lm_head.decoder.bias"),
    ],
)
def test_a_remedy_that_unties_bert_keeps_the_bias_of_its_head(tmp_path, kind, bias, second):
    """Untied, transformers 5 reads it by its second name, which older files do not have."""
    pytest.importorskip("safetensors.torch")
    known = next(each for each in kinds.all_classes() if each.name.lower() == f"{kind}formaskedlm")
    embedding, head = known.names[0]
    config = {"model_type": kind, "architectures": [known.name], "vocab_size": V, "hidden_size": D}
    arrays = {embedding: EMBEDDING, head: OTHER, bias: OTHER[:, 0].copy()}
    path = write(tmp_path / "model", config, arrays)
    mend = report_of(path)["mends"][0]
    assert mend["flags"] == {TOP: False}
    # The remedy is for one file: of several, none is given that would lose the bias.
    shard = tmp_path / "parts" / "model-00001-of-00001.safetensors"
    write(tmp_path / "parts", config, arrays)
    (tmp_path / "parts" / WEIGHTS).rename(shard)
    weight_map = dict.fromkeys(arrays, shard.name)
    (tmp_path / "parts" / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    of_parts = report_of(str(tmp_path / "parts"))
    assert (of_parts["verdict"], of_parts["mends"]) == ("conflict", [])
    exec(mend["python"].replace("DIRECTORY", path), {})
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, FLAG: False}))
    assert report_of(path)["verdict"] == "untied"
    np.testing.assert_array_equal(open_any(path).stored[second].values(), OTHER[:, 0])


def test_a_flag_inside_of_a_model_that_was_not_measured_counts(tmp_path):
    """TrOCR as transformers saves it: the decoder's flag decides."""
    config = {
        "model_type": "vision-encoder-decoder",
        "architectures": ["VisionEncoderDecoderModel"],
    }
    path = write(
        tmp_path / "model", {**config, FLAG: False, "decoder": {FLAG: True}}, {E: EMBEDDING}
    )
    flag = report_of(path)["flag"]
    assert (flag["said"], flag["tied"]) == ({TOP: False, "decoder": True}, None)


def test_a_whole_file_beside_an_index_is_not_known(tmp_path, run):
    """transformers reads the whole file. Another program may read those of the index."""
    path = write(tmp_path / "model", {**CONFIG, FLAG: False}, STORED["different"])
    assert run("check", path)[0] == 0
    shard = "model-00001-of-00001.safetensors"
    (tmp_path / "model" / shard).write_bytes(safetensors_content(STORED["embedding"]))
    (tmp_path / "model" / INDEX).write_text(json.dumps({"weight_map": {E: shard}}))
    report = report_of(path)
    assert (report["verdict"], report["transformers"], report["others"]) == (
        "not known",
        "untied",
        None,
    )
    sentence = f"vLLM-like programs may read {INDEX}, which was not looked at"
    assert report["not_measured"] == sentence
    assert run("check", path)[0] == 1


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2_audio", "kimi_linear", "gemma3"])
def test_the_printed_python_of_a_remedy_can_be_pasted(tmp_path, run, monkeypatch, kind, columns):
    """No line of it is broken or indented: what is printed runs, and ends the conflict."""
    pytest.importorskip("safetensors.torch")
    monkeypatch.setenv("COLUMNS", str(columns))
    known = next(each for each in kinds.all_classes() if each.kind == kind)
    embedding, head = known.names[0]
    text = {"vocab_size": V, "hidden_size": D, "n_embd": D, "pad_token_id": 0}
    config = {**text, "model_type": kind, "text_config": text, "architectures": [known.name]}
    if "text_config" not in known.places:
        del config["text_config"]
    programs = 0
    for flag in (True, False):
        for arrays in ({embedding: EMBEDDING, head: OTHER}, {head: EMBEDDING}):
            path = write(tmp_path / "model", {**config, FLAG: flag}, arrays)
            if "text_config" in config:
                text[FLAG] = flag
            report = report_of(path)
            _code, out, _err = run("check", path)
            for mend in report["mends"]:
                if not mend["python"]:
                    continue
                lines = out.splitlines()
                start = lines.index("import os")
                end = next(n for n in range(start, len(lines)) if lines[n].startswith("os.replace"))
                program = "\n".join(lines[start : end + 1])
                assert program == mend["python"]
                exec(compile(program.replace("DIRECTORY", path), "printed", "exec"), {})
                programs += 1
    assert programs > 0


def test_files_of_torch(tmp_path, run):
    """A tied model is one place in the file by two names, so that nothing is wasted."""
    torch = pytest.importorskip("torch")
    embedding = torch.from_numpy(EMBEDDING)
    for head, holds, wasted in (
        (embedding, "equal", 0),
        (embedding.clone(), "equal", 4 * V * D),
        (torch.from_numpy(OTHER), "different", 0),
    ):
        path = write(tmp_path / "model", {**CONFIG, FLAG: True}, {})
        (tmp_path / "model" / WEIGHTS).unlink()
        torch.save({E: embedding, H: head}, tmp_path / "model" / "pytorch_model.bin")
        report = report_of(path)
        assert (report["holds"], report["wasted_bytes"]) == (holds, wasted)
        assert ("two names" in run("check", path)[1]) == (holds == "equal" and not wasted)


@pytest.mark.parametrize("is_inside", [False, True])
def test_what_transformers_makes_of_a_file_of_torch_may_be_not_known(tmp_path, is_inside):
    """One matrix with two names stays one in memory. A dict in a dict is not found."""
    torch = pytest.importorskip("torch")
    embedding = torch.from_numpy(EMBEDDING)
    state = {E: embedding} if is_inside else {E: embedding, H: embedding}
    path = write(tmp_path / "model", {**CONFIG, FLAG: is_inside}, {})
    (tmp_path / "model" / WEIGHTS).unlink()
    saved = {"model_state_dict": state} if is_inside else state
    torch.save(saved, tmp_path / "model" / "pytorch_model.bin")
    report = report_of(path)
    assert report["verdict"] == "not known"
    assert (report["transformers4"], report["transformers"]) == (None, None)
    if is_inside:
        assert report["others"] is None
        sentence = "the state dict is inside of another dict, where transformers does not look for "
        assert report["not_measured"] == f"{sentence}it"
    else:
        sentence = f"{E} and {H} are one matrix in the file, which stays one in memory until the "
        assert report["not_measured"] == f"{sentence}model is saved"


@pytest.mark.parametrize("flag", [True, False])
def test_matrices_that_overlap_in_a_file_of_torch_are_not_known(tmp_path, flag):
    """transformers keeps them in one memory: a step changes a part of both."""
    torch = pytest.importorskip("torch")
    rows = torch.from_numpy(rng.normal(size=(V + 1, D)).astype(np.float32))
    path = write(tmp_path / "model", {**CONFIG, FLAG: flag}, {})
    (tmp_path / "model" / WEIGHTS).unlink()
    torch.save({E: rows[:-1], H: rows[1:]}, tmp_path / "model" / "pytorch_model.bin")
    report = report_of(path)
    assert (report["transformers4"], report["transformers"], report["mends"]) == (None, None, [])
    assert report["not_measured"] == f"{E} and {H} share a part of their memory in the file"


@pytest.mark.parametrize("flag", [True, False])
def test_a_transposed_view_of_one_memory_is_not_known(tmp_path, flag):
    """In transformers 5 they are two parameters in one memory."""
    torch = pytest.importorskip("torch")
    square = torch.from_numpy(rng.normal(size=(D, D)).astype(np.float32))
    path = write(tmp_path / "model", {**CONFIG, "vocab_size": D, FLAG: flag}, {})
    (tmp_path / "model" / WEIGHTS).unlink()
    torch.save({E: square, H: square.T}, tmp_path / "model" / "pytorch_model.bin")
    report = report_of(path)
    assert (report["transformers4"], report["transformers"], report["mends"]) == (None, None, [])
    sentence = f"{E} and {H} have one memory in the file, in another order"
    assert report["not_measured"] == sentence


@pytest.mark.parametrize("is_one", [True, False])
def test_one_memory_of_an_encoder_and_a_decoder_leaves_the_head_apart(tmp_path, run, is_one):
    """The layout of the files of flan-T5: one embedding by three names, and another head."""
    torch = pytest.importorskip("torch")
    config = {"model_type": "t5", "vocab_size": V, "d_model": D, FLAG: False}
    config |= {"architectures": ["T5ForConditionalGeneration"]}
    path = write(tmp_path / "model", config, {})
    (tmp_path / "model" / WEIGHTS).unlink()
    embedding = torch.from_numpy(EMBEDDING)
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    head = embedding if is_one else torch.from_numpy(OTHER)
    state = {**dict.fromkeys(names, embedding), H: head}
    torch.save(state, tmp_path / "model" / "pytorch_model.bin")
    report = report_of(path)
    assert report["verdict"] == ("not known" if is_one else "untied")
    counted = report["parameters"]
    assert counted["untied"]["total"] == 2 * V * D
    assert counted["difference"] == V * D
    _code, out, _err = run("params", path, "--json")
    assert json.loads(out)["untied"]["total"] == 2 * V * D


def test_other_files_of_weights_are_not_those_that_are_judged(tmp_path, run):
    path = write(tmp_path / "model", {**CONFIG, "transformers_weights": "other.safetensors"}, {})
    sentence = (
        f"{path}: config.json names other files of weights, by transformers_weights; these are not "
        "read\n"
    )
    assert_one_error_line(run("check", path), sentence)
    write(tmp_path / "model", {**CONFIG, "transformers_weights": ""}, {})
    assert_one_error_line(run("check", path), sentence)
    # null names none.
    write(tmp_path / "model", {**CONFIG, FLAG: True, "transformers_weights": None}, STORED["head"])
    assert report_of(path)["holds"] == "head"


def test_the_code_of_a_model_is_not_looked_at(tmp_path, run):
    path = write(tmp_path / "model", {**CONFIG, FLAG: True}, STORED["embedding"])
    assert "auto_map" not in output(run, "check", path)
    path = write(tmp_path / "model", {**CONFIG, FLAG: True, "auto_map": {}}, STORED["embedding"])
    code = "the code that auto_map in config.json names"
    out = " ".join(output(run, "check", path).split())  # a line may break anywhere
    assert f"Not looked at: {code}" in out
    assert report_of(path)["not_looked_at"] == f"{code}; {ties.REST_OF_FILES}"


def test_biases_that_a_file_of_nano_gpt_does_not_have_are_not_counted(tmp_path):
    torch = pytest.importorskip("torch")
    state = {
        "transformer.wte.weight": torch.ones(V, D),
        "transformer.ln_f.weight": torch.ones(D),
        "lm_head.weight": torch.ones(V, D),
    }
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": D, "block_size": 4, "vocab_size": V}
    torch.save({"model": state, "model_args": {**sizes, "bias": False}}, tmp_path / "ckpt.pt")
    report = report_of(str(tmp_path / "ckpt.pt"))
    assert (report["holds"], report["parameters"]["tied"]["total"]) == ("equal", V * D + D)


# The flag

FLAGS = {  # config.json -> is it tied, and where that is said
    "said": ({FLAG: True}, True, FLAG),
    "by default": ({}, False, None),
    "default of another kind": ({"model_type": "gemma3"}, True, None),
    "unknown kind": ({"model_type": "xyz"}, None, None),
    "no kind": ({"model_type": ["llama"]}, None, None),
    "nested, and a default": (
        {"model_type": "gemma3", "text_config": {FLAG: False}},
        None,
        f"text_config.{FLAG}",
    ),
    "nested, untied": (
        {"model_type": "xyz", "text_config": {FLAG: False}},
        False,
        f"text_config.{FLAG}",
    ),
    "nested": (
        {"model_type": "xyz", "text_config": {FLAG: True}},
        True,
        f"text_config.{FLAG}",
    ),
}


@pytest.mark.parametrize(("fields", "tied", "place"), FLAGS.values(), ids=FLAGS)
def test_where_the_flag_is(tmp_path, fields, tied, place):
    path = write(tmp_path / "model", CONFIG | fields, STORED["embedding"])
    flag = report_of(path)["flag"]
    assert (flag["tied"], flag["place"]) == (tied, place)


def test_a_number_that_only_python_writes(tmp_path):
    """transformers 4 writes Infinity into the config.json of Mamba2."""
    path = write(tmp_path / "model", {**CONFIG, FLAG: True, "limit": 9}, STORED["embedding"])
    config_file = tmp_path / "model" / "config.json"
    config_file.write_text(config_file.read_text().replace('"limit": 9', '"limit": Infinity'))
    assert report_of(path)["verdict"] == "tied"


def test_two_flags_that_differ_are_a_conflict_where_programs_read_another_one(tmp_path, run):
    """transformers 4 goes by the flag of text_config, and transformers 5 by that of the whole."""
    text = {"vocab_size": V, "hidden_size": D, FLAG: False}
    config = {"model_type": "gemma3", "text_config": text, FLAG: True}
    stored = {"language_model.model.embed_tokens.weight": EMBEDDING}
    path = write(tmp_path / "model", config, stored)
    code, out, _err = run("check", path, "--json")
    [report] = json.loads(out)["models"]
    assert (code, report["verdict"]) == (1, "conflict")
    assert (report["transformers4"], report["transformers"]) == ("random head", "tied")
    assert report["others"] is None
    assert report["mends"][0]["flags"] == {TOP: True, "text_config": True}
    text[FLAG] = True
    write(tmp_path / "model", config, stored)
    assert run("check", path)[0] == 0


@pytest.mark.parametrize("value", ["true", 1, [], None])
def test_a_flag_that_is_none_is_refused(tmp_path, run, value):
    """Not even null is one: transformers 4 reads it, most classes of transformers 5 refuse it."""
    path = write(tmp_path / "model", {**CONFIG, FLAG: value}, STORED["embedding"])
    assert_one_error_line(run("check", path), FLAG)
    write(tmp_path / "model", {**CONFIG, "text_config": {FLAG: value}}, STORED["embedding"])
    assert_one_error_line(run("check", path), FLAG)


ESCAPES = "\x1b]0;title\x07\x1b[2J\u202e"
HOSTILE = {  # fields of config.json, and the name of a tensor, which a terminal must not obey
    "kind": ({"model_type": ESCAPES}, E),
    "class": ({"architectures": [ESCAPES + "Model"], FLAG: False}, E),
    "a matrix": ({}, f"{ESCAPES}.embed_tokens.weight"),
    "an unclear tensor": ({}, f"{ESCAPES}.table"),
}


@pytest.mark.parametrize("command", ["check", "params"])
@pytest.mark.parametrize(("fields", "name"), HOSTILE.values(), ids=HOSTILE)
def test_the_names_of_a_file_are_printable(tmp_path, run, command, fields, name):
    path = write(tmp_path / "model", CONFIG | fields, {name: EMBEDDING})
    _code, out, err = run(command, path)
    assert all(line.isprintable() for line in (out + err).splitlines())
    assert out + err != ""


# Several models, and what cannot be read


def test_what_cannot_be_read_is_a_line_and_the_others_are_told(tmp_path, run, checkpoint, untied):
    write(tmp_path / "bad", {**CONFIG, FLAG: True}, STORED["different"])
    (tmp_path / "pickle").mkdir()
    (tmp_path / "pickle" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pickle" / "pytorch_model.bin").write_bytes(b"PK")
    names = [checkpoint, str(tmp_path / "pickle"), untied, str(tmp_path / "bad")]
    code, out, err = run("check", *names, "--json")
    assert code == 2
    assert err.count("\n") == 1
    assert "pytorch_model.bin" in err
    read = {report["model"]: report.get("transformers") for report in json.loads(out)["models"]}
    assert read == dict(zip(names, ["tied", None, "untied", "untied"], strict=True))
    assert run("check", checkpoint, names[-1])[0] == 1
    table = output(run, "check", checkpoint, untied)
    assert table.split().count("tied") > 2  # "untied" is another word


# Hostile files

NAMES = st.sampled_from([E, H, "lm_head", "a", "", ".weight", "h.0.wte.weight", "lm_head.scales"])
# A few characters of each kind: hypothesis would make a table of all characters.
TEXT = st.text("aé.0_ \n\0\x1b\u202e\ufffe\U0001f600", max_size=3)


def containers(values):
    return st.lists(values, max_size=3) | st.dictionaries(TEXT, values)


LEAVES = st.none() | st.booleans() | st.integers() | TEXT
JSON = st.recursive(LEAVES, containers, max_leaves=8)
SHAPES = st.lists(st.integers(0, 3), max_size=3)
FIELDS = ("model_type", "vocab_size", "hidden_size", FLAG, "text_config", "num_hidden_layers")
FIELDS += ("architectures", "auto_map")
CONFIGS = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON | st.integers(1, 3)))


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(shapes=st.dictionaries(NAMES, SHAPES, max_size=4), config=CONFIGS, entry=JSON)
def test_any_config_and_header_is_told_or_refused(tmp_path_factory, shapes, config, entry):
    arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    directory = tmp_path_factory.mktemp("hostile")
    path = write(directory, config, arrays)
    for header in (None, json.dumps({E: entry}).encode()):
        if header is not None:
            (directory / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header)
        for command in (report_of, lambda path: open_any(path).stored):
            with suppress(TiedGPTError):  # whose message is one line, whatever is in it
                command(path)


@hypothesis.settings(max_examples=30, deadline=None, derandomize=True, database=None)
@hypothesis.given(length=st.integers(0, 40) | st.just(1 << 40), rest=st.binary(max_size=40))
def test_any_bytes_of_a_hub_are_a_header_or_refused(length, rest):
    content = length.to_bytes(8, "little") + rest

    class Hub:
        label = "hub"

        def read_range(self, file, start, stop):
            return content[start:stop], len(content)

    with suppress(TiedGPTError):
        assert headers.fetch_header(Hub(), WEIGHTS).tensors == {}


def test_a_long_header_is_read_in_bounded_memory_or_refused(tmp_path):
    path = Path(write(tmp_path / "model", CONFIG, {}))
    header = b"[" + b"[]," * 20_000 + b"[]]"
    (path / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header)
    assert peak_memory(refuses, "JSON object", report_of, str(path)) < 30 * len(header)
    (path / WEIGHTS).write_bytes((headers.MAX_HEADER + 1).to_bytes(8, "little") + bytes(99))
    refuses("header", report_of, str(path))


# On the hub

BIG = 600  # rows, of which a sample is compared


class BigModel:
    """A model on the hub with an embedding of BIG rows."""

    def __init__(self, hub):
        self.hub = hub
        self.embedding = rng.normal(size=(BIG, D)).astype(np.float32)

    def put(self, head: np.ndarray | None, **config) -> str:
        """Put it on the hub, with this head or with none. Returns its name there."""
        arrays = {E: self.embedding, "model.norm.weight": np.ones(D, np.float32)}
        if head is not None:
            arrays[H] = head
        config = {**CONFIG, "vocab_size": BIG, **config}
        files = {"config.json": json.dumps(config).encode(), WEIGHTS: safetensors_content(arrays)}
        self.hub.put("owner/model", files)
        self.hub.requests.clear()
        return "owner/model"


@pytest.fixture
def big(hub_server):
    return BigModel(hub_server)


def test_the_hub_is_asked_for_headers_and_rows_alone(hub_server, big, run):
    name = big.put(big.embedding, **{FLAG: True})
    [report] = answer(run, "check", name)["models"]
    assert (report["holds"], report["equal_rows"]) == ("equal", 32)
    assert report["parameters"]["tied"]["total"] == BIG * D + D
    assert {each.file for each in hub_server.requests} == {"config.json", WEIGHTS}
    length, header, *rows = [each for each in hub_server.requests if each.host == "localhost"]
    assert (length.start, length.sent, header.start) == (0, 8, 8)
    assert header.sent == int.from_bytes(
        hub_server.files["owner/model", COMMIT][WEIGHTS][:8], "little"
    )
    assert [each.sent for each in rows] == 16 * [4 * D * headers.ROWS_AT_A_PLACE]
    shown = output(run, "check", name)
    assert "32 of 32 sampled" in shown


def test_matrices_on_the_hub_that_are_equal_in_half_precision_may_be_one_in_memory(big, run):
    name = big.put(big.embedding * np.float32(1 + 1e-6), **{FLAG: True})
    _, out, _ = run("check", name, "--json")
    [report] = json.loads(out)["models"]
    assert (report["holds"], report["equal_rows"], report["compared_rows"]) == ("different", 0, 32)
    assert report["transformers"] is None
    assert "bfloat16" in report["not_measured"]


def test_a_model_with_one_matrix_needs_no_rows(hub_server, big, run):
    name = big.put(None, **{FLAG: True})
    [report] = answer(run, "check", name)["models"]
    assert (report["holds"], report["transformers"]) == ("embedding", "tied")
    assert hub_server.asked(WEIGHTS) == [0, 8]


def test_a_header_that_does_not_fit_its_file_is_not_asked_for(hub_server, big, run):
    name = big.put(None)
    header = (1000).to_bytes(8, "little")
    hub_server.files["owner/model", COMMIT][WEIGHTS] = header + bytes(99)
    result = run("check", name)
    assert_one_error_line(result, "truncated")
    assert f"owner/model/{WEIGHTS}: " in result[2]
    assert hub_server.asked(WEIGHTS) == [0]


def test_a_file_that_the_hub_loses_between_two_requests_is_a_line(hub_server, big, run):
    name = big.put(None, **{FLAG: True})
    files = hub_server.files["owner/model", COMMIT]
    hub_server.faults[WEIGHTS] = [Fault(before=lambda: files.pop(WEIGHTS))]
    assert_one_error_line(run("check", name), f"owner/model/{WEIGHTS} is not there any more (404)")


def test_a_config_json_that_is_large_is_not_read(hub_server, big, run, monkeypatch):
    monkeypatch.setattr(headers, "MAX_TEXT", 50)
    assert_one_error_line(run("check", big.put(None)), "bytes; expected at most 50")


def test_a_repository_that_has_no_safetensors_says_where_a_file_of_torch_is_read(hub_server, run):
    """Its config.json says what is known of it."""
    config = json.dumps({**CONFIG, FLAG: True}).encode()
    hub_server.put("owner/model", {"config.json": config, "pytorch_model.bin": bytes(9)})
    model = open_any("owner/model")
    assert not model.has_weights
    with pytest.raises(TiedGPTError) as caught:
        model.saved  # noqa: B018
    assert str(caught.value).partition("/")[2] == (  # after the hub's address
        f"owner/model has neither {WEIGHTS} nor {INDEX}; a pytorch_model.bin is read only if it is "
        "here, with its config.json: give their directory"
    )


@pytest.mark.parametrize("row", [0, BIG - 1])
def test_another_row_at_the_ends_is_seen(big, run, row):
    head = big.embedding.copy()
    head[row] = 0
    code, out, _err = run("check", big.put(head, **{FLAG: True}), "--json")
    [report] = json.loads(out)["models"]
    assert (code, report["holds"]) == (1, "different")


def test_a_mistyped_path_is_not_blamed_on_the_hub_alone(hub_server, run, monkeypatch):
    """weights/gpt-2 may be a path or a name of the hub."""
    result = run("check", "weights/gpt-2")
    assert_one_error_line(result, "error: weights/gpt-2 is not on this machine; 127.0.0.1:")
    sentence = "/weights/gpt-2: no such repository, or no config.json in it (404)\n"
    assert result[2].endswith(sentence)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    result = run("check", "weights/gpt-2")
    assert_one_error_line(result, "weights/gpt-2 is not on this machine; ")
    assert "127.0.0.1:9" in result[2]
    assert result[2].endswith("; without the hub, give a path\n")


def test_shards_on_the_hub(hub_server, run):
    norm = "model.norm.weight"
    weight_map = {E: "a.safetensors", H: "b.safetensors", norm: "a.safetensors"}
    files = {
        "config.json": json.dumps({**CONFIG, FLAG: True}).encode(),
        INDEX: json.dumps({"weight_map": weight_map}).encode(),
        "a.safetensors": safetensors_content({E: EMBEDDING, norm: EMBEDDING[0]}),
        "b.safetensors": safetensors_content({H: OTHER}),
    }
    hub_server.put("owner/model", files)
    code, out, _err = run("check", "owner/model", "--json")
    assert (code, json.loads(out)["models"][0]["holds"]) == (1, "different")
    assert hub_server.asked("a.safetensors")[:2] == [0, 8], "the header is asked for once"
    assert 0 not in hub_server.asked("a.safetensors")[1:]
    lacking = {**files, "b.safetensors": safetensors_content({})}
    with_another = {**files, "b.safetensors": safetensors_content({H: OTHER, "a": OTHER})}
    twice = {**files, "b.safetensors": safetensors_content({H: OTHER, E: OTHER})}
    del files["b.safetensors"]
    for others in (lacking, with_another, twice):
        hub_server.put("owner/model", others)
        result = run("check", "owner/model")
        assert_one_error_line(result, "do not agree on tensor")
        assert f"owner/model/{INDEX}" in result[2]
    hub_server.put("owner/model", files)
    sentence = f"owner/model has no b.safetensors, which {INDEX} names (404)\n"
    assert_one_error_line(run("check", "owner/model"), sentence)
    hub_server.put("owner/model", {**files, INDEX: b"{}"})
    assert_one_error_line(run("check", "owner/model"), f"owner/model/{INDEX}: ")


def test_the_model_of_a_gpt2_repository(hub_server, run):
    [report] = answer(run, "check", NAME)["models"]
    assert (report["flag"]["kind"], report["transformers"]) == ("gpt2", "tied")
    assert report["embedding"]["shape"] == [HUB_CONFIG.vocab_size, HUB_CONFIG.n_embd]


FAULTS = {  # file, faults, what the line names if it is an error
    "503 once": ("config.json", [Fault(503)], None),
    "cut once": (WEIGHTS, [Fault(stop=3)], None),
    "no ranges": (WEIGHTS, [Fault(no_range=True)] * 9, "parts of files"),
    "no range at the beginning": (WEIGHTS, [Fault(no_range=True)], None),
    "another range": (WEIGHTS, [Fault(headers={"Content-Range": "bytes 9-19/99"})], "parts of"),
    "cut": (WEIGHTS, [Fault(stop=3)] * 9, "6 attempts"),
    "gated": ("config.json", [Fault(401)], "HF_TOKEN"),
}


@pytest.mark.parametrize(("file", "faults", "message"), FAULTS.values(), ids=FAULTS)
def test_a_hub_that_fails(hub_server, big, run, file, faults, message):
    name = big.put(big.embedding, **{FLAG: True})
    hub_server.faults[file] = list(faults)
    result = run("check", name)
    if message is None:
        assert result[0] == 0
    else:
        assert_one_error_line(result, message)


def test_nothing_is_asked_for_offline(hub_server, big, run, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_one_error_line(run("check", big.put(None)), "owner/model")
    assert hub_server.requests == []
    assert_one_error_line(run("check", "no-such-thing"), "no-such-thing")


def test_a_folder_with_config_json_alone(tmp_path, run):
    """It is read, but what the files hold is not known: the exit code is 1."""
    config = {**CONFIG, FLAG: True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    [report] = json.loads(run("check", str(tmp_path), "--json")[1])["models"]
    assert (report["verdict"], report["holds"], report["tensors"]) == ("not known", None, 0)
    assert report["not_measured"] == "config.json alone was read"
    assert report["not_looked_at"] is None
    assert report["flag"]["tied"] is True
    for path in (tmp_path, tmp_path / "config.json"):
        code, out, _ = run("check", str(path))
        assert code == 1
        assert "config.json alone was read, and says tied" in " ".join(out.split())
    # Weights that are not read are no missing ones.
    (tmp_path / "model.gguf").touch()
    assert_one_error_line(run("check", str(tmp_path)), "model.gguf")


def test_one_version_is_no_verdict_for_another_that_has_the_class(tmp_path, monkeypatch):
    """transformers 4 has LlamaForCausalLM, and may read these files in another way than 5."""
    llama = kinds.read_class("llama", "LlamaForCausalLM")
    not_measured = [None for _ in llama.names]
    of_version_5 = replace(llama, rules={**llama.rules, "4": not_measured})
    monkeypatch.setattr(ties, "model_class", lambda config: of_version_5)
    report = report_of(write(tmp_path / "model", {**CONFIG, FLAG: False}, STORED["different"]))
    assert (report["transformers4"], report["transformers"]) == (None, "untied")
    assert report["verdict"] == "not known"


def test_a_version_without_the_class_leaves_the_verdict_of_the_other(tmp_path):
    """transformers 4 has no Afmoe."""
    config = {**CONFIG, "model_type": "afmoe", "architectures": ["AfmoeForCausalLM"], FLAG: False}
    report = report_of(write(tmp_path / "model", config, STORED["different"]))
    assert (report["transformers4"], report["transformers"]) == (None, "untied")
    assert report["verdict"] == "untied"
    assert report["not_measured"] == "transformers 4 has no AfmoeForCausalLM"
    assert report["without_class"] == ["transformers4"]


def test_not_known_says_why_for_each_set_of_names_that_was_not_measured(tmp_path):
    """MarianMTModel has a set of names without a rule: it was not measured."""
    known = kinds.read_class("marian", "MarianMTModel")
    rules = zip(known.names, known.rules["5"], strict=True)
    unmeasured_names = next(names for names, rule in rules if rule is None)
    config = {"model_type": "marian", "architectures": ["MarianMTModel"], FLAG: True}
    config |= {"vocab_size": V, "d_model": D, "pad_token_id": V - 1}
    stored = dict.fromkeys(unmeasured_names, EMBEDDING)
    report = report_of(write(tmp_path / "model", config, stored))
    assert report["transformers"] is None
    sentence = "was not measured with transformers 5 in this state of flags and files"
    assert report["not_measured"] == f"MarianMTModel {sentence}"


# params


def test_params_of_another_kind_on_the_hub(hub_server, big, run):
    name = big.put(None, model_type="gpt_neox")
    document = answer(run, "params", name)
    assert document["tied"]["total"] == BIG * D + D
    assert document["untied"]["total"] == 2 * BIG * D + D
    assert document["untied"]["bytes_bfloat16"] == 2 * (2 * BIG * D + D)
    assert document["source"] == "the headers of the weights"
    assert (document["model"], document["shape"]) == (name, [BIG, D])
    assert document["flag"]["kind"] == "gpt_neox"
    out = " ".join(output(run, "params", name).split())  # a line may break anywhere
    assert f"{document['more_percent']:.1f}% more" in out
    assert f"{document['less_percent']:.1f}% of the untied model" in out


BUFFERS = {  # kind -> stored tensors that are no parameters
    "gpt_neox": {
        "gpt_neox.layers.0.attention.bias": np.zeros((1, 1, 4, 4), np.uint8),
        "gpt_neox.layers.0.attention.masked_bias": np.zeros((), np.float32),
        "gpt_neox.layers.0.attention.rotary_emb.inv_freq": np.zeros(4, np.float32),
    },
    "codegen": {
        "transformer.h.0.attn.causal_mask": np.zeros((1, 1, 4, 4), np.uint8),
        "transformer.h.1.attn.causal_mask": np.zeros((1, 1, 4, 4), np.float16),
    },
    "deepseek_v3": {"model.layers.0.mlp.gate.e_score_correction_bias": np.zeros(4, np.float32)},
    "ibert": {"ibert.encoder.layer.0.output.LayerNorm.shift": np.zeros(1, np.float32)},
    "of Meta": {"rope.freqs": np.zeros(4, np.float32)},
    "of no known kind": {"model.layers.0.mlp.gate.e_score_correction_bias": EMBEDDING},
}
MATRICES = {  # kind -> the names of its matrices, if they are not those of Llama
    "gpt_neox": ("gpt_neox.embed_in.weight", "embed_out.weight"),
    "codegen": ("transformer.wte.weight", H),
    "ibert": ("ibert.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    "of Meta": ("tok_embeddings.weight", "output.weight"),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_buffers_are_no_parameters(tmp_path, run, kind):
    names = MATRICES.get(kind, (E, H))
    stored = {**dict(zip(names, (EMBEDDING, OTHER), strict=True)), **BUFFERS[kind]}
    path = write(tmp_path / "model", CONFIG | {"model_type": kind}, stored)
    document = answer(run, "params", path)
    assert (document["tied"]["total"], document["untied"]["total"]) == (V * D, 2 * V * D)


BIAS = np.zeros(V, np.float32)


@pytest.mark.parametrize(
    ("copy", "is_counted"),
    [
        pytest.param(BIAS, True, id="equal"),
        pytest.param(BIAS + 1, False, id="differ"),
        pytest.param(BIAS + (np.arange(V) == 3), False, id="one number differs"),
        pytest.param(BIAS[1:], False, id="shorter"),
    ],
)
def test_two_biases_of_a_head_that_differ_are_not_counted(tmp_path, run, copy, is_counted):
    """transformers 4 keeps one of BERT's, and transformers 5 both."""
    stored = {
        "bert.embeddings.word_embeddings.weight": EMBEDDING,
        "cls.predictions.bias": BIAS,
        "cls.predictions.decoder.bias": copy,
    }
    config = {**CONFIG, "model_type": "bert", "architectures": ["BertForMaskedLM"], FLAG: True}
    path = write(tmp_path / "model", config, stored)
    if is_counted:
        assert answer(run, "params", path)["tied"]["total"] == V * D + V
    else:
        assert report_of(path)["parameters"] is None
        assert_one_error_line(run("params", path), "a bias is stored twice")


def test_copies_of_matrices_are_not_taken_for_biases(tmp_path):
    """Of UDOP an encoder's tables of relative positions may be in the file twice."""
    known = kinds.read_class("udop", "UdopForConditionalGeneration")
    name = next(name for name in known.separate if "relative" in known.copies[name])
    stored = {"shared.weight": EMBEDDING, name: OTHER[:2], known.copies[name]: OTHER[:2] + 1}
    config = {**CONFIG, "model_type": "udop", "architectures": [known.name], "d_model": D}
    assert report_of(write(tmp_path / "model", config, stored))["parameters"] is not None


def test_the_strides_of_a_bias_in_a_file_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    every_other = torch.arange(2.0 * V)[::2]
    for bias, is_counted in ((every_other.clone(), True), (every_other + 1, False)):
        state = {
            "bert.embeddings.word_embeddings.weight": torch.from_numpy(EMBEDDING),
            "cls.predictions.bias": every_other,
            "cls.predictions.decoder.bias": bias,
        }
        config = {**CONFIG, "model_type": "bert", "architectures": ["BertForMaskedLM"], FLAG: True}
        path = write(tmp_path / "model", config, {})
        (tmp_path / "model" / WEIGHTS).unlink()
        torch.save(state, tmp_path / "model" / "pytorch_model.bin")
        assert (report_of(path)["parameters"] is not None) == is_counted


def test_what_is_not_looked_at_is_said_once(tmp_path, run):
    """A value of config.json with which no model loads; a tensor that the class has not."""
    config = {**CONFIG, "hidden_act": "foo", FLAG: True}
    path = write(tmp_path / "model", config, {**STORED["embedding"], "v_head.weight": OTHER[:1]})
    out = " ".join(output(run, "check", path, path).split())
    assert out.count("Not looked at: whether the rest of config.json and of the files loads") == 1
    out = " ".join(output(run, "params", path).split())
    assert "Not looked at: which of the stored tensors the class leaves out" in out
    assert answer(run, "params", path)["not_looked_at"]
    (tmp_path / "model" / WEIGHTS).unlink()
    assert "Not looked at" not in run("check", path)[1]


@pytest.mark.parametrize(
    ("kind", "of_class", "matrices_if_tied"),
    [
        ("llama", "LlamaForCausalLM", 1),
        ("kimi_linear", "KimiLinearForCausalLM", 2),  # its head stays apart, whatever the flag says
        ("bart", "BartForConditionalGeneration", 1),
    ],
)
@pytest.mark.parametrize("head", [EMBEDDING, OTHER, None], ids=["equal", "different", "none"])
def test_params_and_check_have_the_same_counts(
    tmp_path, run, kind, of_class, matrices_if_tied, head
):
    embedding_name, head_name, *_ = kinds.read_class(kind, of_class).names[0]
    arrays = {embedding_name: EMBEDDING} | ({} if head is None else {head_name: head})
    sizes = {"vocab_size": V, "hidden_size": D, "d_model": D}
    path = write(
        tmp_path / "model", sizes | {"model_type": kind, "architectures": [of_class]}, arrays
    )
    document = answer(run, "params", path)
    assert document["tied"]["total"] == matrices_if_tied * V * D
    counted = report_of(path)["parameters"]
    assert {name: document[name] for name in counted} == counted


def test_params_reads_no_values_of_an_embedding_and_a_head(tmp_path, run, monkeypatch):
    path = write(tmp_path / "model", CONFIG, {E: EMBEDDING, H: EMBEDDING})
    monkeypatch.setattr(Opened, "equal_rows", lambda *_, **__: pytest.fail("values are read"))
    assert answer(run, "params", path)["untied"]["total"] == 2 * V * D


def test_the_matrices_of_an_encoder_and_a_decoder_are_counted_one_by_one(tmp_path, run):
    names = ["model.shared", "lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens"]
    arrays = {f"{name}.weight": EMBEDDING + number for number, name in enumerate(names)}
    config = {"model_type": "bart", "architectures": ["BartForConditionalGeneration"]}
    path = write(tmp_path / "model", config | {"vocab_size": V, "d_model": D}, arrays)
    document = answer(run, "params", path)
    assert (document["tied"]["total"], document["untied"]["total"]) == (V * D, 4 * V * D)


def test_matrices_that_stay_apart_in_a_tied_model_are_counted(tmp_path, run):
    """The head of T5 is its embedding. Its encoder and decoder have others, which stay two."""
    arrays = {"shared.weight": EMBEDDING, H: EMBEDDING}
    arrays |= {f"{part}.embed_tokens.weight": OTHER for part in ("encoder", "decoder")}
    config = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], FLAG: True}
    path = write(tmp_path / "model", config | {"vocab_size": V, "d_model": D}, arrays)
    document = answer(run, "params", path)
    assert (document["tied"]["total"], document["untied"]["total"]) == (3 * V * D, 4 * V * D)


def test_params_of_another_kind_that_the_environment_names(tmp_path, run, monkeypatch):
    path = write(tmp_path / "model", {**CONFIG, FLAG: True}, STORED["embedding"])
    monkeypatch.setenv("TIEDGPT_MODEL", path)
    assert answer(run, "params")["tied"]["total"] == V * D


def test_params_of_a_config_alone(tmp_path, run):
    """SmolLM2-135M, whose card says 134,515,008."""
    config = {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    document = answer(run, "params", str(path))
    assert document["source"] == "config.json"
    assert (document["shape"], document["not_looked_at"]) == ([49152, 576], None)
    assert (document["model"], document["flag"]["class"]) == (str(path), "LlamaForCausalLM")
    assert document["tied"]["total"] == 134_515_008
    assert document["difference"] == 49152 * 576
    for fields, message in (
        (
            {"model_type": "mamba"},
            f"{path}: its parameters are not known: there are no weights, and config.json of kind "
            "'mamba' is not one that is counted from\n",
        ),
        (
            {"vocab_size": "50,257"},
            "vocab_size in config.json must be a whole number above 0, got '50,257'\n",
        ),
        ({"attention_bias": [1], "mlp_bias": 0, "hidden_size": None}, "hidden_size in config.json"),
    ):
        path.write_text(json.dumps(config | fields))
        assert_one_error_line(run("params", str(path)), message)
    path.write_text(json.dumps(config | {"model_type": "qwen2", "mlp_bias": True}))
    assert_one_error_line(
        run("params", str(path)), "config.json has a setting that was not measured\n"
    )


def test_params_names_the_shape_that_config_json_contradicts(tmp_path, run):
    path = write(tmp_path / "model", {**CONFIG, FLAG: False}, {E: EMBEDDING, H: OTHER[:-1]})
    sentence = (
        f"{path}: its parameters are not known: the shape of lm_head.weight is {V - 1} x {D}, but "
        f"vocab_size is {V} in config.json\n"
    )
    assert_one_error_line(run("params", path), sentence)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [({FLAG: "true"}, "'true'"), ({FLAG: True, "text_config": {FLAG: 0}}, "0")],
    ids=["at the top", "in a part"],
)
def test_a_flag_that_is_neither_true_nor_false_is_refused_with_the_models_name(
    tmp_path, run, flags, shown
):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **flags}))
    message = (
        f"{tmp_path}: {FLAG} in config.json must be true or false, got {shown}: how programs read "
        "this was not measured\n"
    )
    assert_one_error_line(run("check", str(tmp_path)), message)


# Parameters that are counted from config.json


LIKE_LLAMA = {
    "qkv_biases": False,
    "head_norms": False,
    "norms": 2,
    "biases": [],
    "optional": [],
    "fixed": {},
}
SIZES = {
    "vocab_size": 50,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 5,
    "intermediate_size": 7,
}
# The matrices of a layer: q and o, k and v, gate, up and down. Its two norms.
PER_LAYER = 2 * (12 * 20) + 2 * (12 * 10) + 3 * (12 * 7) + 2 * 12
BODY = 50 * 12 + 12  # the embedding and the last norm


@pytest.mark.parametrize(
    ("layers", "fields", "per_layer"),
    [
        pytest.param({}, {}, PER_LAYER, id="llama"),
        pytest.param({"norms": 4}, {}, PER_LAYER + 2 * 12, id="more-norms"),
        pytest.param({"qkv_biases": True}, {}, PER_LAYER + 20 + 10 + 10, id="biases-of-q-k-v"),
        pytest.param({"head_norms": True}, {}, PER_LAYER + 5 + 5, id="norms-of-heads"),
        pytest.param(
            {"biases": ["attention_bias"]},
            {"attention_bias": True},
            PER_LAYER + 20 + 10 + 10 + 12,
            id="biases-of-attention",
        ),
        pytest.param(
            {"biases": ["mlp_bias"]}, {"mlp_bias": True}, PER_LAYER + 7 + 7 + 12, id="of-the-mlp"
        ),
        pytest.param({"biases": ["mlp_bias"]}, {"mlp_bias": False}, PER_LAYER, id="no-bias"),
        pytest.param(
            {"optional": ["num_key_value_heads"]},
            {"num_key_value_heads": None},
            PER_LAYER + 2 * (12 * 10),
            id="as-many-heads-of-k-and-v",
        ),
        pytest.param(
            {"optional": ["head_dim"]},
            {"head_dim": None},
            2 * (12 * 12) + 2 * (12 * 6) + 3 * (12 * 7) + 2 * 12,
            id="heads-of-the-usual-width",
        ),
        pytest.param({"fixed": {"a": 1}}, {"a": 1}, PER_LAYER, id="a-setting-that-must-be"),
        pytest.param({"fixed": {"a": 1}}, {"a": 2}, None, id="another-setting"),
        pytest.param({}, {"attention_bias": True}, None, id="a-bias-that-is-not-known"),
        pytest.param({}, {"head_dim": None}, None, id="no-width-of-heads"),
        pytest.param({}, {"num_key_value_heads": None}, None, id="no-heads-of-k-and-v"),
        pytest.param({}, {"intermediate_size": 0}, None, id="a-size-of-0"),
        pytest.param({}, {"vocab_size": "50"}, None, id="a-size-that-is-text"),
    ],
)
def test_parameters_of_a_config(layers, fields, per_layer):
    config = {name: value for name, value in {**SIZES, **fields}.items() if value is not None}
    layers = {**LIKE_LLAMA, **layers}
    if per_layer is None:
        with pytest.raises(TiedGPTError, match=r"config\.json"):
            counting.count_from_config(config, layers)
        return
    report = counting.count_from_config(config, layers)
    tied = BODY + 3 * per_layer
    assert report["tied"] == {"total": tied, "bytes": 4 * tied, "bytes_bfloat16": 2 * tied}
    assert report["untied"]["total"] == tied + 600
    assert report["difference"] == 600
    assert report["more_percent"] == round(100 * 600 / tied, 2)
    assert report["less_percent"] == round(100 * 600 / (tied + 600), 2)


def test_a_kind_that_is_not_known_has_no_count():
    for kind in ("new", ["llama"], None):
        with pytest.raises(TiedGPTError, match="is not one that is counted from"):
            counting.count_from_config({**SIZES, "model_type": kind})
    assert counting.count_from_config({**SIZES, "model_type": "llama"})["difference"] == 600
