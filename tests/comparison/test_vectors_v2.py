"""Reference values v2: each case finds a mistake, and `compare --vectors` judges the answers.

`pytest tests/comparison/test_vectors_v2.py -m '' -s` prints, for each known mistake, the cases that
find it.
"""

import hashlib
import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.commands import assert_one_error_line
from support.node import run_node
from support.other_gpt2 import OtherGPT2, softmax

from tiedgpt import (
    GPT2,
    TiedGPTError,
    Tokenizer,
    compare_tokens,
    generate,
    loss_and_gradients,
)
from tiedgpt.checkpoints import safetensors
from tiedgpt.comparison.mistakes import MISTAKES
from tiedgpt.comparison.places import compute_activations, kind_of, trials_in_all_layers
from tiedgpt.comparison.vector_mistakes import (
    DECODERS,
    ENCODERS,
    RIGHT_WORDS,
    Vocabulary,
    adamw_results,
    batch_results,
    encode,
    gradient_results,
    mistakes_of_steps,
    pattern_without,
    step_results,
)
from tiedgpt.comparison.vector_mistakes import RIGHT as RIGHT_RESULT
from tiedgpt.comparison.vectors import (
    DIRECTORY,
    Vectors,
    common_mistakes,
    judge,
    judge_array,
    report_of,
    results_of,
)
from tiedgpt.gpt2.run import activation_shapes
from tiedgpt.gpt2.tokenizer import EOT, byte_alphabet
from tiedgpt.testing import TINY, assert_vectors, random_model

VECTORS = Vectors(DIRECTORY)
CASES = {case["name"]: case for case in VECTORS.cases}
EXPECTED = json.loads((DIRECTORY / "expected.json").read_text(encoding="utf-8"))
RIGHT = {name: EXPECTED[name] for name in CASES}


def of_kind(kind):
    return [case for case in VECTORS.cases if case["kind"] == kind]


# The files


def test_the_published_files_never_change():
    sums = VECTORS.manifest["sha256"]
    files = {path.relative_to(DIRECTORY).as_posix() for path in DIRECTORY.rglob("*.*")}
    assert files == {*sums, "manifest.json"}
    for name, digest in sums.items():
        assert hashlib.sha256((DIRECTORY / name).read_bytes()).hexdigest() == digest, name


def test_they_are_small():
    assert sum(path.stat().st_size for path in DIRECTORY.rglob("*.*")) < 2_000_000


def test_json_and_safetensors_are_the_same():
    weights = json.loads((DIRECTORY / "weights.json").read_text(encoding="utf-8"))
    assert weights.keys() == VECTORS.weights.keys()
    for name, stored in weights.items():
        array = np.array(stored["numbers"]).reshape(stored["shape"]) / stored["divisor"]
        np.testing.assert_array_equal(array, VECTORS.weights[name].astype(np.float64))
    for name, array in VECTORS.expected.items():
        np.testing.assert_allclose(EXPECTED[name], array, rtol=1e-11, atol=1e-12 * abs(array).max())


def test_what_is_expected_is_right():
    report = judge(RIGHT)
    assert [case["status"] for case in report["cases"]] == ["right"] * len(CASES), report
    count = len(CASES)
    assert report["sentence"] == (
        f"not given: 0 of {count} cases; right: {count}, tie-break: 0, wrong: 0"
    )


def test_each_number_matters_in_half_precision():
    """No weight is a float16, so a port that rounds them has other numbers."""
    for name, array in VECTORS.weights.items():
        assert (array.astype(np.float16) != array).mean() > 0.4, name


@pytest.mark.parametrize("case", of_kind("greedy"), ids=lambda case: case["name"])
def test_the_margins_of_greedy_texts(case):
    """The smallest is what the manifest says, and further than float32's rounding goes."""
    model = VECTORS.models[case["given"]["model"]].astype(np.float64)
    prompt = case["given"]["prompt"]
    tokens = RIGHT[case["name"]]
    assert list(generate(model, prompt, case["given"]["tokens"], greedy=True)) == tokens
    logits = model([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
    best = np.sort(logits, axis=-1)
    margin = (best[:, -1] - best[:, -2]).min()
    assert case["note"] == f"the smallest margin of two logits is {margin:.2g}"
    in_float32 = VECTORS.models[case["given"]["model"]]([*prompt, *tokens[:-1]])
    assert margin > 20 * abs(in_float32[len(prompt) - 1 :] - logits).max()


def test_the_gradients_and_the_step_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="needs pip install -e .[parity]")
    for case in of_kind("adamw"):
        given = case["given"]
        before = VECTORS.models[given["model"]].parameters[given["parameter"]]
        parameter = torch.tensor(before.astype(np.float64), requires_grad=True)
        parameter.grad = torch.tensor(VECTORS.expected[given["gradient"]])
        settings = given["settings"]
        decay = settings["weight_decay"] if parameter.ndim > 1 else 0.0
        betas = (settings["beta1"], settings["beta2"])
        torch.optim.AdamW(
            [parameter], lr=settings["lr"], betas=betas, eps=settings["eps"], weight_decay=decay
        ).step()
        np.testing.assert_allclose(
            VECTORS.expected[case["name"]], parameter.detach().numpy(), rtol=0, atol=1e-12
        )


# What the sentences of the mistakes say, tried on a text each

SMALL = Vocabulary(Tokenizer([("b", "c"), ("a", "b"), ("ab", "c"), ("c", "c")], {EOT: 260}))
WORDS = {  # sentence -> a text, and its words by the mistake
    "merges across words: the text is not split": ("a b", ["a b"]),
    "splits at white space alone": ("it's 3,4", ["it's", " 3,4"]),
    "takes [a-zA-Z] for \\p{L}": ("aé b", ["a", "é", " b"]),
    "takes \\w for letters, as the module re without \\p{L}": ("a1_é!", ["a1_é", "!"]),
    "takes [0-9] for \\p{N}": ("1² 2", ["1", "²", " 2"]),
    "takes each digit alone": ("a 12", ["a", " 1", "2"]),
    "takes [ \\t\\r\\n] for \\s": ("a\x0b\x0bb", ["a", "\x0b\x0b", "b"]),
    "lacks the contractions ('s, 't, 'll)": ("it's", ["it", "'", "s"]),
    "reads contractions in capitals, too ('S, 'LL)": ("IT'S", ["IT", "'S"]),
    "lacks the rule \\s+(?!\\S): no space is left for the next word": ("a  b", ["a", "  ", "b"]),
}
BYTES = {  # sentence -> a text, and the bytes that are read
    "has the characters for bytes (latin-1), not UTF-8": ("é\u0141", b"\xe9\x41"),
    "drops what is not ASCII": ("aéb", b"ab"),
    "writes an emoji as two halves of three bytes": (
        "\N{GRINNING FACE}",
        b"\xed\xa0\xbd\xed\xb8\x80",
    ),
    "makes LF of CR LF": ("a\r\nb\r", b"a\nb\r"),
    "drops NUL, or ends there": ("a\0b", b"a"),
    "puts a space before the text": ("a", b" a"),
    "removes white space at both ends": (" a b\n", b"a b"),
    "makes small letters of capitals": ("aÉ", "aé".encode()),
    "normalises characters (NFC)": ("e\u0301\ufb01", "é\ufb01".encode()),
    "normalises characters (NFKC)": ("e\u0301\ufb01", "éfi".encode()),
    "reads <|endoftext|> as ordinary characters": (EOT, EOT.encode()),
}
MERGED = {  # sentence -> a text, and its tokens
    "takes the longest token that fits, without the merges": ("abcc", ["abc", "c"]),
    "makes the leftmost merge, not the one that was learned first": ("abc", ["abc"]),
    "makes a merge at its last place first": ("ccc", ["c", "cc"]),
    "makes each merge once, at its first place alone": ("bcbc", ["bc", "b", "c"]),
    "makes no merge": ("abc", ["a", "b", "c"]),
}
TEXTS = {  # sentence -> the bytes of ids, and the text that is shown of them
    "decodes one token after the other, and a character has several": ("é", "\ufffd\ufffd"),
    "shows the characters of the vocabulary file, such as Ġ": ("a é\n", "aĠÃ©Ċ"),
    "turns Ġ into a space, and no other character into its byte": ("a é\n", "a Ã©\n"),
    "drops <|endoftext|>": (f"a{EOT}b", "ab"),
    "removes spaces before punctuation marks": ("a , b . c ! d ? e ;", "a, b. c! d? e ;"),
    "removes white space at both ends": (" a b\n", "a b"),
    "drops bytes that are no character, without U+FFFD": (b"a\xffb", "ab"),
    "ends at NUL": ("a\0b", "a"),
}


KNOWN = {  # what follows "yours" in a mistake of each kind of case
    "batch": [
        "takes the logits of the last column, which is padding in a shorter text",
        "pads on the left, and tokens see the padding",
        "pads on the left, and counts positions from the padding",
        "pads on the left, sees the padding, and counts positions from it",
    ],
    "gradient": [
        "is 16 times as large: of the sum of the 16 losses, not of their mean",
        "is 0: nothing flows to it",
        "has the other sign",
        "is that of the embedding, without the output matrix's",
        "is that of the output matrix, without the embedding's",
        "has one lookup of each token, the last: rows are set, not added",
        "is 0 in the rows of tokens that are not in the text",
        "is that of the other matrix",
        "is the sum of both matrices' gradients, as if they were tied",
    ],
    "adamw": [
        "is as it was: no step is made",
        "lacks the weight decay",
        "decays biases and layer norms, too",
        "adds the weight decay to the gradient (L2), as Adam does",
        "lacks the bias correction",
        "has eps inside the root",
        "makes two steps, as if the matrix were in the optimizer twice",
        "goes up the gradient",
        "is a step of plain gradient descent",
    ],
}


@pytest.mark.parametrize("kind", KNOWN)
def test_each_known_mistake_of_a_port_is_among_those_that_are_named(kind):
    found = {RIGHT_RESULT}
    for case in of_kind(kind):
        found |= {sentence for sentence, _ in results_of(VECTORS, case, np.float64)}
    assert found == {RIGHT_RESULT, *(f"yours {sentence}" for sentence in KNOWN[kind])}


def test_a_pattern_without_some_tokens_has_each_token_see_itself():
    """Of five tokens, those from the third on do not see the second and the third."""
    scores = np.zeros((1, 1, 5, 5))
    place = SimpleNamespace(x=scores)
    pattern = pattern_without(place, start=1, end=3, first_query=2)[0, 0]
    sees = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]]
    expected = np.array(sees) / np.sum(sees, axis=1, keepdims=True)
    np.testing.assert_allclose(pattern, expected, atol=1e-12)


def test_each_mistake_of_a_tokenizer_is_tried_on_a_text():
    assert ENCODERS.keys() == WORDS.keys() | BYTES.keys() | MERGED.keys()
    assert DECODERS.keys() == TEXTS.keys()


@pytest.mark.parametrize("sentence", WORDS)
def test_a_mistake_of_the_split_makes_the_words_that_it_says(sentence):
    text, words = WORDS[sentence]
    assert ENCODERS[sentence].keywords["words"](text) == words
    assert RIGHT_WORDS(text) != words


@pytest.mark.parametrize("sentence", BYTES)
def test_a_mistake_of_bytes_reads_those_that_it_says(sentence):
    text, expected = BYTES[sentence]
    ids = ENCODERS[sentence](SMALL, text)
    assert SMALL.tokenizer.decode_bytes(ids) == expected
    assert ids != SMALL.tokenizer.encode(text, special="token")


@pytest.mark.parametrize("sentence", MERGED)
def test_a_mistake_of_the_merges_makes_the_tokens_that_it_says(sentence):
    text, tokens = MERGED[sentence]
    assert [SMALL.tokenizer.decode([token]) for token in ENCODERS[sentence](SMALL, text)] == tokens
    assert ENCODERS[sentence](SMALL, text) != SMALL.tokenizer.encode(text)


@pytest.mark.parametrize(
    "text", ["", "ccc", "bcabcc", "it's  3,4\n é", f"a{EOT}bc{EOT}{EOT} cc", EOT, f"{EOT}abc"]
)
def test_without_a_mistake_the_ids_are_those_of_the_tokenizer(text):
    assert encode(SMALL, text) == SMALL.tokenizer.encode(text, special="token")


@pytest.mark.parametrize(
    ("sentence", "tokens"),
    [
        # The merge of b and c comes first, at the end of the word. Then that of a and bc fits.
        ("makes the leftmost merge, not the one that was learned first", ["abc"]),
        ("makes each merge once, at its first place alone", ["abc"]),
        ("makes a merge at its last place first", ["abc"]),
    ],
)
def test_a_merge_at_the_end_of_a_word_comes_before_one_at_its_beginning(sentence, tokens):
    vocabulary = Vocabulary(Tokenizer([("b", "c"), ("a", "bc")], {EOT: 258}))
    ids = ENCODERS[sentence](vocabulary, "abc")
    assert [vocabulary.tokenizer.decode([token]) for token in ids] == tokens


@pytest.mark.parametrize("sentence", TEXTS)
def test_a_mistake_of_a_decoder_shows_what_it_says(sentence):
    text, shown = TEXTS[sentence]
    if isinstance(text, bytes):
        ids = [SMALL.ids[byte_alphabet()[byte]] for byte in text]
    else:
        ids = SMALL.tokenizer.encode(text, special="token")
    assert DECODERS[sentence](SMALL.tokenizer, ids) == shown
    assert SMALL.tokenizer.decode(ids) != shown


# Each known mistake


def wrong_answers(case):
    """For each known mistake, the answer of a port that makes it."""
    given = case["given"]
    if case["kind"] == "encode":
        vocabulary = Vocabulary(VECTORS.tokenizers[given["vocabulary"]])
        return {sentence: f(vocabulary, given["text"]) for sentence, f in ENCODERS.items()}
    if case["kind"] == "decode":
        tokenizer = VECTORS.tokenizers[given["vocabulary"]]
        return {sentence: f(tokenizer, given["ids"]) for sentence, f in DECODERS.items()}
    results = dict(results_of(VECTORS, case, np.float64))
    del results[RIGHT_RESULT]
    if case["kind"] == "gradient":
        # A port has one way for a tied matrix, and another one for two matrices.
        head = VECTORS.models[given["model"]].config.head
        return {f"{sentence} ({head})": answer for sentence, answer in results.items()}
    return results


KINDS = ["encode", "decode", "gradient", "adamw", "batch"]


@pytest.fixture(scope="module")
def answers_of():
    """For each case of KINDS: its name -> mistake -> the answer of a port that makes it."""
    return {case["name"]: wrong_answers(case) for kind in KINDS for case in of_kind(kind)}


@pytest.fixture(scope="module")
def tables(answers_of):
    """For each kind of case: mistake -> {case: "right", or the wrong answer as a text}."""
    tables = {}
    for kind in KINDS:
        table = {}
        for case in of_kind(kind):
            for sentence, answer in answers_of[case["name"]].items():
                with np.errstate(all="ignore"):
                    is_wrong = judge({case["name"]: answer})["wrong"] == 1
                text = answer if isinstance(answer, str) else repr(np.round(answer, 7).tolist())
                table.setdefault(sentence, {})[case["name"]] = text if is_wrong else "right"
        tables[kind] = table
    return tables


@pytest.mark.parametrize("kind", KINDS)
def test_each_mistake_is_found(kind, tables):
    for sentence, answers in tables[kind].items():
        finding = [name for name, answer in answers.items() if answer != "right"]
        print(f"{kind}: {sentence}: {', '.join(finding)}")
        assert finding, sentence


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_stays_because_of_a_mistake(kind, tables):
    """Without it, a mistake is not found, or not told from another."""
    table = tables[kind]
    names = [case["name"] for case in of_kind(kind)]

    def found_and_answers(cases):
        """The mistakes that these cases find, and the different answers of all mistakes to them."""
        answers_to_cases = {
            sentence: tuple(answer_to.get(name, "right") for name in cases)
            for sentence, answer_to in table.items()
        }
        found = {mistake for mistake, each in answers_to_cases.items() if set(each) != {"right"}}
        return found, set(answers_to_cases.values())

    all_found, all_answers = found_and_answers(names)
    for name in names:
        found, answers = found_and_answers([other for other in names if other != name])
        assert found != all_found or len(answers) < len(all_answers), f"{name} can go"


@pytest.mark.parametrize("kind", [pytest.param("encode", marks=pytest.mark.slow), *KINDS[1:]])
def test_each_mistake_is_named(kind, tables, answers_of):
    for sentence in tables[kind]:
        answers = {}
        for case in of_kind(kind):
            answer = answers_of[case["name"]].get(sentence)
            if answer is not None:
                answers[case["name"]] = answer
        report = judge(answers)
        named = [line for lines in report["mistakes"].values() for line in lines]
        sentence = sentence.removesuffix(" (tied)").removesuffix(" (untied)")
        assert any(sentence in line for line in named), (sentence, report["sentence"])
        for lines in report["mistakes"].values():
            once = {line.replace("or yours", "yours") for line in lines}
            assert len(once) == len(lines), lines


def answer_to(case, sentence):
    """The ids of a text by a mistake of a tokenizer."""
    vocabulary = Vocabulary(VECTORS.tokenizers[case["given"]["vocabulary"]])
    return ENCODERS[sentence](vocabulary, case["given"]["text"])


def test_a_right_answer_excludes_a_mistake_that_gives_another():
    first, *others = of_kind("encode")
    wrong = {first["name"]: answer_to(first, "makes no merge")}
    assert "yours makes no merge" in " ".join(judge(wrong)["mistakes"]["encode"])
    right = {case["name"]: RIGHT[case["name"]] for case in others}
    assert "makes no merge" not in " ".join(judge({**wrong, **right})["mistakes"]["encode"])


def test_two_wrong_answers_exclude_the_mistakes_of_one():
    first, second, *_ = of_kind("encode")
    sentences = ["makes no merge", "puts a space before the text"]
    wrong = {
        case["name"]: answer_to(case, sentence)
        for case, sentence in zip((first, second), sentences, strict=True)
    }
    for name, sentence in zip(wrong, sentences, strict=True):
        assert sentence in " ".join(judge({name: wrong[name]})["mistakes"]["encode"])
    common = " ".join(judge(wrong)["mistakes"]["encode"])
    assert not any(sentence in common for sentence in sentences)


def test_alternatives_from_logits_are_joined_once():
    mistakes = ["mlp.0.post: yours is a", "mlp.0.post: or yours is b"]
    answers = {"logits/tied": RIGHT["logits/tied"]}
    reports = []
    for case in VECTORS.cases:
        if case["name"] in answers:
            reports.append(report_of(case, "wrong", mistakes=mistakes))
        else:
            reports.append(report_of(case, "not given"))
    assert common_mistakes(VECTORS, reports, answers) == {"logits/tied": mistakes}


def test_alternatives_from_numbers_and_texts_are_joined():
    for name, group in (("batch/tied", "batch/tied"), ("decode/1", "decode")):
        reports = []
        for case in VECTORS.cases:
            status = "wrong" if case["name"] == name else "not given"
            reports.append(report_of(case, status, mistakes=["yours is a", "yours is b"]))
        common = common_mistakes(VECTORS, reports, {name: RIGHT[name]})
        assert common == {group: ["yours is a", "or yours is b"]}


STEPS = CASES["steps/tied"]["given"]
MISTAKES_OF_STEPS = trials_in_all_layers(
    mistakes_of_steps(start=len(STEPS["prompt"])),
    [*activation_shapes(VECTORS.models["tied"].config), "logits"],
)


def test_the_mistakes_of_steps_are_six():
    assert len(MISTAKES_OF_STEPS) == 6


@pytest.mark.parametrize(
    "trial",
    [
        trial if n == 0 else pytest.param(trial, marks=pytest.mark.slow)
        for n, trial in enumerate(MISTAKES_OF_STEPS)
    ],
    ids=lambda trial: trial.sentence,
)
def test_a_mistake_of_the_steps_after_a_prompt_is_named(trial):
    ids = np.array([[*STEPS["prompt"], *STEPS["next"]]])
    logits = compute_activations(VECTORS.models["tied"], ids, {}, trial.planted)["logits"]
    report = judge({"steps/tied": logits[0, len(STEPS["prompt"]) :]})
    assert report["wrong"] == 1
    named = [line.replace("or yours", "yours") for line in report["mistakes"]["steps/tied"]]
    assert trial.line in named


# With these, the likeliest tokens are those of a right GPT-2, whatever the text is: they change
# nothing in a tied GPT-2, or all scores of a query, or all logits, or the activations alone.
SAME_TEXTS = [
    "is gelu_new, the approximation with tanh",
    "has a layer norm with epsilon 1e-05",
    "scales the scores by 1 / sqrt(n_embd / n_head)",
    "is the tied head, wte",
    "lacks the bias of the keys",
    "is softmax(logits)",
    "is log_softmax(logits)",
    "has the folded and centred weights that TransformerLens's HookedTransformer makes by default",
]


def greedy_with(wrong_of, case):
    """The answer of the tied model with a mistake, each token by a pass of its own."""
    model = VECTORS.models["tied"]
    prompt = case["given"]["prompt"]
    ids = list(prompt)
    for _ in range(case["given"]["tokens"]):
        logits = compute_activations(model, np.array([ids]), {}, wrong_of)["logits"][0, -1]
        ids.append(int(np.argmax(logits)))
    return ids[len(prompt) :]


def marks_of(number):
    """Some mistakes are tried in the slow tests, all with --all-cases."""
    if number % 4 == 0:
        return pytest.mark.slow
    return (pytest.mark.slow, pytest.mark.whole)


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(mistake, marks=marks_of(n)) for n, mistake in enumerate(MISTAKES)],
    ids=lambda mistake: mistake.sentence,
)
def test_a_mistake_is_named_from_40_greedy_tokens(mistake):
    """The first text that it changes beyond rounding is a defect, and it is among the names."""
    names = [*activation_shapes(VECTORS.models["tied"].config), "logits"]
    wrong_of = {
        name: mistake.wrong[kind_of(name)] for name in names if kind_of(name) in mistake.wrong
    }
    for case in of_kind("greedy"):
        if case["given"]["model"] != "tied":
            continue
        answer = greedy_with(wrong_of, case)
        if answer != RIGHT[case["name"]]:
            report = judge({case["name"]: answer})
            found = report["mistakes"]["greedy/tied"]
            print(f"\n{mistake.sentence}: {case['name']}, {len(found)} names")
            assert report["wrong"] == 1
            assert any(mistake.sentence in line for line in found)
            return
    assert mistake.sentence in SAME_TEXTS


def test_most_mistakes_change_a_greedy_text():
    assert len(MISTAKES) - len(SAME_TEXTS) >= 80


@pytest.mark.slow
def test_the_texts_of_both_gelus_differ():
    """Which gelu? Each text is another one for a port with the other gelu."""
    report = judge({"greedy/gelu/1": RIGHT["greedy/gelu/1"]})
    assert report["right"] == 1
    prompt = CASES["greedy/gelu/1"]["given"]["prompt"]
    tokens = list(generate(VECTORS.models["tied"], prompt, 40, greedy=True))
    report = judge({"greedy/gelu/1": tokens})
    assert report["wrong"] == 1
    assert any("is gelu_new, the approx" in line for line in report["mistakes"]["greedy/gelu"])


@pytest.mark.slow
def test_mistakes_that_one_text_cannot_tell_apart_are_alternatives():
    prompt = CASES["greedy/tied/1"]["given"]["prompt"]
    tokens = list(generate(VECTORS.models["gelu"], prompt, 40, greedy=True))
    report = judge({"greedy/tied/1": tokens})
    assert report["wrong"] == 1
    first, *others = report["mistakes"]["greedy/tied"]
    assert first == "mlp.0.post: yours is the exact gelu (erf), in every layer"
    assert others
    assert all(": or yours " in line for line in others), others


@pytest.mark.parametrize("padding", ["the first token", "the last token"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_may_be_padded_with_either_end_of_the_vocabulary(padding, side):
    """GPT-2 has no token for padding. Its last one, <|endoftext|>, is what programs take."""
    given = CASES["batch/tied"]["given"]
    model = VECTORS.models[given["model"]]
    token = 0 if padding == "the first token" else model.config.vocab_size - 1
    longest = max(map(len, given["texts"]))
    rows = []
    for text in given["texts"]:
        pad = [token] * (longest - len(text))
        rows.append(text + pad if side == "right" else pad + text)
    report = judge({"batch/tied": model(np.array(rows))[:, -1]})
    sentence = {
        "right": "takes the logits of the last column",
        "left": "pads on the left, sees the padding, and counts positions from it",
    }[side]
    assert any(sentence in line for line in report["mistakes"]["batch/tied"])


@pytest.mark.slow
def test_tokens_of_0_alone_name_a_mistake_with_perhaps():
    """Zeros in place of logits give them, too, and have no mask."""
    zeros = {f"greedy/tied/{number}": [0] * 40 for number in (1, 2)}
    first, *others = judge(zeros)["mistakes"]["greedy/tied"]
    assert ": perhaps yours " in first
    assert all(": or yours " in line for line in others)


def test_the_wrong_batches_are_what_their_sentences_say():
    """Of two texts, the second one gets two tokens of padding. It is computed alone here."""
    model = random_model()
    long, short = [5, 3, 8], [2]
    results = batch_results(model, [long, short])
    _, right = next(results)
    np.testing.assert_allclose(right, [model(long)[-1], model(short)[-1]], rtol=1e-4, atol=1e-4)

    def last_logits(ids, positions):
        theirs = OtherGPT2(model, positions=lambda T: np.array(positions))
        return theirs(np.array(ids))["logits"][-1]

    for padding in (0, model.config.vocab_size - 1):
        expected = {
            "takes the logits of the last column, which is padding in a shorter text": (
                last_logits([*short, padding, padding], positions=[0, 1, 2])
            ),
            "pads on the left, and tokens see the padding": (
                last_logits([padding, padding, *short], positions=[0, 0, 0])
            ),
            "pads on the left, and counts positions from the padding": (
                last_logits(short, positions=[2])
            ),
            "pads on the left, sees the padding, and counts positions from it": (
                last_logits([padding, padding, *short], positions=[0, 1, 2])
            ),
        }
        for sentence, logits in expected.items():
            name, array = next(results)
            assert name == f"yours {sentence}"
            np.testing.assert_allclose(array, [right[0], logits], rtol=1e-4, atol=1e-4)
    assert list(results) == []


def test_the_wrong_gradients_are_what_their_sentences_say():
    """In two equal texts each token is looked up twice, and has the same gradient both times."""
    text, targets = [5, 3, 8, 2], [7, 1, 4, 6]
    ids, all_targets = [text, text], [targets, targets]
    tied = random_model().astype(np.float64)
    _, gradients = loss_and_gradients(tied.untie("copy"), np.array(ids), np.array(all_targets))
    of_lookup, of_head = gradients["wte.weight"], gradients["lm_head.weight"]
    right = of_lookup + of_head
    in_text = np.zeros_like(right)
    in_text[text] = right[text]
    expected = {
        "is 8 times as large: of the sum of the 8 losses, not of their mean": 8 * right,
        "is 0: nothing flows to it": np.zeros_like(right),
        "has the other sign": -right,
        "is that of the embedding, without the output matrix's": of_lookup,
        "is that of the output matrix, without the embedding's": of_head,
        "has one lookup of each token, the last: rows are set, not added": of_lookup / 2 + of_head,
        "is 0 in the rows of tokens that are not in the text": in_text,
    }
    results = dict(gradient_results(tied, "wte.weight", ids, all_targets))
    np.testing.assert_allclose(results.pop(RIGHT_RESULT), right, rtol=0, atol=1e-12)
    assert results.keys() == {f"yours {sentence}" for sentence in expected}
    for sentence, array in expected.items():
        np.testing.assert_allclose(results[f"yours {sentence}"], array, rtol=0, atol=1e-12)

    untied = tied.untie("copy")
    once = dict(gradient_results(untied, "wte.weight", ids, all_targets))[
        "yours has one lookup of each token, the last: rows are set, not added"
    ]
    np.testing.assert_allclose(once, of_lookup / 2, rtol=0, atol=1e-12)
    for parameter, right, other in (
        ("wte.weight", of_lookup, of_head),
        ("lm_head.weight", of_head, of_lookup),
    ):
        results = dict(gradient_results(untied, parameter, ids, all_targets))
        in_rows = "yours is 0 in the rows of tokens that are not in the text"
        assert (in_rows in results) == (parameter == "lm_head.weight")
        if in_rows in results:
            of_text = np.zeros_like(right)
            of_text[text] = right[text]
            np.testing.assert_allclose(results[in_rows], of_text, rtol=0, atol=1e-12)
        np.testing.assert_allclose(results[RIGHT_RESULT], right, rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            results["yours is that of the other matrix"], other, rtol=0, atol=1e-12
        )
        both = results["yours is the sum of both matrices' gradients, as if they were tied"]
        np.testing.assert_allclose(both, of_lookup + of_head, rtol=0, atol=1e-12)


def test_the_last_lookup_of_a_token_is_that_of_the_last_text_that_has_it():
    """In its last place. A position has the gradient of the one lookup that is made there."""
    texts, targets = [[5, 3, 5], [3, 9, 8]], [[7, 1, 4], [6, 2, 0]]
    model = VECTORS.models["untied"].astype(np.float64)
    results = dict(gradient_results(model, "wte.weight", texts, targets))
    first, second = (
        loss_and_gradients(model, text, its_targets)[1]["wpe.weight"]
        for text, its_targets in zip(texts, targets, strict=True)
    )
    expected = np.zeros_like(model.W_E)
    expected[5] = first[2] / 2  # the loss is the mean of two texts
    expected[[3, 9, 8]] = second[:3] / 2
    last = results["yours has one lookup of each token, the last: rows are set, not added"]
    np.testing.assert_allclose(last, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("axes", [1, 2])
def test_the_wrong_steps_of_adamw_are_what_their_sentences_say(axes):
    """In the first step, the averages of g and of g^2 are 0.1 g and 0.05 g^2."""
    p = np.array([1.0, -2.0, 0.5])
    g = np.array([0.3, 0.1, -0.2])
    if axes == 2:
        p, g = p[None], g[None]
    settings = {"lr": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 0.01, "weight_decay": 0.5}
    decay = 0.1 * 0.5 if axes == 2 else 0.0

    def change(g):
        return 0.1 * g / (abs(g) + 0.01)

    right = p - decay * p - change(g)
    uncorrected = 0.1 * 0.1 * g / (np.sqrt(0.05) * abs(g) + 0.01)
    expected = {
        "is as it was: no step is made": p,
        "lacks the weight decay": p - change(g),
        "decays biases and layer norms, too": p - 0.05 * p - change(g),
        "adds the weight decay to the gradient (L2), as Adam does": p - change(g + 0.5 * p),
        "lacks the bias correction": p - decay * p - uncorrected,
        "has eps inside the root": p - decay * p - 0.1 * g / np.sqrt(g**2 + 0.01),
        "makes two steps, as if the matrix were in the optimizer twice": (
            right - decay * right - change(g)
        ),
        "goes up the gradient": p - decay * p + change(g),
        "is a step of plain gradient descent": p - decay * p - 0.1 * g,
    }
    results = dict(adamw_results(p, g, settings))
    np.testing.assert_allclose(results.pop(RIGHT_RESULT), right)
    assert results.keys() == {f"yours {sentence}" for sentence in expected}
    for sentence, array in expected.items():
        np.testing.assert_allclose(results[f"yours {sentence}"], array, err_msg=sentence)


def test_half_of_the_gradient_is_missing():
    given = CASES["gradient/tied/wte.weight"]["given"]
    untied = VECTORS.models["tied"].untie("copy")
    _, gradients = loss_and_gradients(untied, given["ids"], given["targets"])
    report = judge({"gradient/tied/wte.weight": gradients["lm_head.weight"]})
    assert report["mistakes"]["gradient/tied/wte.weight"] == [
        "yours is that of the output matrix, without the embedding's"
    ]


def test_a_mistake_that_makes_numbers_larger_is_named_with_their_rounding():
    """float32 rounds larger numbers more, and sums in another order several times as much."""
    name = "gradient/tied/wte.weight"
    answer = 16 * VECTORS.expected[name]
    answer += 8 * np.finfo(np.float32).eps * abs(answer).max()
    [sentence] = judge({name: answer})["mistakes"][name]
    assert sentence.startswith("yours is 16 times as large")


# Digits


def with_digits(numbers, form):
    """Nested lists of numbers as a program prints them."""
    if isinstance(numbers, list):
        return [with_digits(each, form) for each in numbers]
    return float(form.format(numbers))


OF_NUMBERS = [name for name in CASES if CASES[name]["kind"] not in ("greedy", "encode", "decode")]


def test_how_many_digits_are_enough():
    """What scripts/ports.md says."""
    for form, wrong in (("{:.7g}", []), ("{:.6g}", ["adamw/tied/h.0.ln_1.weight"])):
        answers = {name: with_digits(RIGHT[name], form) for name in OF_NUMBERS}
        cases = judge(answers)["cases"]
        assert [case["name"] for case in cases if case["status"] == "wrong"] == wrong


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_right_numbers_with_too_few_digits_are_told_to_have_more(name):
    report = judge({name: with_digits(RIGHT[name], "{:.4g}")})
    assert report["wrong"] == 1
    (sentence,) = report["mistakes"][name]
    assert re.search("yours has no more than [34] (digits|decimals): print more$", sentence)


# The verdict


def test_one_right_answer_is_enough_and_the_rest_is_said():
    report = judge({"logits/tied": RIGHT["logits/tied"]})
    assert (report["right"], report["wrong"], report["not_given"]) == (1, 0, len(CASES) - 1)
    assert report["sentence"].startswith(f"not given: {len(CASES) - 1} of {len(CASES)} cases; ")


INPUT = "gradient/tied/h.0.ln_1.weight"  # with it a case of AdamW begins


def test_an_input_among_the_answers_is_not_looked_at():
    """The published file has it, so the file itself can be judged."""
    report = judge(EXPECTED | {INPUT: "no number"})
    assert report["inputs"] == [INPUT]
    assert report["right"] == len(CASES)
    assert report["sentence"].startswith(f"not looked at, an input and no answer: {INPUT}; not")
    assert judge(RIGHT)["inputs"] == []


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({}, "there are no answers: expected at least one, under a case's name"),
        (
            {INPUT: EXPECTED[INPUT]},
            "there are no answers: expected at least one, under a case's name",
        ),
        ([1.0], "expected answers under the names of cases"),
        (
            {"logits/tied": [1], "logits/tide": [1]},
            "'logits/tide' is not a case; the nearest are logits/tied, logits/untied, logits/gelu",
        ),
        ({"logits/tied": "a"}, "logits/tied: expected numbers, got 'a'"),
        ({"batch/tied": [[True]]}, "batch/tied: expected numbers, got [[True]]"),
        ({"batch/tied": [1j]}, "batch/tied: expected numbers, got [1j]"),
        (
            {"logits/tied": [[1], [1, 2]]},
            "logits/tied: expected numbers in lists of equal lengths:",
        ),
        (
            {"logits/tied": [[10**400]]},
            "logits/tied: expected numbers in lists of equal lengths: int too large to convert to "
            "float",
        ),
        (
            {"logits/tied": [[None, "a"]]},
            "logits/tied: expected numbers in lists of equal lengths: could not convert string to "
            "float: 'a'",
        ),
        (
            {"logits/tied": [[None, "a" * 200]]},
            "logits/tied: expected numbers in lists of equal lengths: could not convert string to "
            f"float: '{'a' * 64}",
        ),
        ({"greedy/tied/1": [1.5]}, "greedy/tied/1: expected a list of whole numbers, got [1.5]"),
        ({"greedy/tied/1": [True]}, "greedy/tied/1: expected a list of whole numbers, got [True]"),
        ({"greedy/tied/1": 7}, "greedy/tied/1: expected a list of whole numbers, got 7"),
        ({"encode/split/1": "a1"}, "encode/split/1: expected a list of whole numbers, got 'a1'"),
        (
            {"encode/split/1": [[1], [1, 2]]},
            "encode/split/1: expected a list of whole numbers, got [[1], [1, 2]]",
        ),
        ({"decode/1": None}, "decode/1: expected a list of whole numbers, got None"),
        ({"decode/1": [97, 256]}, "decode/1: expected a text, or a list of its bytes"),
        ({"decode/1": [97, -1]}, "decode/1: expected a text, or a list of its bytes"),
    ],
)
def test_wrong_answers_of_another_kind_are_refused(answers, message):
    with pytest.raises(TiedGPTError) as caught:
        judge(answers)
    if message.endswith("lengths:"):  # what NumPy says follows
        assert str(caught.value).startswith(message)
    else:
        assert str(caught.value) == message


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The directory of reference values of two small models, and a right answer to most cases.

    The models have no layer. All logits of "zero" are 0, those of "random" near it.
    """
    directory = tmp_path_factory.mktemp("small")
    config = replace(TINY, n_layer=0, vocab_size=7, eos_token_id=None)
    parameters = random_model(config).parameters
    final = {name: 0.03 * parameters[name] for name in ("ln_f.weight", "ln_f.bias")}
    random = GPT2(config, {**parameters, **final})
    models = {
        "random": random,
        "zero": GPT2(config, {name: 0 * array for name, array in random.parameters.items()}),
    }
    stored = {
        f"{model}/{name}": array
        for model, each in models.items()
        for name, array in each.parameters.items()
    }
    with open(directory / "weights.safetensors", "wb") as file:
        safetensors.write(file, stored.items())
    words = ["a", "aa", "11 111", "a²1"]
    given_of = {
        "logits/random": ("logits", {"model": "random", "ids": [[1, 2, 3]]}),
        "greedy/random/1": ("greedy", {"model": "random", "prompt": [1], "tokens": 30}),
        "greedy/zero/1": ("greedy", {"model": "zero", "prompt": [1], "tokens": 2}),
        "adamw/1": ("adamw", {"gradient": "gradient/1"}),
        "adamw/2": ("adamw", {"gradient": "gradient/2"}),
    }
    tokenizer = VECTORS.tokenizers["split"]
    answers = {}
    for number, text in enumerate(words, start=1):
        ids = tokenizer.encode(text)
        given_of[f"encode/{number}"] = ("encode", {"vocabulary": "split", "text": text})
        given_of[f"decode/{number}"] = ("decode", {"vocabulary": "split", "ids": ids})
        answers |= {f"encode/{number}": ids, f"decode/{number}": text}
    manifest = {
        "models": {
            name: {
                "config": model.config.to_json(),
                "parameters": {each: f"{name}/{each}" for each in model.parameters},
            }
            for name, model in models.items()
        },
        "vocabularies": {"split": str(DIRECTORY / "split")},
        "cases": [
            {"name": name, "kind": kind, "given": given} for name, (kind, given) in given_of.items()
        ],
    }
    (directory / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return SimpleNamespace(directory=directory, answers=answers, models=models)


def test_answers_of_each_status_are_counted(small):
    answers = {name: small.answers[name] for name in ("encode/4", "encode/1", "decode/1")}
    answers |= {f"decode/{number}": "b" for number in (2, 3)}
    answers |= {"greedy/zero/1": [3, 4], "gradient/2": None, "gradient/1": None}
    report = judge(answers, small.directory)
    assert report["inputs"] == ["gradient/2", "gradient/1"]
    assert report["sentence"] == (
        "not looked at, an input and no answer: gradient/2, gradient/1; not given: 7 of 13 cases; "
        "right: 3, tie-break: 1, wrong: 2"
    )
    counts = [report[status] for status in ("right", "tie_break", "wrong", "not_given")]
    assert counts == [3, 1, 2, 7]
    cases = {case["name"]: case for case in report["cases"]}
    assert cases["greedy/zero/1"] == {
        "name": "greedy/zero/1",
        "status": "tie-break",
        "sentence": (
            "tie-break: 2 of 2 tokens differ, by a gap that rounding to float32 can close; the "
            "widest is 0.0e+00 at tokens[0], where rounding can do 0.0e+00"
        ),
        "mistakes": [],
    }
    assert {case["status"] for name, case in cases.items() if name not in answers} == {"not given"}
    assert report["mistakes"].keys() == {"decode"}


def test_the_reference_values_are_read_once(small):
    answers = {"encode/1": small.answers["encode/1"]}
    assert judge(answers, small.directory)["right"] == 1
    manifest = small.directory / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_bytes(b"")
    assert judge(answers, small.directory)["right"] == 1
    manifest.write_bytes(content)
    for name in ("manifest", "weights", "expected", "models", "tokenizers"):
        assert getattr(VECTORS, name) is getattr(VECTORS, name), name


def test_an_answer_that_no_mistake_explains_has_none(small):
    logits = np.random.default_rng(0).normal(size=(1, 3, 7))
    report = judge({"logits/random": logits}, small.directory)
    assert (report["wrong"], report["mistakes"]) == (1, {"logits/random": []})
    assert report["cases"][0]["sentence"].startswith("first difference: logits[0, 0, 0] is ")


def test_tokens_that_look_drawn_are_judged(small):
    """The case asks for greedy ones."""
    tokens = list(generate(small.models["random"], [1], 30, temperature=1.0, seed=5))
    with pytest.raises(TiedGPTError, match="as in a text drawn"):
        compare_tokens(small.models["random"], [1], tokens)
    report = judge({"greedy/random/1": tokens}, small.directory)
    assert report["wrong"] == 1
    assert report["cases"][1]["sentence"].startswith("defect: tokens[")


@pytest.mark.parametrize(
    ("tokens", "first"),
    [([[0, 0], [0, 0]], "perhaps yours"), ([[0, 0], [0, 1]], "yours"), ([[1, 0], [0, 0]], "yours")],
)
def test_a_mistake_of_tokens_of_0_alone_has_perhaps(tokens, first):
    answers = {f"greedy/tied/{number}": answer for number, answer in enumerate(tokens, start=1)}
    mistakes = ["mlp.0.post: yours is a", "mlp.0.post: yours is b", "final: yours is c"]
    reports = []
    for case in VECTORS.cases:
        # The second answer excludes a mistake, and the order of the first one stays.
        of_case = mistakes if case["name"] == "greedy/tied/1" else [mistakes[2], mistakes[0]]
        status = "wrong" if case["name"] in answers else "not given"
        reports.append(report_of(case, status, mistakes=of_case))
    assert common_mistakes(VECTORS, reports, answers) == {
        "greedy/tied": [f"mlp.0.post: {first} is a", "final: or yours is c"]
    }


@pytest.mark.parametrize("noise", [0.0, 1e-12])
def test_a_gradient_of_0_is_named_without_perhaps(noise):
    name = "gradient/tied/wte.weight"
    answer = np.full(np.shape(RIGHT[name]), noise)
    assert judge({name: answer})["mistakes"] == {name: ["yours is 0: nothing flows to it"]}


def test_numbers_of_a_mistake_are_not_told_to_have_more_digits():
    """These parameters have three decimals, and the step was not made."""
    parameter = np.random.default_rng(0).uniform(0.2, 0.9, size=20).round(3).astype(np.float32)
    settings = {"lr": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 0.01, "weight_decay": 0.5}
    given = {"model": "m", "parameter": "p", "gradient": "g", "settings": settings}
    model = SimpleNamespace(parameters={"p": parameter}, astype=lambda dtype: model)
    vectors = SimpleNamespace(models={"m": model}, expected={"g": 0.1 + parameter})
    case = {"name": "adamw/1", "kind": "adamw", "given": given}
    report = judge_array(vectors, case, parameter)
    assert (report["status"], report["mistakes"]) == (
        "wrong",
        ["yours is as it was: no step is made"],
    )


def test_the_first_wrong_number_is_told_with_nine_digits():
    answer = np.array(RIGHT["batch/tied"])
    answer[-1, -1] = 1 / 3
    report = judge({"batch/tied": answer})
    (case,) = [case for case in report["cases"] if case["name"] == "batch/tied"]
    right = RIGHT["batch/tied"][-1][-1]
    assert case["sentence"] == f"[2, 66] is 0.333333333, expected {right:.9g}"
    assert case["mistakes"] == []
    answer = np.array(RIGHT["batch/tied"]).tolist()
    answer[0][1] = None  # what JavaScript writes for nan
    (case,) = [case for case in judge({"batch/tied": answer})["cases"] if case["sentence"]]
    assert case["sentence"].startswith("[0, 1] is nan, expected ")


def test_a_text_may_be_given_as_any_bytes():
    """0 is the first byte. 255 is the last one, which is no character. No bytes are a text, too."""
    for answer, shown in (([0], r"'\x00'"), ([255], "'\ufffd'"), ([], "''")):
        (case,) = [case for case in judge({"decode/1": answer})["cases"] if case["sentence"]]
        ids = "[102, 172, 253, 246]"
        assert case["sentence"] == f"{ids} is {shown}, expected '\ufffd\ufffd'"


def test_a_directory_without_its_list_of_cases_is_refused(tmp_path):
    with pytest.raises(TiedGPTError) as caught:
        judge({"logits/tied": [1]}, tmp_path)
    path = tmp_path / "manifest.json"
    assert str(caught.value) == f"{path}: no such file; it has the cases of the reference values"


@pytest.mark.parametrize(
    ("name", "answer", "sentence"),
    [
        ("logits/tied", [[1.0]], "the shape is (1, 1), expected (2, 9, 67)"),
        ("steps/tied", [], "the shape is (0,), expected (4, 67)"),
        ("greedy/tied/1", [1, 2], "2 tokens, expected 40"),
        ("greedy/tied/1", [1], "1 token, expected 40"),
        ("greedy/tied/1", [], "0 tokens, expected 40"),
        ("greedy/tied/1", [1] * 41, "41 tokens, expected 40"),
        ("greedy/tied/1", [67] * 40, "67 is no token: the vocabulary has 67"),
        ("greedy/tied/1", [-1] * 40, "-1 is no token: the vocabulary has 67"),
        ("greedy/tied/1", [66] * 38 + [68, -2], "68 is no token: the vocabulary has 67"),
        ("gradient/tied/wte.weight", [[math.nan]], "the shape is (1, 1), expected (67, 24)"),
        ("encode/split/1", [], "'11 111' is [], expected [265, 220, 265, 16]"),
    ],
)
def test_an_answer_of_another_shape_is_wrong(name, answer, sentence):
    (report,) = [case for case in judge({name: answer})["cases"] if case["name"] == name]
    assert (report["status"], report["sentence"]) == ("wrong", sentence)
    assert report["mistakes"] == []


OF_NUMBERS = [name for name in CASES if CASES[name]["kind"] not in (*KINDS[:2], "greedy")]


@pytest.mark.parametrize(
    "name",
    [
        name if n % 3 == 0 else pytest.param(name, marks=pytest.mark.slow)
        for n, name in enumerate(OF_NUMBERS)
    ],
)
def test_nan_is_wrong_in_each_case(name):
    answer = np.full_like(np.array(RIGHT[name], np.float64), np.nan)
    assert judge({name: answer})["wrong"] == 1


@pytest.mark.parametrize("case", of_kind("decode"), ids=lambda case: case["name"])
def test_decoded_bytes_are_an_answer(case):
    name = case["name"]
    ids = case["given"]["ids"]
    data = VECTORS.tokenizers[case["given"]["vocabulary"]].decode_bytes(ids)
    assert judge({name: list(data)})["right"] == 1
    assert judge({name: np.array(list(data), np.uint8)})["right"] == 1
    assert judge({name: data.decode(errors="replace")})["right"] == 1


def test_decoded_bytes_that_are_no_character_are_not_left_out():
    ids = CASES["decode/1"]["given"]["ids"]
    data = VECTORS.tokenizers["shakespeare"].decode_bytes(ids)
    assert judge({"decode/1": data.decode(errors="ignore")})["wrong"] == 1


def test_whole_numbers_are_numbers():
    answer = np.ones(np.shape(RIGHT["batch/tied"]), np.uint8)
    assert judge({"batch/tied": answer})["wrong"] == 1


def test_the_assertion():
    assert_vectors({"logits/tied": RIGHT["logits/tied"]})
    with pytest.raises(AssertionError, match="right: 1, tie-break: 0, wrong: 1"):
        assert_vectors({"logits/tied": RIGHT["logits/tied"], "encode/split/1": [1]})
    with pytest.raises(TiedGPTError, match="there are no answers"):
        assert_vectors({})


# The command


def test_the_command(run, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(RIGHT))
    code, out, err = run("compare", "--vectors", str(path))
    assert (code, err) == (0, "")
    assert out.endswith(f"right: {len(CASES)}, tie-break: 0, wrong: 0\n")
    wrong = {"encode/split/1": [1], "logits/tied": RIGHT["logits/tied"]}
    path.write_text(json.dumps(wrong))
    code, out, _ = run("compare", "--vectors", str(path))
    assert code == 1
    assert "encode: none of the known mistakes gives these answers" in out
    code, out, _ = run("compare", "--vectors", str(path), "--json")
    assert code == 1
    assert json.loads(out)["wrong"] == 1


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_arrays_are_answers_too(suffix, run, tmp_path):
    answers = {name: np.array(RIGHT[name]) for name in ("logits/tied", "greedy/tied/1")}
    path = tmp_path / f"mine{suffix}"
    if suffix == ".npz":
        np.savez(path, **answers)
    else:
        pytest.importorskip("safetensors.numpy").save_file(answers, path)
    assert run("compare", "--vectors", str(path))[0] == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "there are no answers"),
        ("[]", "expected an object such as"),
        ('{"logits/tied": 1, "logits/tied": 2}', "is in it twice"),
    ],
)
def test_a_wrong_file_is_refused(content, message, run, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(content)
    assert_one_error_line(run("compare", "--vectors", str(path)), message)


def test_a_directory_of_answers_is_refused(run, tmp_path):
    np.save(tmp_path / "logits.npy", np.ones((2, 9, 67)))
    result = run("compare", "--vectors", str(tmp_path))
    assert_one_error_line(result, "is a directory: expected a .npz, .safetensors or .json file\n")


def test_a_missing_file_of_answers_is_refused(run, tmp_path):
    result = run("compare", "--vectors", str(tmp_path / "mine"))
    assert_one_error_line(result, "expected a .npz, .safetensors or .json file")
    assert "directory of" not in result[2]


def test_a_model_beside_the_vectors_is_refused(run):
    result = run("compare", "-m", "shakespeare-tied", "--vectors", "mine.json")
    assert_one_error_line(result, "--vectors has models of its own")


# The first port


PORT = """
    const answers = {}
    const modelOf = name => {
        const {config, parameters} = input.models[name]
        const tensors = {}
        for (const [parameter, stored] of Object.entries(parameters)) {
            const {shape, divisor, numbers} = input.weights[stored]
            tensors[parameter] = {shape, numbers: numbers.map(number => number / divisor)}
        }
        return {params: nested(tensors), run: {config, tied: config.tie_word_embeddings}}
    }
    const nested = tensors => {
        const params = {h: []}
        for (const [name, {shape, numbers}] of Object.entries(tensors)) {
            const rows = []
            if (shape.length === 2) {
                for (let i = 0; i < shape[0]; i++)
                    rows.push(Float64Array.from(numbers.slice(i * shape[1], (i + 1) * shape[1])))
            }
            let place = params
            const parts = name.split(".")
            for (const part of parts.slice(0, -1)) place = place[part] ??= {}
            place[parts.at(-1)] = shape.length === 2 ? rows : Float64Array.from(numbers)
        }
        return params
    }
    const tokenizers = {}
    for (const [name, {vocabulary, merges}] of Object.entries(input.vocabularies))
        tokenizers[name] = readTokenizer(vocabulary, merges)
    const judges = {
        logits: ({model, ids}) => {
            const {params, run} = modelOf(model)
            return ids.map(text => gpt2(text, params, run))
        },
        steps: ({model, prompt, next}) => {
            const {params, run} = modelOf(model)
            const cache = newCache()
            gpt2(prompt, params, {...run, cache})
            return next.map(id => gpt2([id], params, {...run, cache})[0])
        },
        batch: ({model, texts}) => {
            const {params, run} = modelOf(model)
            return texts.map(text => gpt2(text, params, run).at(-1))
        },
        greedy: ({model, prompt, tokens}) => {
            const {params, run} = modelOf(model)
            const cache = newCache()
            let logits = gpt2(prompt, params, {...run, cache}).at(-1)
            const text = []
            while (text.length < tokens) {
                text.push(topK(logits, 1)[0])
                logits = gpt2([text.at(-1)], params, {...run, cache}).at(-1)
            }
            return text
        },
        encode: ({vocabulary, text}) => encode(text, tokenizers[vocabulary]),
        decode: ({vocabulary, ids}) => decode(ids, tokenizers[vocabulary]),
    }
    for (const {name, kind, given} of input.cases)
        if (kind in judges) answers[name] = judges[kind](given)
    print(answers)
"""


def test_the_engine_of_the_article_passes_all_but_the_training():
    """Its tokenizer reads special tokens as ordinary characters, so it leaves out such a text."""
    cases = [case for case in VECTORS.cases if "<|endoftext|>" not in str(case["given"])]
    vocabularies = {}
    for name, folder in VECTORS.manifest["vocabularies"].items():
        path = DIRECTORY / folder
        vocabularies[name] = {
            "vocabulary": json.loads((path / "vocab.json").read_text(encoding="utf-8")),
            "merges": (path / "merges.txt").read_text(encoding="utf-8"),
        }
    weights = json.loads((DIRECTORY / "weights.json").read_text(encoding="utf-8"))
    models = VECTORS.manifest["models"]
    answers = run_node(PORT, cases=cases, models=models, weights=weights, vocabularies=vocabularies)
    report = judge(answers)
    wrong = [case for case in report["cases"] if case["status"] == "wrong"]
    assert not wrong, wrong
    left = {
        CASES[case["name"]]["kind"] for case in report["cases"] if case["status"] == "not given"
    }
    assert left == {"gradient", "adamw", "encode"}
    assert report["right"] > 25


def test_mistakes_in_the_steps_after_a_prompt():
    """Each step is read by itself here, without a cache."""
    model = random_model()
    prompt, after = [5, 3, 8, 2], [7, 1, 4]
    results = dict(step_results(model, prompt, after))
    begins = {
        "right": prompt,
        "yours reads the last token of the prompt twice": [*prompt, prompt[-1]],
        "yours does not read the last token of the prompt": prompt[:-1],
    }
    for line, begin in begins.items():
        expected = [model([*begin, *after[:n]])[-1] for n in (1, 2, 3)]
        name = RIGHT_RESULT if line == "right" else line
        np.testing.assert_allclose(results[name], expected, rtol=1e-4, atol=1e-4, err_msg=line)
    before = [model([*prompt, *after[:n]])[-1] for n in (0, 1, 2)]
    late = results["yours has the logits of the token before each step"]
    np.testing.assert_allclose(late, before, rtol=1e-4, atol=1e-4)

    def positions(*of_steps):
        return {"positions": lambda T: np.array([0, 1, 2, 3, *of_steps])}

    def sees(*of_steps):
        """The pattern of a model in which each of the three steps sees these tokens."""
        is_seen = np.tril(np.ones((7, 7), bool))
        for step, tokens in enumerate(of_steps, start=4):
            is_seen[step] = np.isin(np.arange(7), tokens)
        return {"pattern": lambda scores: softmax(np.where(is_seen, scores, -np.inf))}

    steps_of = {
        "embed: yours gives every token position 0 in the steps after the prompt": (
            positions(0, 0, 0)
        ),
        "embed: yours counts positions from 0 again in the steps after the prompt": (
            positions(0, 1, 2)
        ),
        "embed: yours counts positions one too high in the steps after the prompt": (
            positions(5, 6, 7)
        ),
        "embed: yours counts positions one too low in the steps after the prompt": (
            positions(3, 4, 5)
        ),
        "attn.0.pattern: yours has steps after the prompt in which a token does not see the tokens "
        "before it": sees([4], [5], [6]),
        "attn.0.pattern: yours has steps after the prompt in which a token does not see the tokens "
        "between the prompt and itself": sees([0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 2, 3, 6]),
        "mlp.0.post: yours is relu, in every layer": {"gelu": lambda x, layer: np.maximum(x, 0)},
        "final: yours has the weight and bias of h.2.ln_2 in ln_f": {
            "weights": lambda name: name.replace("ln_f", "h.2.ln_2")
        },
    }
    for line, steps in steps_of.items():
        expected = OtherGPT2(model, **steps)(np.array([*prompt, *after]))["logits"][4:]
        np.testing.assert_allclose(results[line], expected, rtol=1e-4, atol=1e-4, err_msg=line)
