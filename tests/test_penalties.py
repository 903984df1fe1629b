"""The repetition penalty and min-p: as transformers defines them, with drafts, in the commands.

The repetition penalty lowers the logits of the tokens that the text has already. min-p drops tokens
whose probability is less than min_p times that of the likeliest token. The end of the file tests
how the commands choose their default model.
"""

import json

import numpy as np
import pytest
from support.commands import assert_one_error_line, output
from support.models import SMALL, random_model

import tiedgpt
from tiedgpt.errors import ArgumentError
from tiedgpt.sampling import Sampling, penalised

TEXT = [3, 5, 5, 40, 3]  # the tokens whose logits a penalty lowers
LOGITS = np.random.default_rng(1).normal(0, 3, 101).astype(np.float32)


def test_a_repeated_token_is_penalised_once():
    """A logit above 0 is divided by the penalty. A logit below 0 is multiplied by it.

    The text has token 0 twice, and not token 2.
    """
    logits = np.float32([2.0, -2.0, 1.0, 0.0])
    np.testing.assert_array_equal(penalised(logits, [0, 0, 1, 3], penalty=2), [1, -4, 1, 0])


@pytest.mark.parametrize("penalty", [1e-308, 1e308])
def test_a_penalty_of_any_size_gives_finite_logits(penalty):
    logits = np.array([2.0, -2.0, 0.0], np.float32)
    text = [0, 1, 2]
    assert np.isfinite(penalised(logits, text, penalty)).all()
    sampling = Sampling(repetition_penalty=penalty)
    token = sampling.choose(logits, np.random.default_rng(0), text)
    assert token in (0, 1, 2)


def test_penalised_does_not_change_its_argument():
    before = LOGITS.copy()
    penalised(LOGITS, TEXT, penalty=1.5)
    np.testing.assert_array_equal(LOGITS, before)


def test_min_p_drops_tokens_that_are_much_less_likely_than_the_likeliest():
    """The limit is 0.3 times 0.5, which is 0.15. The three tokens that stay have 0.95 in all."""
    probabilities = [0.5, 0.3, 0.15, 0.05]
    kept = Sampling(min_p=0.3).probabilities(np.log(probabilities))
    np.testing.assert_allclose(kept, np.array([0.5, 0.3, 0.15, 0]) / 0.95, rtol=1e-12)


def test_min_p_of_1_keeps_the_likeliest_token_alone():
    kept = Sampling(min_p=1).probabilities(LOGITS)
    assert np.flatnonzero(kept).tolist() == [LOGITS.argmax()]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"repetition_penalty": 1.3}, id="penalty"),
        pytest.param({"repetition_penalty": 0.7}, id="reward"),
        pytest.param({"min_p": 0.05}, id="min-p"),
        pytest.param({"min_p": 0.05, "temperature": 2.0}, id="min-p-after-the-temperature"),
        pytest.param({"min_p": 0.1, "top_k": 20, "top_p": 0.8}, id="min-p-after-k-and-p"),
        pytest.param(
            {
                "repetition_penalty": 1.3,
                "temperature": 0.5,
                "top_k": 9,
                "top_p": 0.9,
                "min_p": 0.02,
            },
            id="all",
        ),
    ],
)
def test_transformers_keeps_the_same_tokens_with_the_same_probabilities(settings):
    transformers = pytest.importorskip("transformers", reason="needs pip install -e .[parity]")
    torch = pytest.importorskip("torch")
    processors = []  # in the order in which `generate` of transformers applies them
    if "repetition_penalty" in settings:
        penalty = settings["repetition_penalty"]
        processors.append(transformers.RepetitionPenaltyLogitsProcessor(penalty))
    if "temperature" in settings:
        processors.append(transformers.TemperatureLogitsWarper(settings["temperature"]))
    if "top_k" in settings:
        processors.append(transformers.TopKLogitsWarper(settings["top_k"]))
    if "top_p" in settings:
        processors.append(transformers.TopPLogitsWarper(settings["top_p"]))
    if "min_p" in settings:
        processors.append(transformers.MinPLogitsWarper(settings["min_p"]))
    batch_of_one = torch.tensor([TEXT])
    scores = torch.from_numpy(LOGITS)[None].clone()
    for processor in processors:
        scores = processor(batch_of_one, scores)
    expected = torch.softmax(scores.double(), dim=-1)[0].numpy()

    sampling = Sampling(**settings)
    logits = penalised(LOGITS, TEXT, sampling.repetition_penalty)
    probabilities = sampling.probabilities(logits)
    np.testing.assert_array_equal(probabilities > 0, expected > 0)
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)


def test_greedy_takes_the_likeliest_token_after_the_penalty():
    likeliest = int(LOGITS.argmax())
    sampling = Sampling(greedy=True, repetition_penalty=100.0)
    assert sampling.choose(LOGITS, np.random.default_rng(0)) == likeliest
    assert sampling.choose(LOGITS, np.random.default_rng(0), [likeliest]) != likeliest


def test_greedy_text_with_a_penalty_is_that_of_transformers():
    transformers = pytest.importorskip("transformers", reason="needs pip install -e .[parity]")
    torch = pytest.importorskip("torch")
    theirs = transformers.GPT2LMHeadModel.from_pretrained("weights/shakespeare-tied")
    ids = tiedgpt.load_tokenizer("shakespeare-tied").encode("To be, or not to be")
    expected = theirs.generate(
        torch.tensor([ids]), max_new_tokens=40, do_sample=False, repetition_penalty=1.2
    )
    model = tiedgpt.load_model("shakespeare-tied")
    tokens = list(tiedgpt.generate(model, ids, 40, greedy=True, repetition_penalty=1.2))
    assert [*ids, *tokens] == expected[0].tolist()


@pytest.mark.parametrize("settings", [{"greedy": True}, {"seed": 3, "min_p": 0.1}])
@pytest.mark.parametrize("draft", ["lookup", random_model(SMALL, seed=1)], ids=["lookup", "model"])
def test_drafts_change_no_token_of_a_text_with_a_penalty(settings, draft):
    """The prompt repeats 1, 2, 3. The lookup guesses that this goes on; the penalty may end it."""
    model = random_model(SMALL)
    prompt = [1, 2, 3, 1, 2, 3, 1, 2]
    settings = {**settings, "max_new_tokens": 60, "repetition_penalty": 1.1}
    plain = list(tiedgpt.generate(model, prompt, draft=None, **settings))
    assert list(tiedgpt.generate(model, prompt, draft=draft, **settings)) == plain


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"min_p": -0.1}, id="min-p-below-0"),
        pytest.param({"min_p": 1.1}, id="min-p-above-1"),
        pytest.param({"repetition_penalty": 0}, id="no-penalty"),
        pytest.param({"repetition_penalty": float("nan")}, id="penalty-nan"),
    ],
)
def test_a_value_out_of_range_is_refused(settings):
    (name,) = settings
    with pytest.raises(ArgumentError, match=f"{name} must be"):
        Sampling(**settings)


# The command


def test_the_flags_of_the_command_do_what_the_arguments_of_generate_do(run):
    arguments = ["generate", "-m", "shakespeare-tied", "--seed", "1", "-n", "20", "To be", "--json"]
    plain = json.loads(output(run, *arguments))
    with_flags = json.loads(
        output(run, *arguments, "--repetition-penalty", "1.5", "--min-p", "0.2")
    )
    tokens = tiedgpt.generate(
        tiedgpt.load_model("shakespeare-tied"),
        plain["prompt_ids"],
        20,
        seed=1,
        min_p=0.2,
        repetition_penalty=1.5,
    )
    assert with_flags["samples"][0]["ids"] == list(tokens)
    assert with_flags["samples"][0]["ids"] != plain["samples"][0]["ids"]


def test_echo_prints_the_prompt_before_each_sample(run):
    arguments = ["generate", "-m", "shakespeare-tied", "--seed", "1", "-n", "5", "To be"]
    text = output(run, *arguments)
    assert output(run, *arguments, "--echo") == f"To be{text}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--min-p", "2", "a"], "expected a number from 0 to 1", id="min-p"),
        pytest.param(["--min-p", "0.1", "--greedy", "a"], "--greedy cannot be given", id="greedy"),
        pytest.param(["--echo", "--json", "a"], "the document has the prompt", id="echo-json"),
        pytest.param(["to", "be"], "unexpected argument be: put the prompt in quotes", id="words"),
    ],
)
def test_refused_command_lines(run, arguments, message):
    assert_one_error_line(run("generate", "-m", "shakespeare-tied", *arguments), message)


# The default model


def test_tiedgpt_model_names_the_default_model(run, monkeypatch):
    monkeypatch.setenv("TIEDGPT_MODEL", "shakespeare-untied")
    assert json.loads(output(run, "params", "--json"))["model"] == "shakespeare-untied"
    ids_of_shakespeare = [396, 304]
    assert json.loads(output(run, "tokenize", "--json", "To be"))["ids"] == ids_of_shakespeare


def test_the_flag_of_a_model_is_preferred_to_tiedgpt_model(run, monkeypatch):
    monkeypatch.setenv("TIEDGPT_MODEL", "shakespeare-untied")
    report = json.loads(output(run, "params", "--json", "-m", "shakespeare-tied"))
    assert report["model"] == "shakespeare-tied"


def test_an_unknown_model_in_tiedgpt_model_is_an_error_that_names_the_variable(run, monkeypatch):
    monkeypatch.setenv("TIEDGPT_MODEL", "shakespear")
    assert_one_error_line(run("params"), "TIEDGPT_MODEL: no model 'shakespear'")


def test_without_models_study_compares_the_two_shipped_ones(run):
    names = ["shakespeare-tied", "shakespeare-untied"]
    _, out, _ = run("study", "--json")
    assert json.loads(out) == json.loads(run("study", "--json", *names)[1])
