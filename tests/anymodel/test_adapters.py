"""An adapter of PEFT beside a tied model: what a merge makes of the tie.

The last test makes the adapters with PEFT, where it is installed, and merges them.
"""

import json
import logging

import numpy as np
import pytest
from support.checkpoint_files import safetensors_content
from support.torch_files import torch_file

from tiedgpt import TiedGPTError
from tiedgpt.anymodel.adapters import (
    adapter_not_measured,
    changes_of,
    has_usual_head,
    may_be_changed,
)
from tiedgpt.anymodel.headers import open_any
from tiedgpt.anymodel.kinds import read_class
from tiedgpt.anymodel.matrices import Matrices
from tiedgpt.anymodel.ties import tie_report
from tiedgpt.checkpoints.tensors import Tensor
from tiedgpt.errors import short_repr

V, D = 40, 8
rng = np.random.default_rng(0)
ONE, OTHER = (rng.normal(size=(V, D)).astype(np.float32) for _ in range(2))
ROWS, OTHER_ROWS = ONE[:3], OTHER[:3]
BYTES = np.zeros((V, D), np.uint8)
LLAMA = ("llama", "LlamaForCausalLM")
BERT = ("bert", "BertForMaskedLM")
T5 = ("t5", "T5ForConditionalGeneration")
E, H = "model.embed_tokens", "lm_head"
DELTA = "token_adapter.trainable_tokens_delta"
# As PEFT writes them, where neither was chosen
LORA = {"peft_type": "LORA", "modules_to_save": None, "ensure_weight_tying": False}
SAVED = {**LORA, "modules_to_save": ["lm_head"]}
TOKENS = {"peft_type": "TRAINABLE_TOKENS"}
TIED_SAVED = {**SAVED, "ensure_weight_tying": True}
TIED_LORA = {**LORA, "ensure_weight_tying": True}
LORA_HEAD = {f"{H}.lora_A.weight": ROWS, f"{H}.lora_B.weight": ROWS}
LORA_EMBEDDING = {f"{E}.lora_embedding_A": ROWS, f"{E}.lora_embedding_B": ROWS}
# The kind and class, adapter_config.json, the tensors, the verdict ("adds" and "replaces" are
# conflicts), and whether a mend is given.
CASES = {
    "in a layer": (LLAMA, LORA, {"layers.0.q_proj.lora_A.weight": ROWS}, "tied", False),
    "LoRA of the head": (LLAMA, LORA, LORA_HEAD, "adds", True),
    "LoRA of the embedding": (LLAMA, LORA, LORA_EMBEDDING, "adds", True),
    "LoRA of both": (LLAMA, LORA, LORA_HEAD | LORA_EMBEDDING, "adds", True),
    "LoRA and its base": (LLAMA, LORA, {**LORA_HEAD, f"{H}.base_layer.weight": ONE}, "adds", True),
    "DoRA": (LLAMA, LORA, {**LORA_HEAD, f"{H}.lora_magnitude_vector": ROWS[0]}, "adds", True),
    "LoRA, tied": (LLAMA, TIED_LORA, LORA_HEAD | LORA_EMBEDDING, "adds", False),
    "LoRA, with biases": (
        BERT,
        LORA,
        {"cls.predictions.decoder.lora_A.weight": ROWS},
        "adds",
        False,
    ),
    "LoRA of T5": (T5, LORA, {"shared.lora_embedding_A": ROWS}, "adds", False),
    "LoRA of T5's encoder": (
        T5,
        LORA,
        {"encoder.embed_tokens.lora_embedding_A": ROWS},
        "adds",
        False,
    ),
    "a head": (LLAMA, SAVED, {f"{H}.weight": ONE}, "replaces", False),
    "an embedding": (LLAMA, SAVED, {f"{E}.weight": ONE}, "replaces", False),
    "two matrices": (LLAMA, SAVED, {f"{E}.weight": ONE, f"{H}.weight": OTHER}, "replaces", False),
    "two equal ones": (LLAMA, TIED_SAVED, {f"{E}.weight": ONE, f"{H}.weight": ONE}, "tied", False),
    "two equal ones, untied": (
        LLAMA,
        SAVED,
        {f"{E}.weight": ONE, f"{H}.weight": ONE},
        "replaces",
        False,
    ),
    "two that differ in a row": (
        LLAMA,
        TIED_SAVED,
        {f"{E}.weight": ONE, f"{H}.weight": np.concatenate([ONE[:-1], OTHER[-1:]])},
        "replaces",
        False,
    ),
    "two equal copies": (LLAMA, LORA, {f"{E}.weight": ONE, f"{H}.weight": ONE}, "tied", False),
    "two equal ones of GPT-2": (
        ("gpt2", "GPT2LMHeadModel"),
        TIED_SAVED,
        {"transformer.wte.weight": ONE, f"{H}.weight": ONE},
        "replaces",
        False,
    ),
    "two equal ones of GPT-NeoX": (
        ("gpt_neox", "GPTNeoXForCausalLM"),
        TIED_SAVED,
        {"gpt_neox.embed_in.weight": ONE, "embed_out.weight": ONE},
        "replaces",
        False,
    ),
    "a tie that was not kept": (LLAMA, TIED_SAVED, {f"{E}.weight": ONE}, "replaces", False),
    "a copy": (LLAMA, LORA, {f"{H}.weight": ONE}, "not known", False),
    "the head of T5": (T5, SAVED, {f"{H}.weight": ONE}, "not known", False),
    "tokens": (LLAMA, LORA, {f"{E}.{DELTA}": ROWS}, "tied", False),
    "tokens of the head": (LLAMA, LORA, {f"{H}.{DELTA}": ROWS}, "adds", True),
    "tokens of both": (
        LLAMA,
        LORA,
        {f"{E}.{DELTA}": ROWS, f"{H}.{DELTA}": OTHER_ROWS},
        "adds",
        True,
    ),
    "tokens of both, one more of the head": (
        LLAMA,
        LORA,
        {f"{E}.{DELTA}": ROWS, f"{H}.{DELTA}": ONE[:4]},
        "adds",
        True,
    ),
    "tokens, with biases": (
        BERT,
        LORA,
        {f"bert.embeddings.word_embeddings.{DELTA}": ROWS},
        "not known",
        False,
    ),
    "tokens alone": (
        LLAMA,
        TOKENS,
        {f"{E}.trainable_tokens_delta": ROWS, f"{H}.trainable_tokens_delta": ROWS},
        "tied",
        False,
    ),
    "tokens of one": (LLAMA, TOKENS, {f"{E}.trainable_tokens_delta": ROWS}, "not known", False),
    "tokens without rows": (
        LLAMA,
        LORA,
        {f"{E}.{DELTA}": ROWS[0], f"{H}.{DELTA}": ROWS[0]},
        "not known",
        False,
    ),
    "LoRA and a copy": (LLAMA, LORA, {**LORA_HEAD, f"{H}.weight": ONE}, "not known", False),
    "two ways": (LLAMA, LORA, {**LORA_HEAD, f"{E}.{DELTA}": ROWS}, "not known", False),
    "IA3": (LLAMA, {"peft_type": "IA3"}, {f"{H}.ia3_l": ROWS[:1]}, "not known", False),
    "no type": (LLAMA, {}, LORA_HEAD, "not known", False),
    "a prompt": (LLAMA, {"peft_type": "P_TUNING"}, {"prompt_embeddings": ROWS}, "not known", False),
    "no floats": (LLAMA, SAVED, {f"{E}.weight": BYTES, f"{H}.weight": BYTES}, "not known", False),
    "no floats in one": (
        LLAMA,
        SAVED,
        {f"{E}.weight": BYTES, f"{H}.weight": ONE},
        "not known",
        False,
    ),
    "no floats in the other": (
        LLAMA,
        SAVED,
        {f"{E}.weight": ONE, f"{H}.weight": BYTES},
        "not known",
        False,
    ),
    "IA3 of T5": (T5, {"peft_type": "IA3"}, {"shared.ia3_l": ROWS[:1]}, "not known", False),
}


def write(directory, kind_and_class, flag, adapter_config, tensors):
    """A model with one matrix if the flag says tied, else two; and an adapter."""
    kind, class_name = kind_and_class
    known = read_class(kind, class_name)
    matrices = {known.names[0][0]: ONE}
    if not flag:
        matrices[known.names[0][1]] = OTHER
    if kind == "bert":
        matrices["cls.predictions.bias"] = ONE[:, 0].copy()
    config = {"model_type": kind, "architectures": [class_name], "tie_word_embeddings": flag}
    width = "d_model" if kind == "t5" else "hidden_size"
    (directory / "config.json").write_text(json.dumps({**config, "vocab_size": V, width: D}))
    (directory / "model.safetensors").write_bytes(safetensors_content(matrices))
    base = {"base_model_name_or_path": str(directory)}
    (directory / "adapter_config.json").write_text(json.dumps(base | adapter_config))
    content = safetensors_content({f"base_model.model.{name}": x for name, x in tensors.items()})
    (directory / "adapter_model.safetensors").write_bytes(content)
    return open_any(str(directory))


IN_A_LAYER = {"layers.0.q_proj.lora_A.weight": ROWS}
LARGER = np.ones((V + 8, D), np.float32)
LONG = "owner/" + 400 * "x"  # it is shown cut


@pytest.mark.parametrize(
    # version: the first of transformers that does not load the model with its adapter as usual
    ("adapter_config", "tensors", "version", "sentence"),
    [
        (
            {**LORA, "base_model_name_or_path": "owner/base"},
            IN_A_LAYER,
            4,
            "transformers 4 loads the base model of the adapter, 'owner/base'",
        ),
        (
            {**LORA, "base_model_name_or_path": None},
            IN_A_LAYER,
            4,
            "transformers 4 loads the base model of the adapter, None",
        ),
        (
            {"peft_type": "PROMPT_TUNING"},
            {"prompt_embeddings": ROWS},
            5,
            "an adapter, 'PROMPT_TUNING', lies beside it",
        ),
        (
            SAVED,
            {f"{H}.weight": LARGER},
            5,
            f"the adapter has base_model.model.{H}.weight of another shape",
        ),
        (
            SAVED,
            {f"{E}.weight": LARGER},
            5,
            f"the adapter has base_model.model.{E}.weight of another shape",
        ),
        (
            LORA,
            None,
            5,
            "adapter_config.json lies beside it without adapter_model.safetensors",
        ),
    ],
    ids=["another base", "no base", "a prompt", "more rows", "more tokens", "no weights"],
)
@pytest.mark.parametrize("flag", [True, False])
def test_an_adapter_that_transformers_loads_otherwise(
    tmp_path, adapter_config, tensors, version, sentence, flag
):
    """transformers 4 loads the adapter's base in place of the model; the others are errors."""
    write(tmp_path, LLAMA, flag, adapter_config, tensors or IN_A_LAYER)
    if tensors is None:
        (tmp_path / "adapter_model.safetensors").unlink()
    right = "tied" if flag else "untied"
    for path in (tmp_path, tmp_path / "model.safetensors"):
        report = tie_report("model", open_any(str(path)))
        assert report["transformers4"] is None
        assert report["transformers"] == (None if version == 5 else right)
        assert (report["verdict"], report["conflict"]) == ("not known", "")
        assert report["not_measured"] == sentence


def test_how_an_adapter_in_a_file_of_torch_is_loaded_is_not_known(tmp_path):
    write(tmp_path, LLAMA, True, LORA, IN_A_LAYER)
    (tmp_path / "adapter_model.safetensors").unlink()
    (tmp_path / "adapter_model.bin").write_bytes(torch_file(IN_A_LAYER))
    report = tie_report("model", open_any(str(tmp_path)))
    assert (report["verdict"], report["transformers"]) == ("not known", None)
    assert "without adapter_model.safetensors" in report["not_measured"]
    assert report["not_read"] == []


def test_changed_rows_of_an_adapter_without_a_kind_are_not_known(tmp_path):
    write(tmp_path, LLAMA, True, {}, {f"{E}.{DELTA}": ROWS})
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert tie_report("model", open_any(str(path)))["verdict"] == "not known"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_adapter_of_a_tied_model(tmp_path, case):
    kind_and_class, adapter_config, tensors, expected, has_mend = case
    model = write(tmp_path, kind_and_class, True, adapter_config, tensors)
    report = tie_report("model", model)
    verdict = report["verdict"]
    if verdict == "conflict":
        verdict = "adds" if "adds to" in report["conflict"] else "replaces"
    assert verdict == expected
    assert "the two may differ" not in report["conflict"]
    assert bool(report["mend"]) == has_mend
    if expected in ("adds", "replaces"):
        assert "PEFT 0.21.2" in report["conflict"]
        assert report["changed_by_adapter"]
    if expected == "replaces":
        assert "older versions were not run" in report["conflict"]
    if expected == "not known":
        assert "adapter" in report["not_measured"]
    if any(".lora_" in name and "layers.0" not in name for name in tensors):
        assert "merge it with peft's merge_and_unload" not in model.adapter


ADDS = (
    "the model is tied, and the adapter beside it adds to {}: PEFT 0.21.2 merges this into the one "
    "matrix, so both its uses change, and the merged model has other logits"
)
REPLACES = (
    "the model is tied, and the adapter beside it replaces {}: both together are untied, and "
    "PEFT 0.21.2 merges and saves them so; older versions were not run"
)
NOT_KNOWN = "what a merge of the adapter, which changes {}, makes of the tie"
BOTH = ["embedding", "head"]
SAID = {  # a case -> the matrices that the adapter changes; what is said of it
    "in a layer": ([], None),
    "tokens": (["embedding"], None),
    "LoRA of the head": (["head"], ADDS.format("the head")),
    "LoRA of both": (BOTH, ADDS.format("the embedding and the head")),
    "an embedding": (["embedding"], REPLACES.format("the embedding")),
    "two matrices": (BOTH, REPLACES.format("the embedding and the head")),
    "tokens of one": (["embedding"], NOT_KNOWN.format("the embedding")),
    "two ways": (BOTH, NOT_KNOWN.format("the embedding and the head")),
    "IA3": (["head"], "an adapter, 'IA3', lies beside it"),
    "IA3 of T5": (["embedding"], "an adapter, 'IA3', lies beside it"),
    "no type": (["head"], "an adapter, None, lies beside it"),
}
REMEDY = """\
import torch
from peft import PeftModel
from transformers import LlamaForCausalLM
model = LlamaForCausalLM.from_pretrained("MODEL")
head = model.get_output_embeddings()
head.weight = torch.nn.Parameter(head.weight.detach().clone())
for config in (model.config, model.config.get_text_config()):
    config.tie_word_embeddings = False
model = PeftModel.from_pretrained(model, "ADAPTER").merge_and_unload()
model.save_pretrained("MERGED")"""


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_an_adapter(tmp_path, name):
    kind_and_class, adapter_config, tensors, _, has_mend = CASES[name]
    changed, sentence = SAID[name]
    report = tie_report("model", write(tmp_path, kind_and_class, True, adapter_config, tensors))
    assert report["changed_by_adapter"] == changed
    assert (report["conflict"] or report["not_measured"]) == sentence
    assert not (report["conflict"] and report["not_measured"])
    if has_mend:
        run = (
            "move adapter_config.json and its weights to a directory ADAPTER of their own, and run"
        )
        text = f"to merge it, {run}\n{REMEDY}"
        assert report["mends"] == [{"flags": {}, "python": REMEDY, "text": text}]


@pytest.mark.parametrize(
    ("tensors", "changed"),
    [(LORA_HEAD, ["head"]), ({f"{E}.weight": ONE, f"{H}.weight": ONE}, BOTH), (IN_A_LAYER, [])],
)
def test_an_adapter_of_a_class_that_was_not_measured(tmp_path, tensors, changed):
    write(tmp_path, LLAMA, True, LORA, tensors)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["MyLlama"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = tie_report("model", open_any(str(tmp_path)))
    assert (report["verdict"], report["conflict"], report["mends"]) == ("not known", "", [])
    assert report["changed_by_adapter"] == changed
    assert report["not_measured"] == "MyLlama of kind llama was not measured"


@pytest.mark.parametrize("kind_and_class", [LLAMA, BERT])
def test_an_untied_model_has_no_tie_to_lose(tmp_path, kind_and_class):
    model = write(tmp_path, kind_and_class, False, LORA, LORA_HEAD)
    assert tie_report("model", model)["verdict"] == "untied"


@pytest.mark.parametrize(
    "path", ["{tmp_path}/model", "{tmp_path}/model/", "model/../model", "link"]
)
def test_the_base_of_an_adapter_may_be_its_folder_by_any_path(tmp_path, monkeypatch, path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    adapter_config = {**LORA, "base_model_name_or_path": path.format(tmp_path=tmp_path)}
    write(folder, LLAMA, True, adapter_config, IN_A_LAYER)
    for opened in (folder, folder / "model.safetensors", tmp_path / "link"):
        assert tie_report("model", open_any(str(opened)))["verdict"] == "tied"


def test_two_matrices_under_a_flag_that_says_tied_are_a_conflict_beside_any_adapter(tmp_path):
    """No remedy was measured with an adapter beside: neither its own, nor that of the files."""
    write(tmp_path, LLAMA, False, LORA, LORA_HEAD)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    report = tie_report("model", open_any(str(tmp_path)))
    assert report["conflict"].startswith("config.json says tied, and the files have another head: ")
    assert (report["mends"], report["mend"], report["not_read"]) == ([], "", [])
    assert report["changed_by_adapter"] == ["head"]


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_that_cannot_be_read_is_not_judged(tmp_path, file):
    write(tmp_path, LLAMA, True, LORA, LORA_HEAD)
    (tmp_path / file).write_bytes(b"{")
    model = open_any(str(tmp_path))
    report = tie_report("model", model)
    assert (report["verdict"], report["changed_by_adapter"]) == ("not known", [])
    assert (report["transformers4"], report["transformers"]) == (None, None)
    assert report["not_measured"] == "adapter_config.json and its weights cannot be read"
    assert file in model.adapter


def test_a_folder_of_an_adapter_alone_does_not_advise_the_merge(tmp_path):
    write(tmp_path, LLAMA, True, LORA, LORA_HEAD)
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).unlink()
    with pytest.raises(TiedGPTError, match="do not merge it into a tied model"):
        open_any(str(tmp_path)).stored  # noqa: B018


# Names of an adapter's tensors


@pytest.mark.parametrize(
    ("kind_and_class", "name", "expected"),
    [
        (LLAMA, f"{H}.lora_A.weight", {"head": "adds"}),
        (LLAMA, f"{H}.modules_to_save.weight", {"head": "replaces"}),
        (LLAMA, f"{E}.base_layer.weight", {}),
        (LLAMA, "model.audio_lm_head.weight", {}),  # the whole last name is compared
        (LLAMA, "model.layers.11.lm_head.weight", {}),
        (None, "lm_head.weight", {"head": "replaces"}),
        (None, "bert.encoder.layer.0.output.lora_A.weight", {}),
        (("kosmos-2", "Kosmos2ForConditionalGeneration"), "lm_head.lora_B", {"head": "adds"}),
        (("deepseek_v4", "DeepseekV4ForCausalLM"), "head.weight", {"head": "replaces"}),
        (("deepseek_v4", "DeepseekV4ForCausalLM"), "lm_head.weight", {"head": "replaces"}),
        (("dory", "DoryForCausalLM"), "model.embed_tokens.weight", {"embedding": "replaces"}),
        (
            ("evolla", "EvollaForProteinText2Text"),  # a third matrix of another last name
            f"protein_encoder.word_embeddings.{DELTA}",
            {"embedding": "changes rows of"},
        ),
    ],
)
def test_what_a_tensor_of_an_adapter_changes(kind_and_class, name, expected):
    known = kind_and_class and read_class(*kind_and_class)
    tensors = {f"base_model.model.{name}": "the tensor"}
    found = changes_of(tensors, known)
    assert found == {
        matrix: {expected[matrix]: "the tensor"} if matrix in expected else {}
        for matrix in ("embedding", "head")
    }
    assert set(may_be_changed(tensors, known)) >= set(expected)


def test_of_several_tensors_that_change_one_matrix_the_first_is_taken():
    tensors = {f"{H}.lora_A.weight": 1, f"{H}.lora_B.weight": 2, f"{H}.modules_to_save.weight": 3}
    head = {"adds": 1, "replaces": 3}
    assert changes_of(tensors, read_class(*LLAMA)) == {"embedding": {}, "head": head}


def no_values(name, *shape):
    return Tensor(None, name, "F32", shape, start=0, end=0, memory=b"")


def test_an_adapter_may_replace_a_matrix_of_any_shape_that_is_stored(tmp_path):
    model = write(tmp_path, LLAMA, False, SAVED, {f"{H}.weight": LARGER})
    embedding = no_values(f"{E}.weight", V, D)
    sentence = f"the adapter has base_model.model.{H}.weight of another shape"
    for head, not_measured in (
        (no_values(f"{H}.weight", V + 8, D), {}),
        (None, {"4": sentence, "5": sentence}),
    ):
        assert adapter_not_measured(model, Matrices([embedding, head])) == not_measured
    not_stored = Matrices([None, None])
    assert adapter_not_measured(model, not_stored) == {"4": sentence, "5": sentence}
    wider = Matrices([embedding, no_values(f"{H}.weight", V + 8, 2 * D)])
    assert adapter_not_measured(model, wider) == {"4": sentence, "5": sentence}


def test_a_long_base_and_a_long_kind_are_shown_cut(tmp_path):
    found = Matrices([no_values(f"{E}.weight", V, D), None])
    base = f"transformers 4 loads the base model of the adapter, {short_repr(LONG)}"
    kind = f"an adapter, {short_repr(LONG)}, lies beside it"
    for adapter_config, expected in (
        ({**LORA, "base_model_name_or_path": LONG}, {"4": base}),
        ({"peft_type": LONG}, {"4": kind, "5": kind}),
    ):
        model = write(tmp_path, LLAMA, True, adapter_config, IN_A_LAYER)
        assert adapter_not_measured(model, found) == expected


def test_a_model_whose_matrices_are_not_known_has_no_usual_head(tmp_path):
    model = write(tmp_path, LLAMA, True, LORA, LORA_HEAD)
    known = read_class(*LLAMA)
    stored = Matrices([no_values(f"{E}.weight", V, D), None])
    assert has_usual_head(model, known, stored)
    assert not has_usual_head(model, known, Matrices([None, None]))
    assert not has_usual_head(model, None, stored)


def small_llama(transformers, directory):
    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)


REAL = {  # fields of a LoraConfig -> the verdict
    "in a layer": ({"target_modules": ["q_proj"]}, "tied"),
    "head": ({"target_modules": ["lm_head"]}, "conflict"),
    "embedding": ({"target_modules": ["embed_tokens"]}, "conflict"),
    "both": ({"target_modules": ["embed_tokens", "lm_head"]}, "conflict"),
    "rows of the head": (
        {"target_modules": ["q_proj"], "trainable_token_indices": {"lm_head": [1, 2]}},
        "conflict",
    ),
    "rows": ({"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]}, "tied"),
    "new head": ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "conflict"),
    "new matrix": (
        {
            "target_modules": ["q_proj"],
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
        "tied",
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("fields", "expected"), REAL.values(), ids=REAL)
def test_what_peft_makes_of_it(tmp_path, fields, expected):
    """The merge of PEFT beside the verdict; the lines of the mend keep the logits."""
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    llama = transformers.LlamaForCausalLM
    base, adapter, merged = (str(tmp_path / name) for name in ("MODEL", "ADAPTER", "MERGED"))
    small_llama(transformers, base)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(llama.from_pretrained(base), peft.LoraConfig(r=2, **fields))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    ids = torch.arange(12)[None]
    expected_logits = adapted.eval()(ids).logits
    adapted.save_pretrained(adapter)
    adapted.save_pretrained(base)  # beside the model

    report = tie_report("model", open_any(base))
    assert report["verdict"] == expected
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "MODEL" / file).unlink()
    usual = peft.PeftModel.from_pretrained(llama.from_pretrained(base), adapter).merge_and_unload()
    is_right = torch.allclose(usual.eval()(ids).logits, expected_logits, atol=1e-4)
    adds = "adds to" in report["conflict"]
    assert is_right != adds
    is_one = usual.get_output_embeddings().weight is usual.get_input_embeddings().weight
    assert is_one == (expected == "tied" or adds)
    assert bool(report["mends"]) == adds
    for mend in report["mends"]:
        python = mend["python"]
        for name in ("MODEL", "ADAPTER", "MERGED"):
            python = python.replace(f'"{name}"', repr(str(tmp_path / name)))
        exec(python, {})
        mended = llama.from_pretrained(merged).eval()
        assert torch.allclose(mended(ids).logits, expected_logits, atol=1e-4)
        assert tie_report("model", open_any(merged))["verdict"] == "untied"
