"""`tiedgpt generate` as a user meets it: prompts, flags, JSON, the prompt loop, Ctrl-C."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.commands import answer, assert_one_error_line, command, output
from support.models import CONFIG, random_model
from support.terminal import CTRL_C, CTRL_D, Terminal

import tiedgpt
from tiedgpt import Tokenizer, cli, generation
from tiedgpt.cli.generate import Answer
from tiedgpt.cli.output import CONTROLS, ProgressBar
from tiedgpt.study import reports

PROMPT = "abcdefgh"
IDS = [64, 65, 66, 67, 68, 69, 70, 71]  # of PROMPT, where tokens are bytes


def test_generate_prints_the_continuation_alone(run, checkpoint):
    arguments = ("generate", "--model", checkpoint, "--seed", "1", "-n", "9", "Hello")
    model = tiedgpt.load_model(checkpoint)
    tokenizer = tiedgpt.load_tokenizer(checkpoint)
    text = tokenizer.decode(tiedgpt.generate(model, tokenizer.encode("Hello"), 9, seed=1))
    assert output(run, *arguments) == text + "\n"
    assert output(run, *arguments, "--echo") == f"Hello{text}\n"


def test_without_a_number_forty_tokens_are_generated():
    assert cli.parse(["generate", "a"]).max_new_tokens == 40


def test_bars_count_the_tokens_of_the_prompt_and_of_a_sample(run, checkpoint, monkeypatch):
    counts = {}

    def count(bar, n):
        done = counts.get((bar.doing, bar.total), 0)
        counts[bar.doing, bar.total] = done + n

    monkeypatch.setattr(ProgressBar, "add", count)
    line = ("generate", "-m", checkpoint, "-n", "5", "--num-samples", "2", PROMPT)
    answer(run, *line)
    assert counts == {("reading the prompt", len(IDS)): len(IDS), ("generating", 5): 5}


# The flags of the settings, long and short, and the arguments of tiedgpt.generate
SETTINGS = [
    ("--temperature 2 --top-k 50 --top-p 0.9", {"temperature": 2, "top_k": 50, "top_p": 0.9}),
    ("-t 2 -k 50 -p 0.9", {"temperature": 2, "top_k": 50, "top_p": 0.9}),
    ("-k 0", {}),
    ("--min-p 0.2", {"min_p": 0.2}),
    ("--repetition-penalty 1.5", {"repetition_penalty": 1.5}),
    ("--greedy", {"greedy": True}),
]


@pytest.mark.parametrize(("flags", "settings"), SETTINGS)
def test_flags_do_what_the_arguments_of_generate_do(run, checkpoint, flags, settings):
    document = answer(run, "generate", "-m", checkpoint, "-s", "3", "-n", "20", *flags.split(), "a")
    model = tiedgpt.load_model(checkpoint)
    tokens = list(tiedgpt.generate(model, document["prompt_ids"], 20, seed=3, **settings))
    assert document["samples"][0]["ids"] == tokens
    assert (
        tokens != list(tiedgpt.generate(model, document["prompt_ids"], 20, seed=3)) or not settings
    )


def test_temperature_0_is_greedy_and_said(run, checkpoint):
    arguments = ("generate", "-m", checkpoint, "a")
    code, out, err = run(*arguments, "-t", "0")
    assert code == 0
    assert out == output(run, *arguments, "--greedy")
    assert "likeliest token" in err
    assert err.count("\n") == 1


PENALTY = "repetition_penalty 1.9, which is not used; to use it: --repetition-penalty 1.9"
ON_GENERATION = [  # generation_config.json, the flags that are given, and what the notes say of it
    ({"repetition_penalty": 1.9}, "", [PENALTY]),
    ({"repetition_penalty": 1.9}, "--greedy", [PENALTY]),
    ({"repetition_penalty": 1.9}, "--repetition-penalty 1", []),
    (
        {"temperature": 0.7, "top_k": 4, "top_p": 0.9},
        "-k 3",
        ["temperature 0.7, top_p 0.9, which is not used; to use it: --temperature 0.7 --top-p 0.9"],
    ),
    ({"temperature": 0.7, "top_k": 4}, "--greedy", []),
    (
        {"suppress_tokens": [7], "bad_words_ids": [[7]]},
        "",
        ["'suppress_tokens', 'bad_words_ids', which tiedgpt does not have"],
    ),
    (
        {"min_p": 0.1, "no_repeat_ngram_size": 1},
        "",
        [
            "min_p 0.1, which is not used; to use it: --min-p 0.1",
            "'no_repeat_ngram_size', which tiedgpt does not have",
        ],
    ),
    ({"top_k": "all"}, "", ["'top_k', which tiedgpt does not have"]),
    ({"a_setting_of_next_year": 2}, "", ["'a_setting_of_next_year', which tiedgpt does not have"]),
    (
        {"stop_strings": ["end"], "top_k": 4},
        "",
        ["top_k 4, stop_strings, which is not used; to use it: --top-k 4 --stop TEXT"],
    ),
    # What changes nothing: other parts of the file, and the values that transformers has anyway
    ({"do_sample": True, "max_new_tokens": 9, "pad_token_id": 3, "use_cache": False}, "", []),
    ({"temperature": 1.0, "top_p": 1, "num_beams": 1, "min_length": 0, "watermark": None}, "", []),
]


@pytest.mark.parametrize(("settings", "flags", "notes"), ON_GENERATION)
def test_notes_name_the_settings_of_the_model_that_are_not_used(
    run, save, tmp_path, settings, flags, notes
):
    """transformers generates with them. The text is that of the flags."""
    path = save("model", random_model(CONFIG))
    arguments = ("generate", "-m", path, "-n", "4", "-s", "1", *flags.split(), "a")
    text = output(run, *arguments)
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(settings))
    code, out, err = run(*arguments)
    assert (code, out) == (0, text)
    says = "tiedgpt: note: generation_config.json of the model says"
    assert err.splitlines() == [f"{says} {note}" for note in notes]


def test_settings_in_config_json_count_without_a_generation_config_json(run, save, tmp_path):
    """For transformers, too."""
    path = save("model", random_model(CONFIG))
    config = tmp_path / "model" / "config.json"
    old = {"repetition_penalty": 1.9, "bad_words_ids": [[7]], "top_p": 1.0, "my_own_field": 3}
    config.write_text(json.dumps(json.loads(config.read_text()) | old))
    arguments = ("generate", "-m", path, "-n", "9", "-s", "1", "a")
    _, _, err = run(*arguments)
    assert re.search(r"note: config\.json .* to use it: --repetition-penalty 1\.9\n", err)
    assert re.search(r"note: config\.json .* says 'bad_words_ids', which", err)
    assert err.count("\n") == 2
    (tmp_path / "model" / "generation_config.json").write_text("{}")
    output(run, *arguments)


def test_no_default_of_transformers_has_a_note(run, save, tmp_path):
    """top_k alone is another one here: none."""
    transformers = pytest.importorskip("transformers")
    path = save("model", random_model(CONFIG))
    defaults = transformers.GenerationConfig._get_default_generation_params()
    defaults |= {"transformers_version": "5", "_from_model_config": True, "eos_token_id": 3}
    assert defaults.pop("top_k") == 50
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(defaults))
    output(run, "generate", "-m", path, "-n", "9", "-s", "1", "a")


def test_a_drawn_seed_is_said_and_repeats_the_text(run, checkpoint):
    arguments = ("generate", "-m", checkpoint, "-n", "20", "a")
    code, out, err = run(*arguments)
    assert code == 0
    flag, seed = err.split()[-2:]
    assert output(run, *arguments, flag, seed) == out
    assert run(*arguments)[1] != out, "a run without --seed has a new one"


# The prompt


PROMPTS = {  # what a prompt is -> the arguments, stdin, the prompt
    "argument-before-stdin": (["b"], b"a", "b"),
    "argument-not-ascii": (["é"], b"", "é"),
    "stdin-without-its-last-line-end": ([], b"a\n\n", "a\n"),
    "dash-is-stdin": (["-"], b"a\r\n", "a"),
    "dash-on-stdin": (["-"], b"-", "-"),
}
PROMPT_CASES = []
for name in ("generate", "next", "lens", "attribute"):
    for what, case in PROMPTS.items():
        is_sample = name == "generate" or what.startswith("argument")
        marks = [] if is_sample else [pytest.mark.slow]
        PROMPT_CASES.append(pytest.param(name, *case, id=f"{name}-{what}", marks=marks))


@pytest.mark.parametrize(("name", "arguments", "stdin", "prompt"), PROMPT_CASES)
def test_a_prompt_is_the_argument_or_stdin(
    run, checkpoint, tmp_path, monkeypatch, name, arguments, stdin, prompt
):
    """The argument is a prompt also where there is a file of that name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").write_text("bb")
    (tmp_path / "é").write_text("bé")
    assert answer(run, name, "-m", checkpoint, *arguments, stdin=stdin)["prompt"] == prompt


@pytest.mark.parametrize(
    ("arguments", "stdin", "text"),
    [
        pytest.param(["b"], b"a", "b", id="argument-before-stdin"),
        pytest.param(["é"], b"", "é", id="argument-not-ascii"),
        pytest.param([], b"a\n\n", "a\n\n", id="all-of-stdin"),
        pytest.param(["-"], b"a\r\n", "a\r\n", id="dash-is-stdin"),
        pytest.param(["-"], b"-", "-", id="dash-on-stdin"),
    ],
)
def test_tokenize_reads_its_argument_or_stdin(run, checkpoint, arguments, stdin, text):
    document = answer(run, "tokenize", "-m", checkpoint, *arguments, stdin=stdin)
    assert document["ids"] == tiedgpt.load_tokenizer(checkpoint).encode(text)


@pytest.mark.parametrize(
    ("arguments", "stdin", "expected"),
    [
        pytest.param("next é", "", "after 'é' by", id="argument"),
        pytest.param(
            "generate --json -n 1",
            "é",
            '"prompt": "\\u00e9"',
            id="stdin",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_text_is_utf_8_under_the_c_locale(arguments, stdin, expected):
    """Under this locale, Python without UTF-8 mode would read and write ASCII."""
    done = subprocess.run(
        command(*arguments.split(), "-m", "shakespeare-tied"),
        input=stdin.encode(),
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"},
    )
    assert done.returncode == 0
    assert done.stderr == b""
    assert expected.encode() in done.stdout


@pytest.mark.parametrize(
    ("new_tokens", "kept"),
    [
        pytest.param("10", 64 - 10, id="the-new-tokens-fit"),
        pytest.param("50", 64 // 2, id="half-the-context-at-least"),
        pytest.param("64", 64 // 2, id="no-room-for-the-new-tokens"),
    ],
)
def test_truncate_keeps_the_end_of_a_prompt_and_leaves_room(run, checkpoint, new_tokens, kept):
    """The context is 64 tokens."""
    # A prompt of 84 different characters, each of which is a token
    prompt = "".join(chr(33 + place) for place in range(84))
    arguments = ("generate", "-m", checkpoint, "-n", new_tokens, "-s", "1", "--truncate")
    code, out, err = run(*arguments, "--json", prompt)
    assert code == 0
    assert f"--truncate drops the first {84 - kept} of the prompt's 84 tokens\n" in err
    document = json.loads(out)
    end = prompt[-kept:]
    assert document["prompt"] == prompt
    assert document["prompt_ids"] == tiedgpt.load_tokenizer(checkpoint).encode(end)
    assert document["samples"] == answer(run, *arguments, end)["samples"]


def test_truncate_makes_room_for_the_new_tokens_in_a_context_that_the_prompt_fits(run, checkpoint):
    prompt = "".join(chr(33 + place) for place in range(60))  # of 64 tokens
    _, _, err = run("generate", "-m", checkpoint, "-n", "10", "-s", "1", "--truncate", prompt)
    assert "--truncate drops the first 6 of the prompt's 60 tokens\n" in err
    _, _, err = run("generate", "-m", checkpoint, "-n", "4", "-s", "1", "--truncate", prompt)
    assert err == "", "60 tokens and 4 are 64"


def test_truncate_keeps_one_token_in_a_context_of_one(run, save):
    path = save("one", random_model(replace(CONFIG, n_ctx=1)))
    code, out, err = run("generate", "-m", path, "-n", "2", "--truncate", "--json", "abc")
    assert code == 0
    assert "--truncate drops the first 2 of the prompt's 3 tokens\n" in err
    assert json.loads(out)["prompt_ids"] == tiedgpt.load_tokenizer(path).encode("c")


def test_an_end_of_text_token_alone_is_a_prompt_if_it_is_allowed(run, checkpoint):
    document = answer(run, "generate", "--model", checkpoint, "<|endoftext|>", "--allow-special")
    assert document["prompt_ids"] == [256]


def test_a_model_without_special_tokens(run, save):
    """It reads any text. For an empty prompt, no special token is advised."""
    model = random_model(replace(CONFIG, vocab_size=256))
    path = save("without special tokens", model, Tokenizer([], {}))
    assert answer(run, "generate", "-m", path, "-n", "3", "<|endoftext|>")["samples"]
    message = "the prompt is empty: GPT-2 needs at least one token to continue\n"
    assert_one_error_line(run("generate", "-m", path, ""), message)


# The JSON


def test_generate_json(run, checkpoint):
    tokenizer = tiedgpt.load_tokenizer(checkpoint)
    arguments = ("generate", "-m", checkpoint, "--num-samples", "3", "-t", "2", "-n", "70", "a\n")
    document = answer(run, *arguments)
    assert document["model"] == checkpoint
    assert document["head"] == "tied"
    assert document["prompt"] == "a\n"
    assert document["prompt_ids"] == tokenizer.encode("a\n")
    assert len(document["samples"]) == 3
    for sample in document["samples"]:
        assert len(sample["ids"]) == 70  # more than the context
        assert sample == {
            "ids": sample["ids"],
            "text": tokenizer.decode(sample["ids"]),
            "finish_reason": "length",
        }
    assert len({sample["text"] for sample in document["samples"]}) == 3
    assert set(document["timing"]) == {"load_s", "prefill_s", "decode_tokens_per_s"}
    assert min(document["timing"].values()) > 0
    again = answer(run, *arguments, "--seed", str(document["seed"]), "--head", "tied")
    assert again["samples"] == document["samples"]


@pytest.fixture
def a_second_for_each_step(monkeypatch):
    clock = SimpleNamespace(seconds=100)

    def slow_steps(*arguments, **options):
        for tokens in generation.sample_tokens(*arguments, **options):
            clock.seconds += 1
            yield tokens

    monkeypatch.setattr("tiedgpt.cli.generate.sample_tokens", slow_steps)
    clock_of_command = SimpleNamespace(perf_counter=lambda: clock.seconds)
    monkeypatch.setattr("tiedgpt.cli.generate.time", clock_of_command)


@pytest.mark.usefixtures("a_second_for_each_step")
def test_the_decode_speed_leaves_out_the_first_token(run, checkpoint):
    """The first token comes with the prompt's logits."""
    line = ("generate", "-m", checkpoint, "-n", "5", "--num-samples", "2", "a")
    timing = answer(run, *line)["timing"]
    assert timing["prefill_s"] == 1
    assert timing["decode_tokens_per_s"] == 2, "4 tokens of 2 samples in 4 seconds"
    timing = answer(run, "generate", "-m", checkpoint, "-n", "2", "a")["timing"]
    assert timing["decode_tokens_per_s"] == 1, "a token in a second"


@pytest.mark.usefixtures("a_second_for_each_step")
def test_a_sample_without_tokens_counts_nothing_in_the_decode_speed(run, save, checkpoint):
    """The model is one whose end-of-text token is the first of some samples, not of all."""
    flags = ("-n", "3", "--num-samples", "5", "-s", "1", "-k", "2", "a")
    samples = answer(run, "generate", "-m", checkpoint, *flags)["samples"]
    first_tokens = [sample["ids"][0] for sample in samples]
    end_of_text = max(first_tokens, key=first_tokens.count)
    model = tiedgpt.load_model(checkpoint)
    config = replace(model.config, eos_token_id=end_of_text)
    ending = save("ending", tiedgpt.GPT2(config, model.parameters))
    document = answer(run, "generate", "-m", ending, *flags)
    lengths = [len(sample["ids"]) for sample in document["samples"]]
    decoded = [length - 1 for length in lengths if length > 0]
    assert 0 < len(decoded) < 5
    assert document["timing"]["decode_tokens_per_s"] == sum(decoded) / 2, "in 2 seconds"


def test_a_text_is_shown_while_it_grows(run, monkeypatch, checkpoint):
    """Each piece is flushed: a pipe, too, gets it at once."""
    pieces = []

    def recording_print(*words, **options):
        if options.get("flush"):
            pieces.append(words[0])
        print(*words, **options)

    monkeypatch.setattr("tiedgpt.cli.generate.print", recording_print, raising=False)
    line = ("generate", "-q", "-m", checkpoint, "-n", "9", "--seed", "1", "a")
    assert output(run, *line) == "".join(pieces) + "\n"
    assert len([piece for piece in pieces if piece]) > 3


def test_one_token_has_no_decode_speed(run, checkpoint):
    timing = answer(run, "generate", "-m", checkpoint, "-n", "1", "a")["timing"]
    assert timing["decode_tokens_per_s"] is None
    assert timing["prefill_s"] > 0


def greedy_sample(run, model, *flags):
    """The one sample that continues "a" by the likeliest tokens."""
    document = answer(run, "generate", "--model", model, "--greedy", "-n", "12", "a", *flags)
    (sample,) = document["samples"]
    return sample


def test_stop_ends_the_text_before_it(run, checkpoint):
    text = greedy_sample(run, checkpoint)["text"]
    stop = text[4]  # a character in the middle
    sample = greedy_sample(run, checkpoint, "--stop", "not in it", "--stop", stop)
    assert sample["finish_reason"] == "stop"
    assert sample["text"] == text.partition(stop)[0]


@pytest.mark.parametrize(
    ("argument", "stop"),
    [
        (r"\n", "\n"),
        (r"a\tb\r\n", "a\tb\r\n"),
        (r"\\n", r"\n"),
        (r"\d\x41", r"\d\x41"),
        ("\n", "\n"),
    ],
)
def test_stop_has_escapes(argument, stop):
    args = tiedgpt.cli.parse(["generate", "--stop", argument])
    assert args.stop == [stop]


def test_the_end_of_text_token_ends_the_text(run, checkpoint, save):
    ids = greedy_sample(run, checkpoint)["ids"]
    end_of_text = ids[3]  # this token is made the one that ends a text
    model = tiedgpt.load_model(checkpoint)
    ending = tiedgpt.GPT2(replace(model.config, eos_token_id=end_of_text), model.parameters)
    sample = greedy_sample(run, save("ending", ending))
    assert sample["finish_reason"] == "eos"
    assert sample["ids"] == ids[: ids.index(end_of_text)]


# Models and heads


def test_a_copied_head_gives_the_same_text_and_is_noted(run, checkpoint):
    greedy = ("generate", "--greedy", "a", "--model", checkpoint)
    code, out, err = run(*greedy, "--head", "untied")
    assert code == 0
    assert out == output(run, *greedy)
    note = "tiedgpt: note: no W_U in the model: a copy of wte.T is used"
    assert err.startswith(note)
    assert err.count("\n") == 1


def test_an_untied_model_with_the_tied_head_gives_another_text(run, untied):
    greedy = ("generate", "--greedy", "a", "--model", untied)
    assert output(run, *greedy, "--head", "untied") != output(run, *greedy, "--head", "tied")


@pytest.fixture
def weights(no_models, monkeypatch):
    """An empty folder for models by name, on a machine without models."""
    weights = no_models / "weights"
    weights.mkdir()
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(weights))
    return weights


@pytest.mark.usefixtures("weights")
def test_without_a_model_and_without_any_on_the_machine(run):
    assert_one_error_line(run("generate", "a"), "gpt2 is not on this machine: looked for")


def test_without_a_model_it_is_the_shipped_one_if_gpt2_is_not_here(run, checkpoint, weights):
    (weights / "shakespeare-tied").symlink_to(checkpoint)
    code, out, err = run("generate", "--json", "-n", "1", "a")
    assert code == 0
    assert json.loads(out)["model"] == "shakespeare-tied"
    assert err.startswith("tiedgpt: note: model: shakespeare-tied; for a larger")


def test_without_a_model_it_is_gpt2_if_that_is_here(run, checkpoint, weights):
    (weights / "shakespeare-tied").symlink_to(checkpoint)
    (weights / "gpt2").symlink_to(checkpoint)
    assert answer(run, "generate", "-n", "1", "a")["model"] == "gpt2"


def test_tiedgpt_model_names_the_default_model(run, monkeypatch):
    monkeypatch.setenv("TIEDGPT_MODEL", "shakespeare-untied")
    assert answer(run, "params")["model"] == "shakespeare-untied"
    ids_of_shakespeare = [396, 304]
    assert answer(run, "tokenize", "To be")["ids"] == ids_of_shakespeare
    assert answer(run, "params", "-m", "shakespeare-tied")["model"] == "shakespeare-tied"


def test_an_unknown_model_in_tiedgpt_model_is_an_error_that_names_the_variable(run, monkeypatch):
    monkeypatch.setenv("TIEDGPT_MODEL", "shakespear")
    assert_one_error_line(run("params"), "TIEDGPT_MODEL: no model 'shakespear'")


def test_without_models_study_compares_the_two_shipped_ones(run, checkpoint, untied, weights):
    (weights / "shakespeare-tied").symlink_to(checkpoint)
    (weights / "shakespeare-untied").symlink_to(untied)
    _, out, _ = run("study")
    assert out.split()[:2] == ["shakespeare-tied", "shakespeare-untied"]


# A long text in a process


def start_of_a_long_text(checkpoint):
    """A process of `generate` that has printed a character, and has millions of tokens to go."""
    process = subprocess.Popen(
        command("generate", "--model", checkpoint, "--seed", "0", "-n", "10000000", "a"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.read(1)
    return process


@pytest.mark.slow
def test_a_closed_pipe_ends_it_quietly(checkpoint):
    """As by `| head -1`."""
    with start_of_a_long_text(checkpoint) as process:
        process.stdout.close()
        assert process.wait(timeout=60) == 141  # as a shell reports SIGPIPE
        assert process.stderr.read() == b""


def test_ctrl_c_ends_it_quietly(run, checkpoint, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("tiedgpt.cli.generate.sample_tokens", interrupted)
    line_end = "\n"  # because a terminal has printed ^C
    assert run("generate", "-q", "-m", checkpoint, "a") == (130, "", line_end)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "stderr"),
    [
        # A line end, because a terminal has printed ^C
        pytest.param(signal.SIGINT, 130, b"\n", id="Ctrl-C"),
        pytest.param(signal.SIGTERM, 143, b"", id="SIGTERM"),
    ],
)
def test_a_signal_ends_it_quietly(checkpoint, number, code, stderr):
    with start_of_a_long_text(checkpoint) as process:
        process.send_signal(number)
        assert process.wait(timeout=60) == code  # as a shell reports the signal
        assert process.stderr.read() == stderr


# The prompt loop


@pytest.mark.slow
def test_the_prompt_loop_continues_each_line(checkpoint, run):
    """An empty line and an error do not end it."""
    _, out, _ = run("generate", "-m", checkpoint, "--greedy", "-n", "4", "b")
    sample = out.translate(CONTROLS)  # on a terminal, control characters are replaced
    arguments = ("generate", "-m", checkpoint, "--greedy", "-n", "4", "--num-samples", "2")
    with Terminal(*arguments) as terminal:
        assert "Ctrl-D leaves" in terminal.type("", until="> ")
        assert terminal.type("\r", until="> ") == "\n> "
        shown = terminal.type("<|endoftext|>\r", until="\n> ")
        assert "tiedgpt: error: the text holds <|endoftext|>" in shown
        shown = terminal.type("b\r", until="\n> ")
        assert shown == f"b\n--- 1 of 2 ---\nb{sample}--- 2 of 2 ---\nb{sample}> "
        terminal.type(CTRL_D)
        assert terminal.process.wait(timeout=60) == 0, terminal.text


class TerminalInput(io.TextIOWrapper):
    def isatty(self):
        return True


def test_what_ends_the_prompt_loop_and_what_does_not(run, checkpoint, monkeypatch, capsys):
    """Ctrl-C ends the line or the text, an error neither, and Ctrl-D the loop."""
    arguments = ("generate", "-m", checkpoint, "--seed", "1", "-n", "9")
    _, sample, _ = run(*arguments, "c")
    typed = iter(["", KeyboardInterrupt, "<|endoftext|>", "a\udcff", "b", "c", EOFError])
    texts = iter([KeyboardInterrupt, None])
    print_samples = Answer.print_samples

    def type_line(prompt):
        assert prompt == "> "
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    def print_or_stop(answer, before):
        error = next(texts)
        if error is not None:
            raise error
        print_samples(answer, before)

    monkeypatch.setattr("builtins.input", type_line)
    monkeypatch.setattr(Answer, "print_samples", print_or_stop)
    monkeypatch.setattr(sys, "stdin", TerminalInput(io.BytesIO()))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    assert cli.main(list(arguments)) == 0
    out, err = capsys.readouterr()
    shown = sample.translate(CONTROLS)  # on a terminal, control characters are replaced
    assert out == f"\n\nc{shown}\n"
    help_line, error, next_error = err.splitlines()
    help_ = "Type the beginning of a text. Ctrl-C stops its continuation, Ctrl-D leaves."
    assert help_line == help_
    hint = "to read it as that token, add --allow-special"
    assert error == f"tiedgpt: error: the text holds <|endoftext|>; {hint}"
    assert next_error.startswith(r"tiedgpt: error: character 1 of the text is '\udcff'")
    assert sys.stdin.errors == "surrogateescape", "bytes that are not text have an error"


def test_a_dash_is_what_is_typed_on_a_terminal(checkpoint, monkeypatch, capsys):
    """Without it, no command waits for a text there."""
    monkeypatch.setattr(sys, "stdin", TerminalInput(io.BytesIO(b"ab")))
    assert cli.main(["tokenize", "-m", checkpoint, "-"]) == 0
    assert capsys.readouterr().out == "    64  'a'\n    65  'b'\n"


@pytest.mark.slow
def test_ctrl_c_stops_a_text_and_the_loop_goes_on(tmp_path):
    # A model that is so slow that the text is not complete before Ctrl-C
    slow = replace(CONFIG, n_layer=4, n_embd=384, n_head=6, n_inner=1536, n_ctx=1024)
    tiedgpt.save_model(tiedgpt.GPT2.random(slow), Tokenizer([]), tmp_path)
    with Terminal("generate", "-q", "-m", str(tmp_path), "-n", "1000000", "-s", "1") as terminal:
        assert terminal.type("", until="> ") == "> "
        shown = terminal.type("<|endoftext|>\r", until="\n> ")
        assert "tiedgpt: error: the text holds" in shown, "--quiet hides no error"
        terminal.type("a\r", until="a\na")  # the line that was typed, and the begin of the text
        terminal.type(CTRL_C, until="\n> ")
        terminal.type(f"typed{CTRL_C}", until="\n> ")
        terminal.type(CTRL_D)
        assert terminal.process.wait(timeout=60) == 0
        assert "Traceback" not in terminal.text


# --logprobs

# Two samples of six tokens
SAMPLED = ("-n", "6", "-s", "3", "--num-samples", "2", "-t", "0.7")


def test_generate_logprobs(run, untied):
    """They are of the logits before --temperature. The text lists those of the JSON."""
    line = ("generate", PROMPT, "-m", untied, *SAMPLED)
    samples = answer(run, *line, "--logprobs", "2")["samples"]
    plain = answer(run, *line)["samples"]
    assert [sample["ids"] for sample in samples] == [sample["ids"] for sample in plain]
    model = tiedgpt.load_model(untied)
    tokenizer = tiedgpt.Tokenizer([])  # for the texts of tokens, which are not compared here
    for sample in samples:
        for place, token in enumerate(sample["ids"]):
            logits = model(IDS + sample["ids"][:place])[-1]
            (expected,) = reports.predictions_report(tokenizer, logits, [token])
            listed = sample["logprobs"][place]
            assert np.exp(listed["logprob"]) == pytest.approx(expected["probability"], rel=1e-4)
            assert listed["rank"] == expected["rank"]
            assert len(listed["alternatives"]) == 2

    _, _, second = output(run, *line, "--logprobs", "2").partition("--- 2 of 2 ---")
    _header, _, rows = second.partition("others\n")  # the header ends with "others"
    first_cells = [row.split()[0] for row in rows.splitlines()]
    assert first_cells == [f"{token['logprob']:.2f}" for token in samples[1]["logprobs"]]


def test_logprobs_end_with_the_sample(run, untied, save):
    """The end-of-text token is not in the logprobs."""
    # The likeliest token is made the one that ends a text. So samples end at different steps.
    model = tiedgpt.load_model(untied)
    likeliest = int(model(IDS)[-1].argmax())
    config = replace(model.config, eos_token_id=likeliest)
    ending = save("ending", tiedgpt.GPT2(config, model.parameters))
    flags = ("-n", "90", "-s", "1", "--num-samples", "4", "--logprobs", "0")
    samples = answer(run, "generate", PROMPT, "-m", ending, *flags)["samples"]
    assert len(samples) == 4
    lengths = {len(sample["ids"]) for sample in samples}
    assert len(lengths) > 1
    for sample in samples:
        assert [token["id"] for token in sample["logprobs"]] == sample["ids"]
        assert all(token["alternatives"] == [] for token in sample["logprobs"])
