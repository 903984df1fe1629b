"""lm-evaluation-harness with tiedgpt against its own `hf` models, on the shipped checkpoints.

`hf` is the harness's name of models of transformers. The harness sends a model requests of three
kinds. "loglikelihood" is (context, continuation); the answer has the log-likelihood of the
continuation in nats, and whether it is greedy: whether each of its tokens is the likeliest one.
"loglikelihood_rolling" is (text,); the answer is the log-likelihood of the text, which may be
longer than the model's context. "generate_until" is (prompt, settings); the answer is a text.

Needs the extra `eval`, and torch and transformers for `hf`.
"""

import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tiedgpt.errors import ArgumentError

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "weights" / "sonnets.txt").read_text(encoding="utf-8")
LONG = TEXT[:1500]  # many more tokens than the context of 128


class Models(NamedTuple):
    """The same checkpoint in tiedgpt and in transformers, as models of the harness."""

    tiedgpt: Any
    hf: Any


@pytest.fixture(scope="module", params=["tied", "untied"])
def models(request):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    pytest.importorskip("transformers", reason="transformers is not installed: the extra `parity`")
    pytest.importorskip("lm_eval", reason="lm_eval is not installed: the extra `eval`")
    from lm_eval.models.huggingface import HFLM

    from tiedgpt.lm_eval import TiedGPT

    path = str(ROOT / "weights" / f"shakespeare-{request.param}")
    logging.disable(logging.WARNING)  # the harness logs much
    yield Models(
        tiedgpt=TiedGPT(path, head=request.param),
        hf=HFLM(path, device="cpu", batch_size=1, dtype="float32"),
    )
    logging.disable(logging.NOTSET)


def answers(model, method, requests):
    """What a model of the harness answers to these requests."""
    instances = [SimpleNamespace(args=request) for request in requests]
    return getattr(model, method)(instances, disable_tqdm=True)


# Loss of given texts


def test_loglikelihoods(models):
    """Some texts begin alike, one is empty, and some are longer than the model's context."""
    contexts = [
        "",
        "ROMEO:",
        "ROMEO: But soft",
        LONG,
        LONG[:700],
        LONG + "<|endoftext|>ROMEO: ",
        "ROMEO: ",
    ]
    continuations = [
        " what",
        "light through yonder window breaks",
        "\n\nJULIET:\nO, be",
        LONG[:200],
    ]
    requests = []
    for context in contexts:
        for continuation in continuations:
            requests.append((context, continuation))
    ours = answers(models.tiedgpt, "loglikelihood", requests)
    theirs = answers(models.hf, "loglikelihood", requests)
    our_nats = [nats for nats, _ in ours]
    their_nats = [nats for nats, _ in theirs]
    np.testing.assert_allclose(our_nats, their_nats, rtol=5e-6)
    assert [is_greedy for _, is_greedy in ours] == [is_greedy for _, is_greedy in theirs]


def test_likeliest_continuations_are_greedy(models):
    """A generated text is the likeliest continuation. "zzz" is not."""
    settings = {"until": ["\n\n"], "max_gen_toks": 9}
    (continuation,) = answers(models.tiedgpt, "generate_until", [("ROMEO:", settings)])
    requests = [("ROMEO:", continuation), ("ROMEO:", "zzz")]
    ours = answers(models.tiedgpt, "loglikelihood", requests)
    theirs = answers(models.hf, "loglikelihood", requests)
    assert [is_greedy for _, is_greedy in ours] == [True, False]
    assert [is_greedy for _, is_greedy in theirs] == [True, False]


def test_rolling_loglikelihoods(models):
    """Some texts are shorter and some longer than the model's context."""
    requests = [("A",), (LONG,), (TEXT[700:900],), (LONG[:640],)]
    ours = answers(models.tiedgpt, "loglikelihood_rolling", requests)
    theirs = answers(models.hf, "loglikelihood_rolling", requests)
    np.testing.assert_allclose(ours, theirs, rtol=5e-6)


def test_a_common_beginning_is_read_once(models, monkeypatch):
    """Three requests have the same context. After the first, only their continuations are read."""
    gpt2 = models.tiedgpt.model
    original_final = gpt2.final  # the method that reads tokens
    token_counts = []  # how many tokens each call reads

    def counting_final(ids, cache):
        token_counts.append(len(ids))
        return original_final(ids, cache)

    monkeypatch.setattr(gpt2, "final", counting_final)
    models.tiedgpt.cached = []  # forget what the model has read in earlier tests
    context = LONG[:200]  # characters, which are more than 50 tokens
    requests = [(context, " love"), (context, " hate"), (context, " the")]
    answers(models.tiedgpt, "loglikelihood", requests)
    first_count, *later_counts = token_counts
    assert first_count > 50
    assert max(later_counts) < 9  # these are the continuations alone


# Generated texts


def test_generated_texts(models):
    settings = {"until": ["\n\n", "."], "max_gen_toks": 30}
    requests = [(prompt, settings) for prompt in ("ROMEO:", LONG, "JULIET:\nO", "\n")]
    ours = answers(models.tiedgpt, "generate_until", requests)
    assert ours == answers(models.hf, "generate_until", requests)
    assert any(ours), "not all texts are empty"


def test_sampled_texts_of_equal_requests_differ_and_are_the_same_in_each_call(models):
    settings = {
        "until": ["\n\n", "."],
        "max_gen_toks": 30,
        "do_sample": True,
        "temperature": 0.9,
        "top_k": 20,
    }
    requests = [("ROMEO:", settings)] * 3
    texts = answers(models.tiedgpt, "generate_until", requests)
    assert len(set(texts)) > 1
    assert answers(models.tiedgpt, "generate_until", requests) == texts


def test_a_continuation_as_long_as_the_context_is_refused(models):
    request = ("ROMEO:", {"until": [], "max_gen_toks": 128})
    message = "max_gen_toks is 128; it must be less than the context of 128"
    with pytest.raises(ArgumentError, match=message):
        answers(models.tiedgpt, "generate_until", [request])


def test_a_setting_with_a_typo_in_its_name_is_refused(models):
    with pytest.raises(TypeError, match="pretrianed"):
        type(models.tiedgpt).create_from_arg_string("pretrianed=gpt2")


# The command

TASK = """\
task: sonnets
dataset_path: json
dataset_kwargs:
  data_files: {test: DIRECTORY/sonnets.jsonl}
  cache_dir: DIRECTORY
test_split: test
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list:
  - metric: acc
"""


@pytest.fixture
def task_directory(tmp_path):
    """A folder with a task of our own: which line of a sonnet comes next?

    A question has two choices: the next line, which is right, and a line from the end of the file.
    """
    lines = TEXT.splitlines()
    with (tmp_path / "sonnets.jsonl").open("w", encoding="utf-8") as file:
        for number in range(0, 60, 5):  # twelve questions
            next_line = lines[number + 1]
            wrong_line = lines[-1 - number]
            question = {
                "context": lines[number] or "The",  # some lines are empty
                "choices": [f" {next_line}", f" {wrong_line}"],
            }
            file.write(json.dumps(question) + "\n")
    task = TASK.replace("DIRECTORY", str(tmp_path))
    (tmp_path / "sonnets.yaml").write_text(task, encoding="utf-8")
    return tmp_path


def accuracy(results):
    """The share of the questions that are answered rightly."""
    return results["results"]["sonnets"]["acc,none"]


@pytest.mark.parametrize("models", ["tied"], indirect=True)
def test_the_command_has_the_same_accuracy_as_hf(models, task_directory):
    """The command evaluates tiedgpt, and simple_evaluate the same checkpoint as a `hf` model."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    path = ROOT / "weights" / "shakespeare-tied"
    out = task_directory / "out"
    flags = f"--model tiedgpt --model_args pretrained={path} --device cpu --tasks sonnets "
    flags += f"--include_path {task_directory} --output_path {out}"
    done = subprocess.run(
        [sys.executable, "-m", "tiedgpt.lm_eval", "run", *flags.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (file,) = out.rglob("results_*.json")
    ours = accuracy(json.loads(file.read_text(encoding="utf-8")))

    tasks = TaskManager(include_path=str(task_directory), include_defaults=False)
    theirs = simple_evaluate(
        models.hf,
        tasks=["sonnets"],
        task_manager=tasks,
        bootstrap_iters=0,  # compute no error bars
    )
    assert ours == accuracy(theirs)
    assert 0 < ours < 1, "some questions are answered rightly, and some wrongly"
