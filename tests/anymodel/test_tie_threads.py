"""Public threads about ties that went wrong: who answers each, and that it does.

A folder has the names of the class that kinds.json has, in the state that the thread describes.
What is no property of a folder is answered by tie_of, which looks at a state dict, or assert_tied,
which runs a module. Two threads can be answered by none of them: a program that ties five kinds
whatever the flag says (vllm PR 52147), and a head without its scale (transformers PR 26441).
"""

import json
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.checkpoint_files import safetensors_content

from tiedgpt.anymodel.headers import open_any
from tiedgpt.anymodel.kinds import in_words, read_class, values_of
from tiedgpt.anymodel.ties import tie_report
from tiedgpt.testing import assert_tied, tie_of

V, D = 40, 8
FLAG = "tie_word_embeddings"
TOP = ""  # the place of a flag that stands in config.json itself, not in its text_config
WEIGHTS = "model.safetensors"
rng = np.random.default_rng(0)
VALUES = {letter: rng.normal(size=(V, D)).astype(np.float32) for letter in "abcd"}
LLAMA = ("llama", "LlamaForCausalLM")
GEMMA3 = ("gemma3", "Gemma3ForConditionalGeneration")
LLAVA = ("llava", "LlavaForConditionalGeneration")
T5 = ("t5", "T5ForConditionalGeneration")
GPT2 = ("gpt2", "GPT2LMHeadModel")


@dataclass
class Row:
    """A folder of a thread, and what `check` says of it."""

    kind_and_class: tuple[str, str]
    flags: str  # a letter for each place of the flag in config.json: t, f, or - for none
    state: str  # a letter for each matrix: "ab" are two that differ, "." is one that is not stored
    verdict: str  # "" and the next three, too, where a test looks at something else
    version4: str | None
    version5: str | None
    others: str | None
    mend: dict[str, bool] | None = None  # the flags of the first mend; None: no mend
    names: tuple[str, ...] | None = None  # if they are not the usual ones
    more: dict[str, np.ndarray] = field(default_factory=dict)  # other tensors
    fields: dict[str, Any] = field(default_factory=dict)  # other fields of config.json


DROPPED = Row(LLAMA, "t", "ab", "conflict", "tied", "untied", "tied", {TOP: False})
NO_HEAD = Row(LLAMA, "f", "a.", "conflict", "random head", "random head", "error", {TOP: True})
UNDER_THE_HEAD = Row(
    LLAMA,
    *("t", ".a", "conflict", "error", "tied", "error"),
    mend={},
    more={"model.norm.weight": np.ones(D, np.float32)},
)
COPY = Row(LLAMA, "t", "aa", "tied", "tied", "tied", "tied")
FOLDERS = {
    "vllm #20550: another trained head": DROPPED,
    "LlamaFactory PR 10832: a merged head": Row(
        ("qwen2", "Qwen2ForCausalLM"),
        *("t", "ab", "conflict", "tied", "untied", "tied"),
        {TOP: False},
    ),
    "transformers #45127: resized, both saved, merged": DROPPED,
    "unsloth PR 9331: head of an adapter, merged": Row(
        ("gemma3_text", "Gemma3ForCausalLM"),
        *("-", "ab", "conflict", "tied", "untied", "tied"),
        {TOP: False},
    ),
    "mlx-lm PR 1298: Granite, tied, with a head": Row(
        ("granite", "GraniteForCausalLM"),
        *("t", "ab", "conflict", "tied", "untied", "tied"),
        {TOP: False},
    ),
    "mlx-lm PR 1055: a head that the file has not": NO_HEAD,
    "vllm PR 30412: the flag in the text part alone": Row(
        LLAVA, "-t", "a.", "tied", "tied", "tied", None
    ),
    "sglang PR 15398: the outer flag differs": Row(LLAVA, "ft", "a.", "tied", "tied", "tied", None),
    "transformers PR 45857: which flag wins": Row(
        GEMMA3,
        *("tf", "a.", "conflict", "random head", "tied", None),
        {TOP: True, "text_config": True},
    ),
    "transformers PR 43880: a missing head is random": NO_HEAD,
    "transformers PR 43429: text and image, nested flag": Row(
        LLAVA, "-t", "a.", "tied", "tied", "tied", None
    ),
    "llama.cpp #11345: under the name of the head": UNDER_THE_HEAD,
    "tinygrad PR 13796: no output in the file": Row(
        LLAMA, "t", "a.", "tied", "tied", "tied", "tied"
    ),
    "mobius PR 295: flag and file disagree": NO_HEAD,
    "fairseq2 #1064: a projection that is stored twice": COPY,
    "LLMs-from-scratch PR 386: a tied file, an untied module": NO_HEAD,
    "NeMo Automodel PR 2511: no head in the export": NO_HEAD,
    "Model-Optimizer PR 2071: a head exported twice": COPY,
    "transformers #33807: one name dropped on saving": UNDER_THE_HEAD,
}


def write(directory, row):
    """Write the folder of a row."""
    known = read_class(*row.kind_and_class)
    config: dict[str, Any] = {
        "model_type": row.kind_and_class[0],
        "architectures": [row.kind_and_class[1]],
        **row.fields,
    }
    for place, flag in zip(known.places, row.flags, strict=True):
        fields = config if place == TOP else {}
        if flag != "-":
            fields[FLAG] = flag == "t"
        if place != TOP:
            config[place] = fields
    # The fields of config.json that hold V and D of the embedding. None: no field does.
    for path, size in zip(known.sizes[0], (V, D), strict=True):
        if path is None:
            continue
        *parts, name = path.split(".")
        fields = config
        for part in parts:
            fields = fields[part]
        fields[name] = size
    names = row.names or known.names[0]
    tensors = {
        name: VALUES[letter] for name, letter in zip(names, row.state, strict=True) if letter != "."
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / WEIGHTS).write_bytes(safetensors_content(tensors | row.more))
    return str(directory)


@pytest.mark.parametrize("row", FOLDERS.values(), ids=FOLDERS)
def test_a_folder(tmp_path, row):
    report = tie_report("model", open_any(write(tmp_path, row)))
    read = (report["transformers4"], report["transformers"], report["others"])
    assert (report["verdict"], *read) == (row.verdict, row.version4, row.version5, row.others)
    assert bool(report["conflict"]) == (row.verdict == "conflict")
    flags = [mend["flags"] for mend in report["mends"]]
    assert flags[:1] == ([] if row.mend is None else [row.mend])


def apply(mend, directory):
    """Do what a mend says."""
    config = json.loads((directory / "config.json").read_text())
    for place, flag in mend["flags"].items():
        fields = config if place == TOP else config[place]
        fields[FLAG] = flag
    (directory / "config.json").write_text(json.dumps(config))
    exec(mend["python"].replace("DIRECTORY", str(directory)), {})


@pytest.mark.parametrize("row", FOLDERS.values(), ids=FOLDERS)
def test_each_mend_ends_the_conflict(tmp_path, row):
    mends = tie_report("model", open_any(write(tmp_path, row)))["mends"]
    for mend in mends:
        path = write(tmp_path, row)
        if mend["python"]:
            pytest.importorskip("safetensors.torch", reason="safetensors or torch is not installed")
        apply(mend, tmp_path)
        report = tie_report("model", open_any(path))
        assert (report["conflict"], report["verdict"] in ("tied", "untied")) == ("", True)


def test_two_different_matrices_are_mended_to_an_untied_model(tmp_path):
    """Each program reads all of these files with either flag: then the files tell which it is."""
    sizes = {"vocab_size": V, "hidden_size": D}
    ovis2 = ("ovis2", "Ovis2ForConditionalGeneration")
    row = Row(ovis2, "--", "aab", "", "", "", "", fields=sizes)
    first, *_ = tie_report("model", open_any(write(tmp_path, row)))["mends"]
    assert first["flags"] == {TOP: False, "text_config": False}


@pytest.fixture
def measure_kinds():
    """scripts/measure_kinds.py, which makes small models with transformers."""
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    pytest.importorskip("transformers", reason="transformers is not installed: the extra `parity`")
    module = pytest.importorskip("measure_kinds")
    logging.disable(logging.CRITICAL)  # transformers warns of each contradiction
    yield module
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of transformers
@pytest.mark.parametrize("row", FOLDERS.values(), ids=FOLDERS)
def test_a_folder_that_transformers_makes(tmp_path, measure_kinds, row):
    """transformers saves the model and loads it in the state of the thread, and after each mend."""
    folder = measure_kinds.Folder(measure_kinds.new_model(*row.kind_and_class), tmp_path)
    flags = tuple({"t": True, "f": False, "-": None}[letter] for letter in row.flags)
    version = measure_kinds.version_of().split(".")[0]
    expected = {"4": row.version4, "5": row.version5}[version]

    def write_again():
        folder.write(row.state, flags, folder.names, ("", ""))
        return tie_report("model", open_any(str(tmp_path)))

    report = write_again()
    assert in_words(folder.read()) == expected
    assert report["verdict"] == row.verdict
    for mend in report["mends"]:
        write_again()
        apply(mend, tmp_path)
        after = tie_report("model", open_any(str(tmp_path)))
        reading = folder.read()
        column = {"4": "transformers4", "5": "transformers"}[version]
        assert (after["conflict"], after[column]) == ("", in_words(reading))
        # transformers has all that the file holds now, and nothing at random.
        removed = {"b"} if "del " in mend["python"] else set()
        assert set(values_of(reading)) == set(row.state) - {"."} - removed


def test_a_copy_says_how_many_bytes_are_wasted(tmp_path):
    """fairseq2 #1064, Model-Optimizer PR 2071."""
    report = tie_report("model", open_any(write(tmp_path, COPY)))
    assert report["wasted_bytes"] == 4 * V * D


def test_a_table_that_is_never_tied_is_no_matrix_of_the_tie(tmp_path):
    """InstructBLIP's Q-Former has a table of its own tokens: its parameters are no copy."""
    kind_and_class = ("instructblip", "InstructBlipForConditionalGeneration")
    known = read_class(*kind_and_class)
    table = {known.names[0][2]: np.ones((7, 3), np.float32)}
    row = Row(kind_and_class, "f" * len(known.places), "ab.", "", "", "", "", more=table)
    report = tie_report("model", open_any(write(tmp_path, row)))
    assert report["verdict"] == "untied"
    counts = report["parameters"]
    assert (counts["tied"]["total"], counts["difference"]) == (V * D + 7 * 3, V * D)


ADAPTERS = {  # the tensors of an adapter beside a tied model -> the matrices that it changes
    "peft #1381: a model and its adapter": {"layers.0.q_proj.lora_A.weight": []},
    "peft #2018: a copy of the head": {"lm_head.weight": ["head"]},
    "peft PR 2803: one side is trained": {"lm_head.lora_A.weight": ["head"]},
    "peft PR 2399: the other side": {"model.embed_tokens.lora_embedding_A": ["embedding"]},
}


@pytest.mark.parametrize("tensors", ADAPTERS.values(), ids=ADAPTERS)
@pytest.mark.parametrize("flag", ["t", "f"])
def test_an_adapter_beside_a_model(tmp_path, tensors, flag):
    [(name, changed)] = tensors.items()
    state = "a." if flag == "t" else "ab"
    path = write(tmp_path, Row(LLAMA, flag, state, "", "", "", ""))
    adapter = {"peft_type": "LORA", "base_model_name_or_path": path}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    of_adapter = safetensors_content({f"base_model.model.{name}": VALUES["a"]})
    (tmp_path / "adapter_model.safetensors").write_bytes(of_adapter)
    report = tie_report("model", open_any(path))
    assert report["changed_by_adapter"] == changed
    verdict = "tied" if flag == "t" else "untied"
    if flag == "t" and changed:  # a copy, which modules_to_save does not name, was not measured
        verdict = "not known" if name == "lm_head.weight" else "conflict"
    assert report["verdict"] == verdict
    assert "adapter" in open_any(path).adapter


QUANTISED = {
    "llm-compressor PR 2798": {"lm_head.weight_packed": np.zeros((V, 1), np.uint8)},
    "bitsandbytes #80": {
        "lm_head.weight": np.zeros((V, D), np.uint8),
        "lm_head.SCB": np.zeros(V, np.float32),
    },
}


@pytest.mark.parametrize("settings", [{}, {"quantization_config": {"quant_method": "x"}}])
@pytest.mark.parametrize("flag", ["t", "f"])
@pytest.mark.parametrize("more", QUANTISED.values(), ids=QUANTISED)
def test_a_quantised_head_is_seen_and_not_compared(tmp_path, more, flag, settings):
    row = Row(LLAMA, flag, "a.", "", "", "", "", more=more, fields=settings)
    report = tie_report("model", open_any(write(tmp_path, row)))
    assert (report["holds"], report["verdict"]) == ("not comparable", "not known")
    assert report["others"] == ("tied" if flag == "t" else "untied")
    assert "quantised" in report["not_measured"]
    assert report["parameters"] is None


@pytest.mark.parametrize(
    ("kind_and_class", "flags", "fields", "reason"),
    [
        pytest.param(
            *(LLAVA, "tt", {"text_config": {"quantization_config": {"bits": 4}}}, "quantised"),
            id="quantised inside of text_config",
        ),
        pytest.param(
            *(LLAMA, "t", {"hidden_size": float(D)}, "hidden_size"),
            id="a size that transformers 5 refuses",
        ),
    ],
)
def test_a_setting_that_was_not_measured(tmp_path, kind_and_class, flags, fields, reason):
    path = write(tmp_path, Row(kind_and_class, flags, "a.", "", "", "", ""))
    config = json.loads((tmp_path / "config.json").read_text())
    for name, value in fields.items():
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = tie_report("model", open_any(path))
    assert (report["transformers"], report["verdict"]) == (None, "not known")
    assert reason in report["not_measured"]


def test_a_head_inside_of_the_base_model(tmp_path):
    """Modalities #357: transformer.lm_head.weight."""
    names = ("transformer.wte.weight", "transformer.lm_head.weight")
    known = read_class(*GPT2)
    number = known.names.index(names)
    row = Row(GPT2, "f", "ab", "", "", "", "", names=names)
    report = tie_report("model", open_any(write(tmp_path, row)))
    readings = [known.reading(version, number, "f", "ab") for version in ("4", "5")]
    assert None not in readings
    assert (report["verdict"] == "conflict") == (readings[0] != readings[1])
    assert report["embedding"]["name"] == names[0]


@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize(
    ("kind_and_class", "flags", "state"),
    [
        pytest.param(T5, "t", ".a..", id="transformers #48154: the encoder from the head"),
        pytest.param(T5, "f", "ab..", id="transformers PR 42270: the rule of T5"),
        pytest.param(("mamba2", "Mamba2ForCausalLM"), "t", "a.", id="PR 43207: Mamba2"),
        pytest.param(
            ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
            *("ff", "a."),
            id="Qwen3-VL-Embedding #89: untied, without a head",
        ),
        pytest.param(
            ("voxtral", "VoxtralForConditionalGeneration"),
            *("-t", "a."),
            id="vllm PR 46479: speech, nested flag",
        ),
    ],
)
def test_what_was_measured_is_said(tmp_path, kind_and_class, flags, state, version):
    """The class's own rule, which no other class has: the report is that of kinds.json."""
    known = read_class(*kind_and_class)
    saved_by = {"transformers_version": f"{version}.0"}
    row = Row(kind_and_class, flags, state, "", "", "", "", fields=saved_by)
    report = tie_report("model", open_any(write(tmp_path, row)))
    reading = known.reading(version, 0, flags, state)  # 0: the usual names
    reported = report[{"4": "transformers4", "5": "transformers"}[version]]
    assert (reading is None) == (reported is None)
    assert report["verdict"] != "not known"
    if version == "5":
        assert reading is not None
        assert bool(report["conflict"]) or "?" not in reading  # "?": a random matrix
        assert len(state) < 3 or report["one"] != []


# What is no property of a folder


def torch_module(**settings):
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")

    class Small(torch.nn.Module):
        """An embedding and a head, tied unless they are copied."""

        def __init__(self, copied=False, only_input=False):
            super().__init__()
            torch.manual_seed(0)
            self.wte = torch.nn.Embedding(V, D)
            self.lm_head = torch.nn.Linear(D, V, bias=False)
            self.lm_head.weight = self.wte.weight
            if copied:
                self.lm_head.weight = torch.nn.Parameter(self.wte.weight.detach().clone())
            self.only_input = only_input

        def get_input_embeddings(self):
            return self.wte

        def get_output_embeddings(self):
            return self.lm_head

        def forward(self, ids):
            weight = self.lm_head.weight
            return self.wte(ids) @ (weight.detach() if self.only_input else weight).T

    return Small(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        pytest.param({"copied": True}, "storage", id="transformers PR 39680, 46707; lerobot #1529"),
        pytest.param({"only_input": True}, "gradient", id="verl #7834: the input half alone"),
    ],
)
def test_assert_tied_names_the_cause(settings, sentence):
    with pytest.raises(AssertionError, match=sentence):
        assert_tied(torch_module(**settings))
    assert_tied(torch_module())


def test_tie_of_names_the_cause():
    """torchax #68, Automodel PR 2213, torchtitan #1524, pytorch #188346, safetensors #98."""
    state = torch_module().state_dict()
    assert tie_of(state).kind == "one storage"
    # Each entry is copied: by a shard, by a stage of a pipeline, by functional code.
    copied = {name: tensor.clone() for name, tensor in state.items()}
    assert "two pieces of memory" in str(tie_of(copied))
    module = torch_module()
    module.load_state_dict(copied, assign=True)
    assert tie_of(module.state_dict()).kind == "equal"
    copied["lm_head.weight"] += 1
    assert "differ" in str(tie_of(copied))
    del copied["lm_head.weight"]
    assert "must tie the head" in str(tie_of(copied))
