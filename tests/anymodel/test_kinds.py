"""The facts of a class, by which its files are read: small made rules, each a case of one function.

A rule says flags -> state -> reading, for each version and set of names: the top of kinds.py.
"""

from dataclasses import replace

from tiedgpt.anymodel import kinds

E, H, M = "model.embed_tokens.weight", "lm_head.weight", "more.weight"
LLAMA = kinds.read_class("llama", "LlamaForCausalLM")
GEMMA3 = kinds.read_class("gemma3", "Gemma3ForConditionalGeneration")


def made(names, **rules):
    """A class with these sets of names. rules: v4=[...], a rule for each set of names."""
    return replace(
        LLAMA,
        names=names,
        absent_prefixes=("",) * len(names),
        rules={version.removeprefix("v"): of_sets for version, of_sets in rules.items()},
    )


TWO = ((E, H), (E, f"big.{H}"))
THREE = ((E, H, M), (E, f"big.{H}", M))


def test_the_prefix_with_which_the_embedding_is_not_found():
    for names, readings, prefix in (  # of version 4 with the second set of names
        (TWO, {"t": {"ab": "?b"}}, "big"),
        (TWO, {"f": {"a.": "a?"}, "t": {"a.": "a0", "aa": "?a"}}, "big"),
        (TWO, {"t": {".a": "?a"}}, ""),  # no embedding is stored
        (TWO, {"t": {"ab": "a?"}}, ""),
        (TWO, {"t": {"ab": "ab"}}, ""),
        (((E, H), (E, f"model.{H}")), {"t": {"ab": "?b"}}, ""),  # all names have it
        (((E, H), (M, f"big.{H}")), {"t": {"ab": "?b"}}, ""),
    ):
        known = made(names, v4=[None, readings])
        assert (known.wrapper("4"), known.wrapper("5")) == (prefix, "")


def test_a_matrix_that_one_version_ties_is_not_never_tied():
    for of_4, of_5, never_tied in (
        ("ab.", "abc", {2}),
        ("ab0", "abc", set()),
        ("abc", "ab1", set()),
        ("abc", "!", {2}),
        ("a?0", "abc", set()),
        ("a0c", "a0c", {2}),
    ):
        known = made(THREE, v4=[{"t": {"abc": of_4}}], v5=[None, {"f": {"abc": of_5}}])
        assert known.never_tied == never_tied


def test_the_readings_of_all_sets_of_names():
    known = made(TWO, v5=[{"t": {"aa": "a0"}, "f": {"ab": "ab"}}, None, {"t": {"aa": "aa"}}])
    assert known.all_readings("5") == {"a0", "ab", "aa"}
    assert known.all_readings("4") == set()


def test_the_untied_model_has_a_head_that_differs_from_all_other_matrices():
    rules = {"abc": "abc", "abb": "ab1", "ab.": "ab0"}
    known = made(THREE, v5=[{"f": rules}, {"f": {"abc": "ab1"}}])
    counts = {"abb": 3, "aab": 3, "abc": 3, "a.b": 3, "a..": 2, ".ab": None, "aaa": None}
    for state, count in counts.items():
        assert known.count_untied(0, state) == count, state
    assert known.count_untied(1, "abb") == 2


def test_whose_matrices_are_counted():
    for of_4, of_5, tied, untied in (
        ("abc", "ab1", 2, 2),  # none ties the head: that of the newest
        ("a0c", "abc", 2, 3),  # the version that ties it goes before the newer one
        ("ab1", "!", 2, 2),
        ("!", "!", None, None),
        ("a00", "!", 1, 1),
        ("!", "abc", 3, 3),
    ):
        known = made(
            THREE,
            v4=[{"t": {"abc": of_4}, "f": {"abc": of_4}}],
            v5=[{"t": {"abc": of_5}, "f": {"abc": of_5}}],
        )
        assert known.count_in_memory(0, "t", "abc") == tied
        assert known.count_in_memory(0, "f", "abc") == untied
        assert known.count_in_memory(0, "f", "ab.") is None


def test_the_flag_stands_at_each_place_of_the_class_that_is_counted():
    assert GEMMA3.count_in_memory(0, "t", "a.") == 1
    assert GEMMA3.count_in_memory(0, "f", "ab") == 2


def test_the_default_of_each_place_is_its_own():
    known = replace(GEMMA3, defaults={"4": [True, False], "5": [True, None]})
    assert (known.default(""), known.default("text_config")) == (True, None)
    known = replace(GEMMA3, defaults={"5": [True, False]})
    assert (known.default(""), known.default("text_config")) == (True, False)


def test_a_reading_that_was_not_measured_is_none():
    known = made(TWO, v5=[{"t": {"aa": "a0"}}, None])
    assert known.reading("5", 0, "t", "aa") == "a0"
    for version, name_set, flags, state in (
        ("4", 0, "t", "aa"),
        ("5", 1, "t", "aa"),
        ("5", 0, "f", "aa"),
        ("5", 0, "t", "ab"),
    ):
        assert known.reading(version, name_set, flags, state) is None


def test_the_class_that_reads_a_model():
    for kind, classes, name in (
        ("gpt2", None, "GPT2LMHeadModel"),  # of two
        ("gpt2", [], "GPT2LMHeadModel"),
        ("aria", [], "AriaForConditionalGeneration"),  # the only one
        ("albert", None, None),  # AutoModelForCausalLM takes none of two
        ("gpt2", ["GPT2DoubleHeadsModel"], "GPT2DoubleHeadsModel"),
        ("gpt2", ["GPT2Model"], None),
        ("gpt2", ["GPT2LMHeadModel", "GPT2Model"], None),
        *(("gpt2", none, None) for none in ("", {}, 0, False)),
        ("xyz", None, None),
        ("GPT2", None, None),
        (["gpt2"], None, None),
        (None, None, None),
    ):
        known = kinds.model_class({"model_type": kind, "architectures": classes})
        assert (known and known.name) == name, (kind, classes)
    assert kinds.model_class({"model_type": "llama"}) is LLAMA
    assert kinds.model_class({}) is None


def test_the_facts_are_read_once():
    assert kinds.load_kinds() is kinds.load_kinds()
    assert kinds.read_class("gpt2", "GPT2LMHeadModel") is kinds.model_class({"model_type": "gpt2"})
    assert kinds.all_classes() is kinds.all_classes()
    assert LLAMA in kinds.all_classes()


def test_a_value_of_config_json_by_its_place():
    config = {"a": {"b": {"c": 1}}, "b": 2, "x": [2]}
    values = {"a.b.c": 1, "a.b.d": None, "a.b.c.d": None, "a": {"b": {"c": 1}}, "x.b": None}
    assert {place: kinds.value_at(config, place) for place in values} == values
    assert kinds.value_at({"a": {"b": {"c": {"d": 3}}}}, "a.b.c.d") == 3


# Readings


def test_what_is_read_by_the_rule():
    for tied, readings in (
        (True, {"ab": "a0", "aa": "a0", "a.": "a0", ".a": "!", "..": "!"}),
        (False, {"ab": "ab", "aa": "aa", "a.": "!", ".a": "!", "..": "!"}),
        (None, {"ab": None, "a.": None}),
    ):
        assert {state: kinds.by_rule(tied, state) for state in readings} == readings


def test_a_reading_in_words():
    words = {
        None: None,
        "??": "random",
        "a0?": "random",
        "a?a": "random head",
        "a0a": "tied",
        "a00?": "random",
        "a0?a": "random",
        "a?1b": "random",
        "?000": "random",
        "?bbb": "random embedding",
        "abab": "untied",
        "ab11": "untied",
        "a001": "tied",
        "!": "error",
    }
    assert {reading: kinds.in_words(reading) for reading in words} == words


def test_which_readings_agree():
    for readings in (["ab1", "abb"], ["a00", "a01"], ["!", "!"]):
        assert kinds.agree(readings), readings
    for readings in (["ab", "aa"], ["aa", "a0"], ["ab", "ab", "a0"], ["!", "ab"]):
        assert not kinds.agree(readings), readings


def test_what_a_program_loses_of_the_files():
    lost = {
        ("b0", "ab"): "drops 0",
        ("a0", "ab"): "drops 1",
        ("a000", "abcd"): "drops 1 and 2 and 3",
        ("d000", "abcd"): "drops 0 and 1 and 2",
        ("a0", "aa"): "",
        ("ba", "ab"): "",
        ("a0", "a."): "",
        ("a0??", "a..."): "makes another matrix random",
        ("?0?a", "...a"): "makes the embedding and the head and another matrix random",
        ("?a", "ba"): "makes the embedding random",
        ("!", "ab"): "cannot read it",
    }
    for (reading, state), what in lost.items():
        names = "0123"[: len(state)]
        assert kinds.what_is_lost(reading, state, names) == what


# The facts of classes that have more of them than most


def test_each_fact_of_a_class_is_read():
    classes = {known.name: known for known in kinds.all_classes()}
    nezha, evolla = classes["NezhaForMaskedLM"], classes["EvollaForProteinText2Text"]
    assert (evolla.versions, tuple(evolla.rules)) == (("4", "5"), ("5",))
    assert classes["AfmoeForCausalLM"].versions == ("5",)
    assert classes["LlavaForConditionalGeneration"].nested_kinds == {
        "text_config": ["llama", "mistral", "qwen2"]
    }
    assert classes["RemBertForMaskedLM"].sizes == (
        ("vocab_size", "input_embedding_size"),
        ("vocab_size", "output_embedding_size"),
    )
    assert classes["MarianForCausalLM"].shares == {"share_encoder_decoder_embeddings": True}
    assert classes["Gemma4ForCausalLM"].other_flags == ("per_layer_config",)
    assert "model.layers.N.mlp.gate.e_score_correction_bias" in (
        classes["DeepseekV3ForCausalLM"].buffers
    )
    # Of BERT the second bias is a parameter of its own, and of Nezha it never is.
    second, bias = "cls.predictions.decoder.bias", "cls.predictions.bias"
    assert classes["BertForMaskedLM"].copies == nezha.copies == {second: bias}
    assert (classes["BertForMaskedLM"].separate, nezha.separate) == ((second,), ())
    assert (classes["ColPaliForRetrieval"].is_counted, nezha.is_counted) == (False, True)
    assert (classes["GlmForCausalLM"].default_pad, LLAMA.default_pad) == (151329, 0)
    assert classes["RobertaForMaskedLM"].positions == {"max_position_embeddings": 512}
    assert classes["RobertaForMaskedLM"].absent_prefixes == ("", "roberta.", "")
    assert (classes["Qwen3MoeForCausalLM"].not_read_by_4, LLAMA.not_read_by_4) == (True, False)
    # A set of names that was not measured has no rule.
    assert None in classes["MarianMTModel"].rules["5"]
    # Each kind may have several classes.
    assert {"BertForMaskedLM", "BertForPreTraining", "BertLMHeadModel"} <= set(classes)
