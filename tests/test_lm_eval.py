"""lm-evaluation-harness with tiedgpt against its own `hf` models, on the shipped checkpoints.

Needs the extra `eval`, and torch and transformers for `hf`.
"""

import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tiedgpt.errors import ArgumentError

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "weights" / "sonnets.txt").read_text(encoding="utf-8")
LONG = TEXT[:1500]  # many more tokens than the context of 128
TASK = """\
task: sonnets
dataset_path: json
dataset_kwargs:
  data_files: {{test: {directory}/sonnets.jsonl}}
  cache_dir: {directory}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
metric_list:
  - metric: acc
"""


@pytest.fixture(scope="module", params=["tied", "untied"])
def models(request):
    """The same checkpoint in tiedgpt and in transformers."""
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    pytest.importorskip("transformers", reason="transformers is not installed: the extra `parity`")
    pytest.importorskip("lm_eval", reason="lm_eval is not installed: the extra `eval`")
    from lm_eval.models.huggingface import HFLM

    from tiedgpt.lm_eval import TiedGPT

    path = str(ROOT / "weights" / f"shakespeare-{request.param}")
    logging.disable(logging.WARNING)
    hf = HFLM(path, device="cpu", batch_size=1, dtype="float32")
    yield TiedGPT(path, head=request.param), hf
    logging.disable(logging.NOTSET)


def both(models, method, *requests):
    """What each of the two models answers to the requests."""
    instances = [SimpleNamespace(args=request) for request in requests]
    return [getattr(model, method)(instances, disable_tqdm=True) for model in models]


def test_loglikelihoods(models):
    """Contexts with a common beginning, an empty one, and some that are longer than the context."""
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
    ours, theirs = both(models, "loglikelihood", *((a, b) for a in contexts for b in continuations))
    np.testing.assert_allclose([nats for nats, _ in ours], [nats for nats, _ in theirs], rtol=5e-6)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


def test_likeliest_continuations_are_greedy(models):
    (continuation,) = both(
        models, "generate_until", ("ROMEO:", {"until": ["\n\n"], "max_gen_toks": 9})
    )[0]
    ours, theirs = both(models, "loglikelihood", ("ROMEO:", continuation), ("ROMEO:", "zzz"))
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs] == [True, False]


def test_rolling_loglikelihoods(models):
    ours, theirs = both(
        models, "loglikelihood_rolling", ("A",), (LONG,), (TEXT[700:900],), (LONG[:640],)
    )
    np.testing.assert_allclose(ours, theirs, rtol=5e-6)


def test_generated_texts(models):
    settings = {"until": ["\n\n", "."], "max_gen_toks": 30}
    prompts = ["ROMEO:", LONG, "JULIET:\nO", "", "\n"]
    ours, theirs = both(
        models, "generate_until", *((prompt, settings) for prompt in prompts if prompt)
    )
    assert ours == theirs
    assert any(ours)
    sampled = {**settings, "do_sample": True, "temperature": 0.9, "top_k": 20}
    texts, again = both([models[0]] * 2, "generate_until", *[("ROMEO:", sampled)] * 3)
    assert texts == again
    assert len(set(texts)) > 1


def test_a_common_beginning_is_read_once(models, monkeypatch):
    model, _ = models
    read, final = [], model.model.final
    monkeypatch.setattr(
        model.model, "final", lambda ids, cache: read.append(len(ids)) or final(ids, cache)
    )
    model.cached = []
    both([model], "loglikelihood", *((LONG[:200], f" {word}") for word in ("love", "hate", "the")))
    assert read[0] > 50
    assert max(read[1:]) < 9


def test_a_setting_that_cannot_be(models):
    with pytest.raises(
        ArgumentError, match="max_gen_toks is 128; it must be less than the context of 128"
    ):
        both(models[:1], "generate_until", ("ROMEO:", {"until": [], "max_gen_toks": 128}))
    with pytest.raises(TypeError, match="pretrianed"):
        type(models[0]).create_from_arg_string("pretrianed=gpt2")


@pytest.mark.parametrize("models", ["tied"], indirect=True)  # the model of the command
def test_the_command(models, tmp_path):
    """`python -m tiedgpt.lm_eval` and lm_eval with its own `hf` give the same result on a task of
    our own."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    lines = TEXT.splitlines()
    with (tmp_path / "sonnets.jsonl").open("w", encoding="utf-8") as file:
        for n in range(0, 60, 5):
            choices = [" " + lines[n + 1], " " + lines[-n - 1]]
            file.write(json.dumps({"context": lines[n] or "The", "choices": choices}) + "\n")
    (tmp_path / "sonnets.yaml").write_text(TASK.format(directory=tmp_path), encoding="utf-8")
    path, out = ROOT / "weights" / "shakespeare-tied", tmp_path / "out"
    command = f"-m tiedgpt.lm_eval run --model tiedgpt --model_args pretrained={path} --device cpu "
    command += f"--tasks sonnets --include_path {tmp_path} --output_path {out}"
    command = [sys.executable, *command.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (file,) = out.rglob("results_*.json")
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    theirs = simple_evaluate(models[1], tasks=["sonnets"], task_manager=tasks, bootstrap_iters=0)
    found = json.loads(file.read_text(encoding="utf-8")), theirs
    ours, hf = (results["results"]["sonnets"]["acc,none"] for results in found)
    assert 0 < ours == hf < 1
