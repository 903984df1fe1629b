"""The functions behind `check` and `params` one by one: matrices, counts, the hub, the verdict.

A tensor of these tests has a name, a shape and a dtype, and no values.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tiedgpt.anymodel import adapters, counting, headers, kinds, matrices, mends, ties
from tiedgpt.checkpoints.tensors import Tensor
from tiedgpt.errors import CheckpointError

V, D = 40, 8
E = "model.embed_tokens.weight"
H = "lm_head.weight"
LLAMA = kinds.read_class("llama", "LlamaForCausalLM")
T5 = kinds.read_class("t5", "T5ForConditionalGeneration")
BERT = kinds.read_class("bert", "BertForMaskedLM")
SIZES = {"vocab_size": V, "hidden_size": D}


def tensor(name, *shape, dtype="F32", start=0, file="a.bin"):
    size = 4
    for length in shape:
        size *= length
    return Tensor(Path(file), name, dtype, shape, start, start + size, memory=b"")


def named(*tensors):
    return {each.name: each for each in tensors}


# Matrices by the ends of their names


@pytest.mark.parametrize(
    ("head", "is_head", "is_unclear"),
    [
        (tensor(H, V, D), True, False),
        (tensor(H, V + 1, D), False, True),  # it may be padded
        (tensor(H, V - 1, D), False, False),
        (tensor("unembed.weight", V, D), False, True),
        (tensor("unembed.weight", D, V + 1), False, True),
        (tensor("unembed.weight", V - 1, D), False, False),
        (tensor("unembed.weight", V, 1), False, False),
        (tensor("lm_head.bias", V), False, False),
        (tensor("wpe.weight", V, D), False, False),
        (tensor("model.layers.0.up.weight", V, D), False, False),
    ],
    ids=lambda value: f"{value.name} {value.shape}" if isinstance(value, Tensor) else "",
)
def test_which_tensor_may_be_the_head(head, is_head, is_unclear):
    found = matrices.find_by_ends(SIZES, named(tensor(E, V, D), head))
    assert (found.head == head) == is_head
    assert found.unclear == ([head.name] if is_unclear else [])


def test_the_shape_of_the_only_embedding():
    embedding = tensor("wte.weight", V, D)
    assert matrices.shape_of_embedding(named(embedding, tensor(H, V, D))) == (V, D)
    for others in (
        [embedding, tensor("encoder.wte.weight", V, D)],
        [tensor("wte.weight", 0, D)],
        [tensor("wte.weight", V)],
        [],
    ):
        assert matrices.shape_of_embedding(named(*others)) is None


def test_the_sizes_of_a_model_of_images_and_text():
    assert matrices.matrix_shape({"text_config": SIZES}) == (V, D)
    assert matrices.matrix_shape({**SIZES, "text_config": {"vocab_size": V + 1}}) == (V + 1, D)
    assert kinds.fields_at({"a": {"b": {"c": 1}}}, "a.b") == {"c": 1}


@pytest.mark.parametrize("shape", [(0, D), (V,), (V, D, 2)])
def test_what_is_no_matrix_does_not_fit(shape):
    for places in ((None, None), ("vocab_size", "hidden_size")):
        said = matrices.describe_misfit({}, places, tensor(E, *shape))
        assert said.endswith("not that of a matrix [V, D]")


def test_matrices_that_rounding_may_make_equal_are_said_to_be_though_others_differ():
    """The first two are equal if rounded, the third differs from both."""
    found = matrices.Matrices([tensor(name, V, D) for name in "abc"])

    def equal_rows(one, other, rounded=False):
        return (V if rounded and other.name == "b" else 0), V

    compared = matrices.compare_matrices(SimpleNamespace(equal_rows=equal_rows), found)
    assert (compared.state, compared.equal_if_rounded) == ("abc", True)
    assert (compared.equal_rows, compared.compared_rows) == (0, V)


# Counts


@pytest.mark.parametrize(
    ("name", "shape", "is_buffer"),
    [
        ("h.0.attn.bias", (1, 1, 4, 4), True),
        ("h.0.attn.bias", (4,), False),
        ("h.0.attn.masked_bias", (), True),
        ("h.0.mlp.bias", (1, 1, 4, 4), False),
        ("h.11.of_mine", (4,), True),
    ],
)
def test_which_tensors_are_no_parameters(name, shape, is_buffer):
    measured = frozenset(["h.N.of_mine"])
    assert counting.is_buffer(name, tensor(name, *shape), measured) == is_buffer


def count(*tensors, known, config=SIZES, state=None):
    tensors = named(*tensors)
    found = matrices.find_matrices(config, tensors, known)
    numbers = counting.count_stored(tensors, found, known, state)
    return numbers["tied"]["total"], numbers["untied"]["total"]


def test_matrices_of_different_sizes_are_counted_both():
    both = matrices.Matrices([tensor(E, V, D), tensor(H, V, 2 * D)])
    tensors = named(*both.tensors, tensor("norm.weight", D))
    numbers = counting.count_stored(tensors, both, None)
    assert numbers["tied"]["total"] == numbers["untied"]["total"] == 3 * V * D + D


def test_a_bias_by_two_names_is_one_if_tied_and_two_if_untied():
    embedding = tensor("bert.embeddings.word_embeddings.weight", V, D)
    bias = tensor("cls.predictions.bias", V)
    second = tensor("cls.predictions.decoder.bias", V)
    expected = (V * D + V, 2 * (V * D + V))
    assert count(embedding, bias, known=BERT) == expected
    assert count(embedding, bias, second, known=BERT) == expected
    assert count(embedding, second, known=BERT)[0] == V * D + V


# Kinds


def test_a_default_in_which_versions_differ_is_not_known():
    for defaults, expected in (
        ({"4": [True], "5": [True]}, True),
        ({"4": [True], "5": [False]}, None),
        ({"4": [None], "5": [None]}, None),
    ):
        assert replace(LLAMA, places=("",), defaults=defaults).default("") is expected


@pytest.mark.parametrize("architectures", [{}, {"architectures": None}, {"architectures": []}])
def test_a_config_without_a_class_has_the_usual_one(architectures):
    assert kinds.model_class({"model_type": "llama", **architectures}) == LLAMA


@pytest.mark.parametrize(
    ("reading", "words"),
    [("a0?", "random"), ("??", "random"), ("a0a", "tied"), ("a?a", "random head"), (None, None)],
)
def test_readings_in_words(reading, words):
    assert kinds.in_words(reading) == words


# The hub


class Repository:
    """A repository of the hub with these files."""

    label = "owner/name"

    def __init__(self, **files):
        self.files, self.asked = files, []

    def read_range(self, file, start, stop):
        self.asked.append((start, stop))
        content = self.files[file]
        return content[start:stop], len(content)


def test_rows_of_a_matrix_with_fewer_rows_than_are_sampled_at_a_place():
    repository = Repository(a=bytes(range(48)), b=bytes(range(32)) + bytes(16))
    one, other = (tensor(file, 3, 4, file=file) for file in ("a", "b"))
    model = headers.HubModel({}, repository)
    assert model.equal_rows(one, other) == (2, 3)
    assert set(repository.asked) == {(0, 48)}


def test_a_header_that_is_too_long_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(headers, "MAX_HEADER", 8)
    repository = Repository(a=(100).to_bytes(8, "little") + b" " * 200)
    with pytest.raises(CheckpointError):
        headers.fetch_header(repository, "a")
    assert repository.asked == [(0, 8)]


def test_json_that_only_python_writes_is_read_from_the_hub():
    config = {"a": float("inf")}
    repository = Repository(config=json.dumps(config).encode())
    assert headers.fetch_json(repository, "config") == config


# Adapters


@pytest.mark.parametrize(
    ("name", "shape", "is_usual"),
    [
        ("lm_head.bias", (V,), False),
        ("model.norm.bias", (D,), True),
        ("model.layers.0.bias", (V,), True),
        ("model.norm.weight", (V,), True),
    ],
)
def test_a_head_with_a_bias_for_each_token_is_not_usual(name, shape, is_usual):
    found = matrices.Matrices([tensor(E, V, D), None])
    model = SimpleNamespace(stored=named(tensor(name, *shape)))
    assert adapters.has_usual_head(model, LLAMA, found) == is_usual


def test_what_an_adapter_may_change_is_not_in_a_layer():
    for name, changed in (
        ("model.embed_tokens.mine", ["embedding"]),
        ("lm_head.mine", ["head"]),
        ("model.layers.0.lm_head.mine", []),
        ("model.norm.mine", []),
    ):
        assert adapters.may_be_changed(named(tensor(name, D)), LLAMA) == changed


# The verdict


def verdict_of(**changes):
    report = {
        "conflict": "",
        "flag": {"class_without_head": None, "tied": True},
        "tensors": 2,
        "holds": "equal",
        "transformers4": "tied",
        "transformers": "tied",
        **changes,
    }
    return ties.verdict(report, changes.get("known"))


def test_the_verdict_of_a_report():
    assert verdict_of() == "tied"
    assert verdict_of(conflict="one") == "conflict"
    assert verdict_of(transformers="untied") == "not known"
    # A version that has not the class may drop another head.
    for holds, tied, expected in (
        ("different", True, "not known"),
        ("different", False, "untied"),
        ("equal", True, "untied"),
    ):
        flag = {"class_without_head": None, "tied": tied}
        one = {"transformers4": None, "transformers": "untied", "holds": holds, "flag": flag}
        assert verdict_of(**one) == expected
        assert verdict_of(**one, known=LLAMA) == "not known"
    without = {"class_without_head": "LlamaModel", "tied": True}
    assert verdict_of(flag=without) == "no head"
    assert verdict_of(flag=without, tensors=0) == "tied"


@pytest.mark.parametrize(
    ("one", "other", "shares"),
    [
        ((0, "a.bin"), (0, "a.bin"), True),
        ((0, "a.bin"), (V * D * 4 - 1, "a.bin"), True),
        ((0, "a.bin"), (V * D * 4, "a.bin"), False),
        ((V * D * 4, "a.bin"), (0, "a.bin"), False),
        ((0, "a.bin"), (0, "b.bin"), False),
        ((0, "a.safetensors"), (0, "a.safetensors"), False),
    ],
)
def test_which_tensors_share_memory(one, other, shares):
    first, second = (tensor(E, V, D, start=start, file=file) for start, file in (one, other))
    assert ties.share_memory(first, second) == shares


# Remedies


def mends_of(known, config, state, *names):
    file = mends.FILE
    found = matrices.Matrices(
        [
            None if letter == "." else tensor(name, V, D, file=file)
            for name, letter in zip(known.names[0], state, strict=True)
        ],
        name_set=0,
    )
    return mends.find_mends(known, config, "t" if config[ties.FLAG] else "f", names, found, state)


def test_a_second_bias_is_written_only_if_it_is_missing():
    bias, second = "cls.predictions.bias", "cls.predictions.decoder.bias"
    config = {ties.FLAG: True}
    for names, is_written in (((bias,), True), ((bias, second), False), ((second,), False)):
        [flag, *_] = mends_of(BERT, config, "ab", *names)
        assert flag["flags"] == {"": False}
        assert (f'tensors["{second}"]' in flag["python"]) == is_written


def test_a_tie_is_no_remedy_if_the_embedding_or_the_head_was_lost():
    """An encoder and a decoder need no copies of their own."""
    lost = "unless the other matrix was lost"
    [tied] = mends_of(LLAMA, {ties.FLAG: False}, "a.")
    assert tied["text"].startswith(lost)
    assert not any(lost in mend["text"] for mend in mends_of(LLAMA, {ties.FLAG: True}, "ab"))
    for state, is_lost in (("aa..", False), ("a...", True)):
        [tied] = mends_of(T5, {ties.FLAG: False}, state)
        assert tied["flags"] == {"": True}
        assert tied["text"].startswith(lost) == is_lost


GEMMA3 = kinds.read_class("gemma3", "Gemma3ForConditionalGeneration")
KIMI = kinds.read_class("kimi_linear", "KimiLinearForCausalLM")
OF_GEMMA3 = ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight")
BIASES = ("cls.predictions.bias", "cls.predictions.decoder.bias")
UNTIED = f'write "{ties.FLAG}": false into config.json'
TIED = f'write "{ties.FLAG}": true into config.json'
RUN = "run, with the model's directory in place of DIRECTORY:"
TRAINED, OLD = "if this head was trained, ", "if it is an old copy, "
LOST = "unless the other matrix was lost, "
ONE_FILE = "model.safetensors"


def moved(name, other):
    return f'tensors["{name}"] = tensors.pop("{other}")'


def copied(name, other):
    return f'tensors["{name}"] = tensors["{other}"].clone()'


def deleted(name):
    return f'del tensors["{name}"]'


# What is there; for each remedy its flags, its first line, and the change of the file
REMEDIES = [
    (
        LLAMA,
        "t",
        "ab",
        0,
        ONE_FILE,
        [
            ({"": False}, TRAINED + UNTIED, None),
            ({}, OLD + RUN, deleted(H)),
        ],
    ),
    (
        LLAMA,
        "t",
        "ab",
        0,
        "model-00001-of-00002.safetensors",
        [({"": False}, TRAINED + UNTIED, None)],
    ),
    (LLAMA, "f", "a.", 0, ONE_FILE, [({"": True}, LOST + TIED, None)]),
    (LLAMA, "-", "a.", 0, ONE_FILE, [({"": True}, LOST + TIED, None)]),
    (LLAMA, "t", ".a", 0, ONE_FILE, [({}, RUN, moved(E, H))]),
    (LLAMA, "f", ".a", 0, ONE_FILE, [({"": True}, f"{LOST}{TIED}, and {RUN}", moved(E, H))]),
    (LLAMA, "t", "ab", 1, ONE_FILE, []),  # names that lack a prefix
    (
        LLAMA,
        "t",
        "ab",
        2,
        ONE_FILE,
        [({"": False}, f"{TRAINED}{UNTIED}, and {RUN}", moved(H, f"model.{H}"))],
    ),
    (LLAMA, "f", "ab", 2, ONE_FILE, [({}, TRAINED + RUN, moved(H, f"model.{H}"))]),
    (KIMI, "t", "a.", 0, ONE_FILE, [({"": False}, f"{UNTIED}, and {RUN}", copied(H, E))]),
    (KIMI, "t", ".a", 0, ONE_FILE, [({"": False}, f"{UNTIED}, and {RUN}", copied(E, H))]),
    (KIMI, "f", ".a", 0, ONE_FILE, [({}, RUN, copied(E, H))]),
    (KIMI, "t", "ab", 0, ONE_FILE, [({"": False}, TRAINED + UNTIED, None)]),
    (
        GEMMA3,
        "tf",
        "a.",
        0,
        ONE_FILE,
        [({"": True, "text_config": True}, f"{LOST}{TIED}, also in text_config in it", None)],
    ),
    (GEMMA3, "tt", ".a", 0, ONE_FILE, [({}, RUN, moved(*OF_GEMMA3))]),
    (
        BERT,
        "t",
        "ab",
        0,
        ONE_FILE,
        [
            ({"": False}, f"{TRAINED}{UNTIED}, and {RUN}", copied(*BIASES[::-1])),
            ({}, OLD + RUN, deleted(BERT.names[0][1])),
        ],
    ),
    (BERT, "t", "ab", 0, "a.safetensors", []),  # the second bias would have to be written
]


@pytest.mark.parametrize(
    ("known", "flags", "state", "name_set", "file", "expected"),
    REMEDIES,
    ids=[
        f"{known.kind} {flags} {state} {n} {file}" for known, flags, state, n, file, _ in REMEDIES
    ],
)
def test_the_text_and_the_lines_of_each_remedy(known, flags, state, name_set, file, expected):
    stored = [
        None if letter == "." else tensor(name, V, D, file=file)
        for name, letter in zip(known.names[name_set], state, strict=True)
    ]
    found = matrices.Matrices(stored, name_set=name_set)
    config = {"text_config": SIZES}
    remedies = []
    for flag_of, first_line, change in expected:
        lines = [
            "import os",
            "from safetensors.torch import load_file, save_file  # pip install safetensors torch",
            'tensors = load_file("DIRECTORY/model.safetensors")',
            change,
            'save_file(tensors, "DIRECTORY/new", {"format": "pt"})',
            'os.replace("DIRECTORY/new", "DIRECTORY/model.safetensors")',
        ]
        python = "\n".join(lines) if change else ""
        text = f"{first_line}\n{python}" if change else first_line
        remedies.append({"flags": flag_of, "python": python, "text": text})
    assert mends.find_mends(known, config, flags, [BIASES[0]], found, state) == remedies


def test_no_remedy_without_a_state_or_a_set_of_names():
    found = matrices.Matrices([tensor(E, V, D, file=ONE_FILE), None], name_set=0)
    assert mends.find_mends(LLAMA, {}, "f", [], found, "a.")
    assert mends.find_mends(LLAMA, {}, "f", [], found, None) == []
    found.name_set = None
    assert mends.find_mends(LLAMA, {}, "f", [], found, "a.") == []


def test_a_part_of_config_json_that_is_missing_is_not_made_for_a_flag():
    [remedy] = mends_of_gemma3("tf", {})
    assert remedy["flags"] == {"": False}
    [remedy] = mends_of_gemma3("tf", {"text_config": {"vocab_size": V}})
    assert remedy["flags"] == {"": True, "text_config": True}


def mends_of_gemma3(flags, config):
    found = matrices.Matrices([tensor(OF_GEMMA3[0], V, D, file=ONE_FILE), None], name_set=0)
    return mends.find_mends(GEMMA3, config, flags, [], found, "a.")


# What is said of a conflict


@pytest.mark.parametrize(
    ("said", "tied", "state", "sentence"),
    [
        ({"": True}, True, "ab", "config.json says tied, and the files have another head"),
        ({"": True, "a": True}, True, "aa", "says tied, and the files have two equal matrices"),
        ({"": True, "a": False}, None, "a.", "one flag of config.json says tied and another one"),
        ({"": True}, None, "a.", "config.json does not say whether the model is tied"),
        ({}, True, "a...", "config.json says, by default, tied, and the files hold one matrix"),
        ({"": False}, False, "ab..", "says untied, and the files hold 2 different matrices"),
        ({"": False}, False, "..", "untied, and the files have neither matrix"),
    ],
)
def test_what_config_json_says_and_the_files_hold(said, tied, state, sentence):
    flag = {"said": said, "tied": tied, "place": "" if not said else ties.FLAG}
    assert sentence in ties.said_and_held(flag, state)


def test_who_loses_what_agrees_with_its_verb():
    found = matrices.Matrices([tensor(E, V, D), tensor(H, V, D)], name_set=0)
    flag = {"said": {"": True}, "tied": True, "place": ties.FLAG}
    for readings, words in (
        ({"others": "a0"}, f"vLLM-like programs drop {H}"),
        ({"transformers4": "a0"}, f"transformers 4 drops {H}"),
        ({"transformers4": "a0", "others": "a0"}, f"and vLLM-like programs drop {H}"),
        ({"others": "!"}, "vLLM-like programs cannot read it"),
        ({"others": "ab"}, ""),
    ):
        conflict = ties.describe_conflict(LLAMA, flag, found, matrices.Comparison("ab"), readings)
        assert conflict.endswith(words)
        assert bool(conflict) == bool(words)


# By which rule


@pytest.mark.parametrize(
    ("config", "names", "is_by_rule"),
    [
        ({"architectures": ["MineForCausalLM"]}, [E, H], True),
        ({"architectures": ["MineForCausalLM"]}, [E, "mine.lm_head.weight"], False),
        ({"architectures": ["MineModel"]}, [E, H], False),
        *(({name: True}, [E, H], False) for name in ("tie_it", "tied", "share_it", "shared")),
        ({"tie_it": False, "tier": True}, [E, H], True),
    ],
)
def test_what_is_read_by_the_flag(config, names, is_by_rule):
    found = matrices.Matrices([tensor(name, V, D) for name in names])
    assert ties.goes_by_the_flag(config, None, found) == is_by_rule


@pytest.mark.parametrize(
    ("version", "is_known"), [("4.57.6", True), ("40.1", False), ("5.0", False), (None, False)]
)
def test_what_transformers_4_saved_itself_it_loads(version, is_known):
    known = replace(LLAMA, not_read_by_4=True)
    config = {"transformers_version": version}
    model = SimpleNamespace(
        config_json=config,
        has_weights=True,
        stored=named(tensor(E, V, D)),
        saved=SimpleNamespace(metadata=[None]),
    )
    found = matrices.Matrices([tensor(E, V, D), None], name_set=0)
    assert ("4" not in ties.versions_not_measured(model, known, found)) == is_known
