"""What a mend changes, and when there is none: made rules, and classes of kinds.json."""

from dataclasses import replace
from pathlib import Path

import pytest

from tiedgpt.anymodel import kinds, matrices, mends
from tiedgpt.anymodel.mends import FILE, FLAG, Files, find_mends, is_clean
from tiedgpt.checkpoints.tensors import Tensor

V, D = 40, 8
E, H = "model.embed_tokens.weight", "lm_head.weight"
LLAMA = kinds.read_class("llama", "LlamaForCausalLM")
BERT = kinds.read_class("bert", "BertForMaskedLM")
T5 = kinds.read_class("t5", "T5ForConditionalGeneration")
GEMMA3 = kinds.read_class("gemma3", "Gemma3ForConditionalGeneration")
TEXT = {"text_config": {"vocab_size": V}}
RUN = "run, with the model's directory in place of DIRECTORY:"


def mends_of(known, flags, state, name_set=0, others=(), file=FILE):
    names = known.names[name_set]
    stored = [
        None if letter == "." else Tensor(Path(file), name, "F32", (V, D), 0, 4, memory=b"")
        for name, letter in zip(names, state, strict=True)
    ]
    found = matrices.Matrices(stored, name_set=name_set)
    return find_mends(known, TEXT, flags, others, found, state)


def told(mend):
    """The flags, the first line of the text, and the lines that change the file."""
    return mend["flags"], mend["text"].split("\n")[0], mend["python"].split("\n")[3:-2]


def test_a_head_that_is_removed_is_named_as_in_the_file():
    known = kinds.read_class("llava", "LlavaForConditionalGeneration")
    assert known.names[1][1] != known.names[0][1]
    *_, removal = mends_of(known, "tt", "ab", name_set=1)
    lines = [f'del tensors["{known.names[1][1]}"]']
    assert told(removal) == ({}, f"if it is an old copy, {RUN}", lines)


def test_no_matrix_of_an_encoder_and_a_decoder_is_called_an_old_copy():
    for state in ("ab..", "abaa"):
        [mend] = mends_of(T5, "t", state)
        assert told(mend) == ({"": False}, f'write "{FLAG}": false into config.json', [])


def test_two_flags_are_written_with_their_value():
    for state, text in (
        ("ab", f'if this head was trained, write "{FLAG}": false'),
        ("a.", f'unless the other matrix was lost, write "{FLAG}": true'),
    ):
        flags = {"ab": "tt", "a.": "ff"}[state]
        first, *_ = mends_of(GEMMA3, flags, state)
        assert first["flags"] == dict.fromkeys(("", "text_config"), flags == "ff")
        assert first["text"] == f"{text} into config.json, also in text_config in it"


@pytest.mark.parametrize("state", ["aa", "a.", ".a"])
def test_one_matrix_is_more_likely_a_tied_model(state):
    """Each reader reads all with either flag, and the versions differ without one."""
    tied, untied = {state: "a0"}, {state: "ab"}
    of_4 = {"t": tied, "f": tied, "-": tied}
    of_5 = {"t": tied, "f": tied, "-": untied}
    known = replace(BERT, names=(BERT.names[0],), rules={"4": [of_4], "5": [of_5]})
    first, *_ = mends_of(known, "-", state)
    assert first["flags"] == {"": True}


BIAS, SECOND = "cls.predictions.bias", "cls.predictions.decoder.bias"


@pytest.mark.parametrize(
    ("others", "is_written"),
    [([BIAS], True), ([], False), ([SECOND], False), ([BIAS, SECOND], False)],
)
def test_a_second_bias_is_copied_from_one_that_is_there(others, is_written):
    first, *_ = mends_of(BERT, "t", "ab", others=others)
    assert first["flags"] == {"": False}
    assert told(first)[2] == ([f'tensors["{SECOND}"] = tensors["{BIAS}"].clone()'] * is_written)


def test_all_second_biases_are_written():
    copies = {"c": "a", "d": "b", "e": "x"}
    known = replace(BERT, copies=copies, separate=tuple(copies))
    first, *_ = mends_of(known, "t", "ab", others=["a", "b"])
    assert told(first)[2] == [
        f'tensors["{each}"] = tensors["{copies[each]}"].clone()' for each in "cd"
    ]


def test_no_second_bias_is_written_into_a_model_that_was_untied_before():
    known = kinds.read_class("albert", "AlbertForMaskedLM")
    usual, there = known.names[0][1], known.names[2][1]
    bias, second = "predictions.bias", "predictions.decoder.bias"
    moved = f'tensors["{usual}"] = tensors.pop("{there}")'
    first, *_ = mends_of(known, "f", "ab", name_set=2, others=[bias])
    assert told(first)[2] == [moved]
    # The mend of a tied one unties it.
    first, *_ = mends_of(known, "t", "ab", name_set=2, others=[bias])
    assert told(first)[2] == [moved, f'tensors["{second}"] = tensors["{bias}"].clone()']


def test_no_mend_changes_one_of_several_files():
    for state, flags in ((".a", "t"), (".a", "f"), ("ab", "f")):
        name_set = 2 if state == "ab" else 0
        assert mends_of(LLAMA, flags, state, name_set=name_set)
        assert mends_of(LLAMA, flags, state, name_set=name_set, file="a.safetensors") == []


def test_a_head_alone_is_renamed_though_the_embedding_that_is_missing_has_another_name():
    known = kinds.read_class("aria", "AriaForConditionalGeneration")
    line = f'tensors["{known.names[0][1]}"] = tensors.pop("{known.names[1][1]}")'
    for state, lines in ((".a", [[], [line]]), ("ab", [[]]), ("a.", [[]])):
        changes = list(mends.changes(known, Files("tt", 1, state), in_one_file=True))
        assert [each for _, each in changes] == lines
        assert [files.name_set for files, _ in changes] == [1, 0][: len(lines)]


# When all is read


def test_a_version_that_has_the_class_and_was_not_measured_may_not_read_the_files():
    files = Files("t", 0, "a.")
    assert is_clean(LLAMA, files)
    for rules in ({"5": LLAMA.rules["5"]}, LLAMA.rules | {"4": [None, None, None]}):
        assert not is_clean(replace(LLAMA, rules=rules), files)
        assert is_clean(replace(LLAMA, rules=rules, versions=("5",)), files)
    assert not is_clean(replace(LLAMA, rules={}), files)
    assert not is_clean(replace(LLAMA, rules={}, versions=()), Files("t", 1, "a."))


def test_without_a_flag_the_rule_goes_by_the_default():
    known = kinds.read_class("gemma3_text", "Gemma3ForCausalLM")
    assert known.default("") is True
    assert is_clean(known, Files("-", 0, "a."))
    assert not is_clean(replace(known, defaults={"5": [False]}), Files("-", 0, "a."))
    assert not is_clean(replace(known, defaults={"5": [None]}), Files("-", 0, "a."))


def test_the_rule_is_not_asked_if_two_flags_contradict_each_other():
    tied = [{"tf": {"a.": "a0"}, "tt": {"a.": "a0"}, "ff": {"a.": "a0"}}]
    known = replace(GEMMA3, rules={"4": tied, "5": tied})
    assert is_clean(known, Files("tf", 0, "a."))
    assert is_clean(known, Files("tt", 0, "a."))
    assert not is_clean(known, Files("ff", 0, "a."))  # the rule says two matrices


def test_the_rule_is_not_asked_for_other_names_of_the_head():
    of_set = [{"t": {"ab": "ab"}}] * 3
    known = replace(LLAMA, rules={"4": of_set, "5": of_set})
    assert not is_clean(known, Files("t", 0, "ab"))  # the rule drops the head
    assert is_clean(known, Files("t", 2, "ab"))


def test_readers_that_differ_are_not_clean():
    for of_4, of_5, clean in (("ab", "ab", True), ("aa", "a0", False), ("a0", "aa", False)):
        known = replace(BERT, rules={"4": [{"f": {"aa": of_4}}], "5": [{"f": {"aa": of_5}}]})
        assert is_clean(known, Files("f", 0, "aa")) == clean
