"""Many documents in batches: the results of one document at a time, in order, with errors in their
places."""

import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
from support.models import SMALL, SMALL_MERGES, random_model

import tiedgpt
from tiedgpt import GPT2, Tokenizer, generate_documents, score, score_documents
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.inference import documents
from tiedgpt.inference.generation import sample_steps
from tiedgpt.inference.sampling import Sampling
from tiedgpt.inference.text import TextSample, push_steps

CONFIG = replace(SMALL, vocab_size=262, n_ctx=200, bos_token_id=None, eos_token_id=261)
TOKENIZER = Tokenizer(SMALL_MERGES)  # 256 bytes, 5 merges, <|endoftext|>


def texts(n: int, longest: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices("low er é", k=rng.randint(2, longest))) for _ in range(n)]


@pytest.mark.parametrize(("n_ctx", "lookahead"), [(31, 1), (31, 7), (200, 7), (200, 1000)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 5e-5)])
def test_scores_are_those_of_score_in_order(n_ctx, lookahead, dtype, tolerance):
    model = random_model(replace(CONFIG, n_ctx=n_ctx), dtype=dtype)
    sources = texts(60, 50) + texts(5, 700, seed=1)
    random.Random(2).shuffle(sources)
    results = score_documents(model, TOKENIZER, sources, 20, lookahead=lookahead)
    for source, result in zip(sources, results, strict=True):
        expected = score(model, TOKENIZER, TOKENIZER.encode(source), 20)
        assert (result.tokens, result.bytes) == (expected.tokens, expected.bytes)
        assert result.nll == pytest.approx(expected.nll, abs=tolerance)
        if result.tokens >= min(documents.SHORT, n_ctx):
            assert result == expected, "a long document has the same bits"


@pytest.mark.parametrize(
    ("name", "limit", "method", "work"),
    [
        ("BATCH_TOKENS", 100, "final", score_documents),
        (
            "CACHE_TOKENS",
            300,
            "new_cache",
            partial(generate_documents, max_new_tokens=5, greedy=True),
        ),
    ],
)
def test_batches_are_of_similar_documents_and_bounded(monkeypatch, name, limit, method, work):
    """No loss of padding is computed, and there is little padding."""
    model, sizes, losses = random_model(CONFIG), [], []
    original, cross_entropy = getattr(GPT2, method), documents.cross_entropy

    def recorded(self, *arguments, **rest):
        sizes.append(arguments[0].shape if method == "final" else arguments)
        return original(self, *arguments, **rest)

    monkeypatch.setattr(GPT2, method, recorded)
    monkeypatch.setattr(
        documents, "cross_entropy", lambda x, y: losses.append(len(y)) or cross_entropy(x, y)
    )
    monkeypatch.setattr(documents, name, limit)
    results = list(work(model, TOKENIZER, texts(50, 60)))
    assert sum(B for B, _ in sizes) == 50
    assert max(B for B, _ in sizes) > 5
    assert all(limit >= B * T for B, T in sizes)
    if losses:
        assert sum(losses) == sum(result.tokens for result in results)
        assert sum(B * T for B, T in sizes) < 1.1 * sum(losses)


WRONG = {
    "": "a score needs two tokens or more, got 0",
    "a": "a score needs two tokens or more, got 1",
    "a<|endoftext|>b": "special token",
    "a\ud800b": "half of a surrogate pair",
    None: "must be one sequence of ids [N], got shape ()",
    b"text": "expected token ids, got text",
    (1.5, 2): "must be whole numbers",
    (1, 262): "262 is not a token id",
    (-1, 5): "token id -1 is outside the vocabulary",
    ((1, 2), (3, 4)): "must be one sequence of ids [N], got shape (2, 2)",
    "low" * 80: "80 tokens, more than the limit of 70",
}


def test_an_error_of_a_document_stands_in_its_place():
    model = random_model(replace(CONFIG, vocab_size=264))  # two rows of wte have no token
    sources = [part for wrong in WRONG for part in ("lower", wrong)]
    results = list(score_documents(model, TOKENIZER, sources, max_tokens=70))
    assert len(results) == len(sources)
    for result, expected in zip(results[1::2], WRONG.values(), strict=True):
        assert isinstance(result, TiedGPTError)
        assert expected in str(result)
    losses = [result.nll for result in results[::2]]  # of one text, in different rows of a batch
    assert max(losses) - min(losses) < 5e-6


def test_ids_special_tokens_and_the_limit():
    model = random_model(CONFIG)
    ids = TOKENIZER.encode("lower<|endoftext|>low", special="token")
    given = [ids, np.array(ids), "lower<|endoftext|>low", [*ids, 3, 3, 3]]
    how = {"max_tokens": len(ids), "on_long": "cut", "special": "token", "lookahead": 1}
    losses = [result.nll for result in score_documents(model, TOKENIZER, given, **how)]
    assert losses == pytest.approx([score(model, TOKENIZER, ids).nll] * 4, abs=5e-6)
    text = next(score_documents(model, TOKENIZER, ["low<|endoftext|>"], special="text"))
    assert text.tokens == len(TOKENIZER.encode("low<|endoftext|>", special="text")) - 1


def test_documents_are_read_when_they_are_needed():
    taken = []
    source = (taken.append(n) or "lower" for n in count())
    results = score_documents(random_model(CONFIG), TOKENIZER, source, lookahead=10)
    assert not taken
    assert len(list(islice(results, 11))) == 11
    assert len(taken) == 20


def test_what_is_no_documents_fault_is_raised():
    model = random_model(CONFIG)
    with pytest.raises(ZeroDivisionError):
        list(score_documents(model, TOKENIZER, ("lower" * (1 // n) for n in (1, 0))))
    model.parameters["wte.weight"][5] = np.nan
    for function in (score_documents, generate_documents):
        with pytest.raises(TiedGPTError, match="damaged"):
            list(function(model, TOKENIZER, ["lower"]))


def test_wrong_arguments_are_errors_at_once():
    of_generate = [("num_samples", 0), ("first", -1), ("seed", -1), ("stop", "."), ("stop", [""])]
    of_score = [("stride", 0), ("max_tokens", 1)]
    for function, wrong in ((score_documents, of_score), (generate_documents, of_generate)):
        for name, value in [("on_long", "drop"), ("special", "drop"), ("lookahead", 0), *wrong]:
            with pytest.raises(ArgumentError, match=f"^{name} must be "):
                function(random_model(CONFIG), TOKENIZER, [], **{name: value})
        with pytest.raises(ArgumentError, match="expected an iterable of texts, got one text"):
            function(random_model(CONFIG), TOKENIZER, "one text")


@pytest.mark.parametrize("num_samples", [1, 3, 40])
def test_samples_are_those_of_one_prompt_at_a_time(num_samples):
    """In float64, where a batch chooses the same tokens. Some samples end early, some pass the
    context."""
    config = replace(CONFIG, n_ctx=31, eos_token_id=list(range(0, 256, 8)))
    model = random_model(config, dtype=np.float64)
    prompts = texts(5, 25)
    how = {"top_k": 30, "seed": 4, "num_samples": num_samples, "stop": ["lo"], "first": 5}
    results = list(generate_documents(model, TOKENIZER, prompts, 20, **how))
    reasons = set()
    for n, (prompt, samples) in enumerate(zip(prompts, results, strict=True), 5):
        assert len(samples) == num_samples
        for i, sample in enumerate(samples[:4]):
            expected = TextSample(TOKENIZER, ["lo"], config.eos_token_ids)
            stream = np.random.default_rng([4, n, i])
            steps = sample_steps(
                model, [TOKENIZER.encode(prompt)], 20, Sampling(top_k=30), [stream]
            )
            list(push_steps(steps, [expected]))
            for field in ("ids", "text", "finish_reason"):
                assert getattr(sample, field) == getattr(expected, field)
            reasons.add(sample.finish_reason)
    assert reasons == {"length", "stop", "eos"} or num_samples < 40


def test_errors_and_cuts_of_prompts():
    model, long = random_model(replace(CONFIG, n_ctx=31)), "low" + "er" * 40
    prompts = ["lower", "", long, [1, 300], None, ((1, 2), (3, 4))]
    for on_long, read in (("error", {0: "lower"}), ("cut", {0: "lower", 2: "er" * 21})):
        results = generate_documents(model, TOKENIZER, prompts, 10, greedy=True, on_long=on_long)
        for n, result in enumerate(results):
            if n in read:
                ids = TOKENIZER.encode(read[n])
                assert result[0].ids == list(tiedgpt.generate(model, ids, 10, greedy=True))
            else:
                assert isinstance(result, ArgumentError)


README = (Path(tiedgpt.__file__).parent / "scale" / "README.md").read_text(encoding="utf-8")
PANDAS, DATATROVE, OTHERS = re.findall(r"```python\n(.*?)```", README, re.S)
SPARK = """
import pandas as pd
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.executorEnv.OPENBLAS_NUM_THREADS", "1")
table = spark.getOrCreate().createDataFrame(pd.DataFrame({"text": ["To be, or not to be", "x"] * 50}))
found = table.mapInPandas(score, "text string, loss double").toPandas()
"""
RAY = """
import ray

texts = ray.data.from_items([{"text": text} for text in ["To be, or not to be", "x"] * 50])
found = texts.map_batches(Scorer, concurrency=2, batch_size=256).to_pandas()
"""
ALL = "print(len(found), (found.loss.astype(float).round(3) == 3.606).sum())"


@pytest.mark.parametrize(
    ("module", "recipe", "shown"),
    [
        (
            "pandas",
            f"{PANDAS}\nprint(table.loss[0], table.loss[2], len(table.next))",
            r"3\.606\d* nan 3",
        ),
        ("datatrove", DATATROVE, r"1 {'loss': 3\.606\d*}\n2 {'loss': None}"),
        pytest.param("pyspark", OTHERS + SPARK + ALL, "^100 50", marks=pytest.mark.slow),
        pytest.param("ray", OTHERS + RAY + ALL, "^100 50", marks=pytest.mark.slow),
    ],
)
def test_the_recipes_run(tmp_path, module, recipe, shown):
    if not find_spec(module) or (module == "pyspark" and not find_spec("pyarrow")):
        pytest.skip(f"{module} is not installed")
    path = tmp_path / "recipe.py"  # a file, because workers import it
    path.write_text(recipe, encoding="utf-8")
    checkout = str(Path(tiedgpt.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": checkout, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert re.search(shown, done.stdout), done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
