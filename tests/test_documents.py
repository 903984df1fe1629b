"""Many documents in batches: the results of one document at a time, in order.

If a document causes an error, the error is its result. `lookahead` documents are taken from the
iterable together, and those of similar lengths are put into a batch. test_shards.py has the tests
of the command, and test_kills.py has those in which processes of the command are killed.
"""

import random
from dataclasses import replace
from itertools import count, islice

import numpy as np
import pytest
from support.models import SMALL, SMALL_MERGES, random_model

from tiedgpt import GPT2, Tokenizer, generate, generate_documents, score, score_documents
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.generation import sample_steps
from tiedgpt.inference import documents
from tiedgpt.inference.text import TextSample, push_steps
from tiedgpt.sampling import Sampling

CONFIG = replace(SMALL, vocab_size=262, n_ctx=200, bos_token_id=None, eos_token_id=261)
TOKENIZER = Tokenizer(SMALL_MERGES)  # 256 bytes, 5 merges, <|endoftext|>


def random_texts(n: int, longest: int, seed: int = 0) -> list[str]:
    """`n` texts of 2 to `longest` characters."""
    rng = random.Random(seed)
    return ["".join(rng.choices("low er é", k=rng.randint(2, longest))) for _ in range(n)]


# Scores


@pytest.mark.parametrize(
    ("n_ctx", "lookahead"),
    [
        pytest.param(31, 1, id="short-context-one-text-at-a-time"),
        pytest.param(31, 7, id="short-context"),
        pytest.param(200, 7, id="long-context"),
        pytest.param(200, 1000, id="long-context-all-texts-at-once"),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 5e-5)])
def test_scores_equal_those_of_one_text_at_a_time_in_order(n_ctx, lookahead, dtype, tolerance):
    model = random_model(replace(CONFIG, n_ctx=n_ctx), dtype=dtype)
    short_texts = random_texts(60, longest=50)
    long_texts = random_texts(5, longest=700, seed=1)
    texts = short_texts + long_texts
    random.Random(2).shuffle(texts)
    results = score_documents(model, TOKENIZER, texts, stride=20, lookahead=lookahead)
    for text, result in zip(texts, results, strict=True):
        expected = score(model, TOKENIZER, TOKENIZER.encode(text), stride=20)
        assert result.tokens == expected.tokens
        assert result.bytes == expected.bytes
        assert result.nll == pytest.approx(expected.nll, abs=tolerance)
        # A long text is not read in a batch, so its score has the same bits.
        text_tokens = result.tokens + 1  # the first token is not predicted
        is_long = text_tokens > min(documents.SHORT, n_ctx)
        if is_long:
            assert result == expected


def test_batches_of_texts_are_of_similar_lengths_and_bounded(monkeypatch, shapes_read):
    """A batch has at most BATCH_TOKENS tokens. Few of them are padding, and no loss is of padding.

    shapes_read has the [B, T] of each forward pass. row_losses computes the losses of a batch.
    """
    monkeypatch.setattr(documents, "BATCH_TOKENS", 100)
    row_losses = documents.row_losses
    loss_counts = []  # how many losses each call of row_losses computes

    def recorded(logits, targets):
        loss_counts.append(len(targets))
        return row_losses(logits, targets)

    monkeypatch.setattr(documents, "row_losses", recorded)
    texts = random_texts(50, longest=60)
    results = list(score_documents(random_model(CONFIG), TOKENIZER, texts))
    batch_sizes = [B for B, T in shapes_read]
    assert sum(batch_sizes) == 50, "each text is read once"
    assert max(batch_sizes) > 5, "several texts are read together"
    tokens_of_batches = [B * T for B, T in shapes_read]
    assert max(tokens_of_batches) <= 100
    losses_computed = sum(loss_counts)
    assert losses_computed == sum(result.tokens for result in results)
    assert sum(tokens_of_batches) < 1.1 * losses_computed, "there is little padding"


WRONG_TEXTS = [
    pytest.param("", "a score needs two tokens or more, got 0", id="empty"),
    pytest.param("a", "a score needs two tokens or more, got 1", id="one-token"),
    pytest.param("a<|endoftext|>b", "special token", id="special-token"),
    pytest.param("a\ud800b", "half of a surrogate pair", id="not-unicode"),
    pytest.param(None, "must be one sequence of ids [N], got shape ()", id="none"),
    pytest.param(b"text", "expected token ids, got text", id="bytes"),
    pytest.param(iter([1, 2]), "must be one sequence of ids [N], got shape ()", id="iterator"),
    pytest.param(object(), "must be one sequence of ids [N], got shape ()", id="object"),
    pytest.param(((1, 2), (3,)), "ids must be [T] or [B, T]", id="rows-of-unequal-lengths"),
    pytest.param((i for i in (1, 2)), "must be one sequence of ids [N]", id="generator"),
    pytest.param((1.5, 2), "must be whole numbers", id="not-whole"),
    pytest.param((1, 262), "262 is not a token id", id="id-of-no-token"),
    pytest.param((-1, 5), "token id -1 is outside the vocabulary", id="id-below-0"),
    pytest.param(((1, 2), (3, 4)), "must be one sequence of ids [N], got shape (2, 2)", id="batch"),
    pytest.param("low" * 80, "80 tokens, more than the limit of 70", id="too-long"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG_TEXTS)
def test_the_result_of_a_wrong_document_is_its_error(wrong, message):
    model = random_model(replace(CONFIG, vocab_size=264))  # two more tokens than the tokenizer
    texts = ["lower", wrong, "lower low"]
    before, error, after = score_documents(model, TOKENIZER, texts, max_tokens=70)
    assert isinstance(error, TiedGPTError)
    assert message in str(error)
    assert before.nll == pytest.approx(score(model, TOKENIZER, TOKENIZER.encode("lower")).nll)
    assert after.nll == pytest.approx(score(model, TOKENIZER, TOKENIZER.encode("lower low")).nll)


def test_a_text_has_the_same_loss_in_each_row_of_a_batch():
    model = random_model(CONFIG)
    losses = [result.nll for result in score_documents(model, TOKENIZER, ["lower"] * 11)]
    assert max(losses) - min(losses) < 5e-6


def test_documents_are_texts_or_ids_and_are_cut():
    """One text in four forms. The last form has three more tokens, 3, 3, 3, which are cut off."""
    model = random_model(CONFIG)
    text = "lower<|endoftext|>low"
    ids = TOKENIZER.encode(text, special="token")
    results = score_documents(
        model,
        TOKENIZER,
        [text, ids, np.array(ids), [*ids, 3, 3, 3]],
        max_tokens=len(ids),
        on_long="cut",
        special="token",
        lookahead=1,  # one document at a time
    )
    loss = score(model, TOKENIZER, ids).nll
    assert [result.nll for result in results] == pytest.approx([loss] * 4, abs=5e-6)


def test_a_special_token_may_be_read_as_text():
    model = random_model(CONFIG)
    result = next(score_documents(model, TOKENIZER, ["low<|endoftext|>"], special="text"))
    assert result.tokens == len(TOKENIZER.encode("low<|endoftext|>", special="text")) - 1


# The iterable of documents


def test_documents_are_read_when_they_are_needed():
    taken = []

    def endless():
        for number in count():
            taken.append(number)
            yield "lower"

    results = score_documents(random_model(CONFIG), TOKENIZER, endless(), lookahead=10)
    assert len(taken) == 0
    eleven_results = list(islice(results, 11))
    assert len(eleven_results) == 11
    assert len(taken) == 20, "the first result needs ten documents, the eleventh ten more"


def test_an_array_of_ids_may_be_reused_for_the_next_document():
    documents = [[108, 111, 119], [101, 114, 32], [119, 101, 114]]

    def ids_in_one_array():
        array = np.zeros(3, int)
        for ids in documents:
            array[:] = ids
            yield array

    model = random_model(CONFIG)
    expected = [result.nll for result in score_documents(model, TOKENIZER, documents)]
    results = score_documents(model, TOKENIZER, ids_in_one_array())
    assert [result.nll for result in results] == expected


def test_an_error_of_the_iterable_is_raised():
    def broken():
        yield "lower"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(score_documents(random_model(CONFIG), TOKENIZER, broken()))


@pytest.mark.parametrize("function", [score_documents, generate_documents])
def test_a_damaged_model_raises_an_error_in_place_of_results(function):
    model = random_model(CONFIG)
    model.parameters["wte.weight"][5] = np.nan
    with pytest.raises(TiedGPTError, match="damaged"):
        list(function(model, TOKENIZER, ["lower"]))


WRONG_ARGUMENTS = [
    pytest.param(score_documents, "stride", 0, id="score-stride"),
    pytest.param(score_documents, "max_tokens", 1, id="score-max-tokens"),
    pytest.param(score_documents, "on_long", "drop", id="score-on-long"),
    pytest.param(score_documents, "special", "drop", id="score-special"),
    pytest.param(score_documents, "lookahead", 0, id="score-lookahead"),
    pytest.param(generate_documents, "num_samples", 0, id="generate-num-samples"),
    pytest.param(generate_documents, "first", -1, id="generate-first"),
    pytest.param(generate_documents, "seed", -1, id="generate-seed"),
    pytest.param(generate_documents, "stop", ".", id="generate-stop-not-a-list"),
    pytest.param(generate_documents, "stop", [""], id="generate-stop-empty"),
    pytest.param(generate_documents, "on_long", "drop", id="generate-on-long"),
    pytest.param(generate_documents, "special", "drop", id="generate-special"),
    pytest.param(generate_documents, "lookahead", 0, id="generate-lookahead"),
]


@pytest.mark.parametrize(("function", "name", "value"), WRONG_ARGUMENTS)
def test_wrong_arguments_are_errors_at_once(function, name, value):
    with pytest.raises(ArgumentError, match=f"^{name} must be "):
        function(random_model(CONFIG), TOKENIZER, [], **{name: value})


@pytest.mark.parametrize("function", [score_documents, generate_documents])
def test_one_text_in_place_of_several(function):
    with pytest.raises(ArgumentError, match="expected an iterable of texts, got one text"):
        function(random_model(CONFIG), TOKENIZER, "one text")


# Samples


def sample_alone(model, prompt, stream):
    """The sample of up to 20 tokens that continues one prompt, until the text "lo" or an end."""
    sample = TextSample(TOKENIZER, stop=["lo"], eos_token_ids=model.config.eos_token_ids)
    steps = sample_steps(
        model,
        [TOKENIZER.encode(prompt)],
        max_new_tokens=20,
        sampling=Sampling(top_k=30),
        streams=[stream],
    )
    for _ in push_steps(steps, [sample]):
        pass  # the sample keeps the text
    return sample


@pytest.mark.parametrize("num_samples", [1, 3, 40])
def test_samples_equal_those_of_one_prompt_at_a_time(num_samples):
    """Some samples become longer than the context of 31 tokens.

    The model is in float64, so that the rounding in a batch changes no token.
    """
    many_ends = list(range(0, 256, 8))  # many tokens end a sample, so that some samples end early
    config = replace(CONFIG, n_ctx=31, eos_token_id=many_ends)
    model = random_model(config, dtype=np.float64)
    prompts = random_texts(5, longest=25)
    results = generate_documents(
        model,
        TOKENIZER,
        prompts,
        max_new_tokens=20,
        top_k=30,
        seed=4,
        num_samples=num_samples,
        stop=["lo"],
        first=5,  # the number of the first prompt
    )
    reasons = set()
    for number, (prompt, samples) in enumerate(zip(prompts, results, strict=True), start=5):
        assert len(samples) == num_samples
        for index, sample in enumerate(samples[:4]):  # only a few, to save time
            # A sample's random numbers depend on the seed, 4, and on these two numbers alone.
            stream = np.random.default_rng([4, number, index])
            alone = sample_alone(model, prompt, stream)
            assert sample.ids == alone.ids
            assert sample.text == alone.text
            assert sample.finish_reason == alone.finish_reason
            reasons.add(sample.finish_reason)
    if num_samples == 40:  # with fewer samples, some of the reasons do not occur
        assert reasons == {"length", "stop", "eos"}


def test_batches_of_samples_are_bounded(monkeypatch):
    """The cache of a batch has room for at most CACHE_TOKENS tokens."""
    monkeypatch.setattr(documents, "CACHE_TOKENS", 300)
    new_cache = GPT2.new_cache
    sizes = []  # of each cache: how many samples it has, and how many tokens of each sample

    def recorded(model, rows, capacity):
        sizes.append((rows, capacity))
        return new_cache(model, rows, capacity)

    monkeypatch.setattr(GPT2, "new_cache", recorded)
    model = random_model(CONFIG)
    prompts = random_texts(50, longest=60)
    list(generate_documents(model, TOKENIZER, prompts, max_new_tokens=5, greedy=True))
    assert sum(rows for rows, _ in sizes) == 50
    assert max(rows for rows, _ in sizes) > 5, "several samples are in a batch"
    assert max(rows * capacity for rows, capacity in sizes) <= 300


LONG_PROMPT = "low" + "er" * 40


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param("", id="empty"),
        pytest.param(LONG_PROMPT, id="longer-than-the-context"),
        pytest.param([1, 300], id="id-of-no-token"),
        pytest.param(None, id="none"),
        pytest.param(((1, 2), (3, 4)), id="batch"),
    ],
)
def test_the_result_of_a_wrong_prompt_is_its_error(prompt):
    model = random_model(replace(CONFIG, n_ctx=31))
    prompts = ["lower", prompt, "lower"]
    before, error, after = generate_documents(
        model, TOKENIZER, prompts, max_new_tokens=10, greedy=True
    )
    assert isinstance(error, ArgumentError)
    ids = list(generate(model, TOKENIZER.encode("lower"), max_new_tokens=10, greedy=True))
    assert before[0].ids == ids
    assert after[0].ids == ids


def test_a_long_prompt_is_cut_to_its_end():
    model = random_model(replace(CONFIG, n_ctx=31))
    (samples,) = generate_documents(
        model, TOKENIZER, [LONG_PROMPT], max_new_tokens=10, greedy=True, on_long="cut"
    )
    kept = TOKENIZER.encode("er" * 21)
    assert len(kept) == 31 - 10, "so that 10 new tokens fit into the context of 31"
    assert samples[0].ids == list(generate(model, kept, max_new_tokens=10, greedy=True))


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param("", id="empty"),
        pytest.param([1, 300], id="id-of-no-token"),
        pytest.param(None, id="none"),
        pytest.param(((1, 2), (3, 4)), id="batch"),
    ],
)
def test_a_wrong_prompt_that_is_not_too_long_is_an_error_with_on_long_cut_too(prompt):
    model = random_model(replace(CONFIG, n_ctx=31))
    (result,) = generate_documents(
        model, TOKENIZER, [prompt], max_new_tokens=10, greedy=True, on_long="cut"
    )
    assert isinstance(result, ArgumentError)
