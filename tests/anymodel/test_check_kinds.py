"""`check` beside transformers: for classes of each mapping, in each state of their files.

A sample of classes is tested. `pytest -m '' --all-cases tests/anymodel/test_check_kinds.py` tests
all that were measured with the version that is installed, in half an hour.
"""

import itertools
import json
import logging
import warnings
from collections import Counter

import pytest

from tiedgpt.anymodel import counting, kinds
from tiedgpt.anymodel.headers import open_any
from tiedgpt.anymodel.kinds import in_words, values_of
from tiedgpt.anymodel.ties import tie_report
from tiedgpt.errors import CheckpointError, short_repr

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: the extra `parity`"
)
import measure_kinds  # noqa: E402  (of scripts/; it imports both)

pytestmark = pytest.mark.slow

VERSION = transformers.__version__.split(".")[0]
COLUMN = {"4": "transformers4", "5": "transformers"}[VERSION]
SAMPLE = [
    ("gpt2", "GPT2LMHeadModel"),
    ("llama", "LlamaForCausalLM"),
    ("gpt_neox", "GPTNeoXForCausalLM"),
    ("mamba", "MambaForCausalLM"),
    ("rwkv", "RwkvForCausalLM"),
    ("nemotron_h", "NemotronHForCausalLM"),  # never tied
    ("deepseek_v3", "DeepseekV3ForCausalLM"),
    ("bert", "BertForMaskedLM"),
    ("ibert", "IBertForMaskedLM"),
    ("gemma3", "Gemma3ForConditionalGeneration"),
    ("llava", "LlavaForConditionalGeneration"),
    ("t5", "T5ForConditionalGeneration"),
    ("bart", "BartForConditionalGeneration"),
    ("whisper", "WhisperForConditionalGeneration"),
]
# Classes of which most states are not known. The first three have three matrices and two flags:
# flags that differ were measured in a few states only. Reformer's output matrix is twice as wide as
# its embedding. CpmAnt's tables have more rows than its vocabulary. ColPali's parts are not those
# that config.json names.
MOSTLY_NOT_KNOWN = (
    "InstructBlipForConditionalGeneration",
    "InstructBlipVideoForConditionalGeneration",
    "Ovis2ForConditionalGeneration",
    "ReformerForMaskedLM",
    "CpmAntForCausalLM",
    "ColPaliForRetrieval",
)
LIKE_LLAMA = ("llama", "mistral", "phi3", "smollm3", "qwen2", "qwen3", "gemma", "gemma2")
ALL = [(kind, name) for kind, classes in kinds.load_kinds()["kinds"].items() for name in classes]


@pytest.fixture(autouse=True)
def quiet():
    """transformers warns of each contradiction, which is right here."""
    logging.disable(logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def pytest_generate_tests(metafunc):
    of_all = metafunc.config.getoption("--all-cases")
    if "tested_class" in metafunc.fixturenames:
        metafunc.parametrize("tested_class", ALL if of_all else SAMPLE, ids="-".join)
    if "kind_like_llama" in metafunc.fixturenames:
        kinds_like_llama = kinds.load_kinds()["like_llama"] if of_all else LIKE_LLAMA
        metafunc.parametrize("kind_like_llama", kinds_like_llama)


def states_of(folder):
    """(flags, state) of each state that is measured, and of each with two flags that differ.

    A state has a letter for each matrix of the files: "ab" are two that differ.
    """
    measured = measure_kinds.states(folder.shapes)
    states = [each for each in measure_kinds.some_states(len(folder.keys)) if each in measured]
    for flags in itertools.product((None, True, False), repeat=len(folder.levels)):
        for state in states:
            yield flags, state


def test_check_says_what_transformers_does_or_not_known(tmp_path, tested_class):
    kind, class_name = tested_class
    facts = kinds.read_class(kind, class_name)
    if VERSION not in facts.rules:
        pytest.skip(f"{class_name} was not measured with transformers {VERSION}")
    model = measure_kinds.new_model(kind, class_name)
    folder = measure_kinds.Folder(model, tmp_path)
    is_known = Counter()
    for flags, state in states_of(folder):
        folder.write(state, flags, folder.names, ("", ""))
        right = folder.read()
        report = tie_report(kind, open_any(str(tmp_path)))
        case = (flags, state, right, report)
        assert report[COLUMN] in (in_words(right), None), case
        is_known[report[COLUMN] is not None] += 1
        assert report["mends"] == [] or report["conflict"], case
        is_lost = state.startswith("ab") and "b" not in values_of(right)
        if report[COLUMN] == "tied" and is_lost:
            assert " drop" in report["conflict"], case  # "drops", or several "drop" it
        is_newest = max(facts.rules) == VERSION  # whose parameters are counted
        if right != "!" and report["parameters"] is not None and is_newest:
            counted = [report["parameters"][head]["total"] for head in ("tied", "untied")]
            # The two counts are of a tied and of an untied model. Files that contradict config.json
            # may be neither: BERT's second bias stays tied then. Zamba's shared layers are stored
            # here as by an untied model, once for each use.
            contradicts = report["flag"]["tied"] and (
                report["holds"] == "different" or kind == "zamba"
            )
            is_neither = bool(report["conflict"]) or contradicts or len(state) > 2
            assert folder.parameters in counted or is_neither, case
        for mend in report["mends"]:
            folder.write(state, flags, folder.names, ("", ""))
            apply(mend, tmp_path)
            after = tie_report(kind, open_any(str(tmp_path)))
            assert after["conflict"] == "", (case, mend, after)
            kept = set(state) - {"."} if not mend["python"].count("del ") else {"a"}
            assert set(values_of(folder.read())) == kept, (case, mend)
    if class_name not in MOSTLY_NOT_KNOWN:
        assert is_known[False] < is_known[True] / 2


def apply(mend, directory):
    """Do what a mend says."""
    config = json.loads((directory / "config.json").read_text())
    for place, flag in mend["flags"].items():
        fields = config
        for name in place.split(".") if place else ():
            fields = fields[name]
        fields["tie_word_embeddings"] = flag
    (directory / "config.json").write_text(json.dumps(config))
    exec(mend["python"].replace("DIRECTORY", str(directory)), {})


def test_parameters_of_saved_models(tmp_path, tested_class):
    """A model that transformers saves, tied and untied: params says num_parameters()."""
    kind, class_name = tested_class
    facts = kinds.read_class(kind, class_name)
    if max(facts.rules) != VERSION or not facts.is_counted:
        pytest.skip(f"{class_name} is not counted as transformers {VERSION} does")
    for tied in (True, False):
        model = measure_kinds.new_model(kind, class_name)
        keys = measure_kinds.matrix_keys(model)
        measure_kinds.set_flags(model.config, tied)
        model.tie_weights()
        model.save_pretrained(tmp_path / str(tied))
        report = tie_report(kind, open_any(str(tmp_path / str(tied))))
        if report["unclear"]:
            assert report["parameters"] is None
            continue
        matrices = measure_kinds.all_tensors(model)
        addresses = [matrices[key].data_ptr() for key in keys]
        is_one = addresses[0] == addresses[1]
        counted = report["parameters"]["tied" if is_one else "untied"]["total"]
        assert model.num_parameters() == counted, report


@pytest.mark.parametrize(("kind", "class_name"), SAMPLE, ids=[kind for kind, _ in SAMPLE])
def test_the_file_says_what_is_installed(kind, class_name):
    """The names, the shapes' places, the defaults and the buffers, measured again."""
    content = kinds.load_kinds()
    if VERSION not in kinds.read_class(kind, class_name).rules:
        pytest.skip(f"{class_name} was not measured with transformers {VERSION}")
    if content["measured"][VERSION]["transformers"] != transformers.__version__:
        pytest.skip(f"the file was measured with {content['measured'][VERSION]['transformers']}")
    again = measure_kinds.measure(kind, class_name, [], only_names=True)
    facts = kinds.read_class(kind, class_name)
    assert tuple(again["names"]) in facts.names
    assert [".".join(level) for level in again["levels"]] == list(facts.places)
    assert set(again["buffers"]) <= facts.buffers
    assert again["counts"] == facts.is_counted


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"head_dim": 16},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"num_key_value_heads": 1, "intermediate_size": 37},
        {"num_key_value_heads": 4, "hidden_size": 24, "vocab_size": 101},
    ],
    ids=str,
)
def test_parameters_counted_from_the_config(kind_like_llama, fields):
    """num_parameters() of an untied model, or no number."""
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if kind_like_llama not in names:
        pytest.skip(f"{kind_like_llama} is not in transformers {transformers.__version__}")
    try:
        config = measure_kinds.small_config(kind_like_llama, **fields)
        model = measure_kinds.model_of(config, names[kind_like_llama])
    except Exception as error:
        assert fields
        pytest.skip(f"transformers refuses these fields: {short_repr(str(error))}")
    reason = ""
    try:
        counts = counting.count_from_config(model.config.to_dict())
    except CheckpointError as error:
        reason = str(error)
    if reason:
        assert fields  # without any, there is a number
        assert "was not measured" in reason
        return
    assert counts["untied"]["total"] == model.num_parameters()


def test_many_kinds_are_counted_from_the_config():
    assert set(LIKE_LLAMA) < set(kinds.load_kinds()["like_llama"])
