"""`tiedgpt generate` as a user meets it: prompts, stdout, JSON, the prompt loop, Ctrl-C."""

import json
import os
import signal
import subprocess
from dataclasses import replace

import pytest
from support.commands import answer, assert_one_error_line, command, output
from support.models import CONFIG, random_model
from support.terminal import CTRL_C, CTRL_D, Terminal

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.checkpoints.checkpoint import Checkpoint
from tiedgpt.cli.output import CONTROLS
from tiedgpt.errors import short_repr


def test_generate_prints_the_continuation_alone(run, checkpoint):
    out = output(run, "generate", "--model", checkpoint, "--seed", "1", "-n", "9", "Hello")
    model = tiedgpt.load_model(checkpoint)
    tokenizer = tiedgpt.load_tokenizer(checkpoint)
    ids = list(tiedgpt.generate(model, tokenizer.encode("Hello"), 9, seed=1))
    assert out == tokenizer.decode(ids) + "\n"


def test_flags_have_short_names(run, checkpoint):
    short = f"generate -m {checkpoint} -n 9 -t 2 -k 50 -p 0.9 -s 3 a"
    long = (
        f"generate --model {checkpoint} --max-new-tokens 9 --temperature 2 --top-k 50 --top-p 0.9 "
        "--seed 3 a"
    )
    assert output(run, *short.split()) == output(run, *long.split())


# The prompt


@pytest.mark.parametrize("name", ["generate", "next", "lens", "attribute"])
@pytest.mark.parametrize(
    ("arguments", "stdin", "prompt"),
    [
        pytest.param(["b"], b"a", "b", id="argument-before-stdin"),
        pytest.param(["é"], b"", "é", id="argument-not-ascii"),
        pytest.param([], b"a\n\n", "a\n", id="stdin-without-its-last-line-end"),
        pytest.param(["-"], b"a\r\n", "a", id="dash-is-stdin"),
        pytest.param(["-"], b"-", "-", id="dash-on-stdin"),
    ],
)
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
        pytest.param("generate --json -n 1", "é", '"prompt": "\\u00e9"', id="stdin"),
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
    dropped = 84 - kept
    assert err == f"tiedgpt: note: --truncate drops the first {dropped} of the prompt's 84 tokens\n"
    document = json.loads(out)
    end = prompt[-kept:]
    assert document["prompt"] == prompt
    assert document["prompt_ids"] == tiedgpt.load_tokenizer(checkpoint).encode(end)
    assert document["samples"] == answer(run, *arguments, end)["samples"]


def test_an_end_of_text_token_alone_is_a_prompt_if_it_is_allowed(run, checkpoint):
    document = answer(run, "generate", "--model", checkpoint, "<|endoftext|>", "--allow-special")
    assert document["prompt_ids"] == [256]


@pytest.fixture
def without_special_tokens(save):
    model = random_model(replace(CONFIG, vocab_size=256))
    return save("without special tokens", model, Tokenizer([], {}))


def test_an_empty_prompt_of_a_model_without_special_tokens(run, without_special_tokens):
    """The message does not advise to begin the text with a special token."""
    message = "the prompt is empty: GPT-2 needs at least one token to continue\n"
    assert_one_error_line(run("generate", "--model", without_special_tokens, ""), message)


def test_a_model_without_special_tokens_reads_any_text(run, without_special_tokens):
    code, _, _ = run("generate", "--model", without_special_tokens, "-n", "3", "<|endoftext|>")
    assert code == 0


# The JSON


def test_generate_json(run, checkpoint):
    tokenizer = tiedgpt.load_tokenizer(checkpoint)
    arguments = ("generate", "--model", checkpoint, "--num-samples", "3", "-t", "2", "-n", "8")
    document = answer(run, *arguments, "a\n")
    assert document["model"] == checkpoint
    assert document["head"] == "tied"
    assert document["prompt"] == "a\n"
    assert document["prompt_ids"] == tokenizer.encode("a\n")
    assert len(document["samples"]) == 3
    for sample in document["samples"]:
        assert len(sample["ids"]) == 8
        assert sample == {
            "ids": sample["ids"],
            "text": tokenizer.decode(sample["ids"]),
            "finish_reason": "length",
        }
    assert len({sample["text"] for sample in document["samples"]}) == 3
    assert set(document["timing"]) == {"load_s", "prefill_s", "decode_tokens_per_s"}
    assert min(document["timing"].values()) > 0


def test_the_seed_in_the_json_repeats_the_samples(run, checkpoint):
    arguments = ("generate", "--model", checkpoint, "--num-samples", "3", "-t", "2", "-n", "8", "a")
    document = answer(run, *arguments)
    again = answer(run, *arguments, "--seed", str(document["seed"]), "--head", "tied")
    assert again["samples"] == document["samples"]
    assert answer(run, *arguments)["seed"] != document["seed"], "a run without --seed has a new one"


def test_generation_goes_on_past_the_context(run, checkpoint):
    document = answer(run, "generate", "--model", checkpoint, "-n", "150", "a" * 60)
    assert len(document["samples"][0]["ids"]) == 150


def greedy_sample(run, model, *flags):
    """The one sample that continues "a" by the likeliest tokens."""
    document = answer(run, "generate", "--model", model, "--greedy", "-n", "12", "a", *flags)
    (sample,) = document["samples"]
    return sample


def test_stop_ends_the_text_before_it(run, checkpoint):
    text = greedy_sample(run, checkpoint)["text"]
    stop = text[4]  # a character in the middle
    sample = greedy_sample(run, checkpoint, "--stop", stop)
    assert sample["finish_reason"] == "stop"
    assert sample["text"] == text.partition(stop)[0]


def test_the_end_of_text_token_ends_the_text(run, checkpoint, save):
    ids = greedy_sample(run, checkpoint)["ids"]
    end_of_text = ids[3]  # this token is made the one that ends a text
    model = tiedgpt.load_model(checkpoint)
    ending = tiedgpt.GPT2(replace(model.config, eos_token_id=end_of_text), model.parameters)
    sample = greedy_sample(run, save("ending", ending))
    assert sample["finish_reason"] == "eos"
    assert sample["ids"] == ids[: ids.index(end_of_text)]


# Drafts

# At a low temperature a text repeats itself, so that some guesses are right.
DRAFTED = ("--seed", "1", "-t", "0.1", "-n", "90", "--num-samples", "2", "--logprobs", "1", "abc")


@pytest.fixture
def small(save):
    """The path of a much smaller model with the vocabulary of `checkpoint`."""
    return save("small", random_model(replace(CONFIG, n_layer=0, n_embd=2, n_head=1)))


def texts_with_draft(run, checkpoint, draft):
    document = answer(run, "generate", "-m", checkpoint, *DRAFTED, "--draft", draft)
    return [sample["text"] for sample in document["samples"]]


def test_a_draft_changes_no_text(run, checkpoint, small):
    texts = texts_with_draft(run, checkpoint, "none")
    assert texts_with_draft(run, checkpoint, "lookup") == texts
    assert texts_with_draft(run, checkpoint, small) == texts


def test_drafted_tokens_have_logprobs(run, checkpoint, small):
    document = answer(run, "generate", "-m", checkpoint, *DRAFTED, "--draft", small)
    for sample in document["samples"]:
        assert [token["id"] for token in sample["logprobs"]] == sample["ids"]


def test_drafted_tokens_are_counted(run, checkpoint, small):
    arguments = ("generate", "-m", checkpoint, *DRAFTED)
    assert answer(run, *arguments, "--draft", "none")["draft"] is None
    by_lookup = answer(run, *arguments, "--draft", "lookup")["draft"]
    assert by_lookup["drafted"] >= by_lookup["accepted"] > 0
    by_model = answer(run, *arguments, "--draft", small)["draft"]
    assert by_model["drafted"] >= by_model["accepted"]
    assert by_model["drafted"] > 0


def test_lookup_is_the_default_draft(run, checkpoint):
    arguments = ("generate", "-m", checkpoint, *DRAFTED)
    by_lookup = answer(run, *arguments, "--draft", "lookup")["draft"]
    assert answer(run, *arguments)["draft"] == by_lookup


OTHER_VOCABULARY = "has other merges, special tokens or vocab_size than the model"


@pytest.mark.parametrize(
    ("config", "merges", "message"),
    [
        pytest.param(CONFIG, [("a", "b")], OTHER_VOCABULARY, id="merges"),
        pytest.param(replace(CONFIG, vocab_size=320), [], OTHER_VOCABULARY, id="vocab-size"),
        pytest.param(
            replace(CONFIG, n_ctx=63), [], "has a context of 63; the model needs 64", id="context"
        ),
    ],
)
def test_a_draft_that_cannot_guess_is_refused_before_weights_are_read(
    run, checkpoint, save, monkeypatch, config, merges, message
):
    draft = save("draft", random_model(config), Tokenizer(merges))
    monkeypatch.setattr(Checkpoint, "load", None)  # so reading the weights would fail
    result = run("generate", "-m", checkpoint, "--draft", draft, "abc")
    assert_one_error_line(result, f"--draft {short_repr(draft)} {message}")


# Models and heads


def test_a_copied_head_gives_the_same_text_and_is_noted(run, checkpoint):
    greedy = ("generate", "--greedy", "a", "--model", checkpoint)
    code, out, err = run(*greedy, "--head", "untied")
    assert code == 0
    assert out == output(run, *greedy)
    note = "tiedgpt: note: this checkpoint has no W_U of its own: a copy of wte.T is used"
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
    assert err.startswith("tiedgpt: note: gpt2 is not on this machine, so this is shakespeare-tied")


def test_without_a_model_it_is_gpt2_if_that_is_here(run, checkpoint, weights):
    (weights / "shakespeare-tied").symlink_to(checkpoint)
    (weights / "gpt2").symlink_to(checkpoint)
    assert answer(run, "generate", "-n", "1", "a")["model"] == "gpt2"


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


def test_a_closed_pipe_ends_it_quietly(checkpoint):
    """As by `| head -1`."""
    with start_of_a_long_text(checkpoint) as process:
        process.stdout.close()
        assert process.wait(timeout=60) == 141  # as a shell reports SIGPIPE
        assert process.stderr.read() == b""


def test_ctrl_c_ends_it_quietly(checkpoint):
    with start_of_a_long_text(checkpoint) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130  # as a shell reports Ctrl-C
        assert process.stderr.read() == b"\n"


# The prompt loop


def continuation(run, checkpoint, prompt):
    """The sample that the prompt loop prints after a prompt.

    On a terminal, control characters are replaced.
    """
    _, out, _ = run("generate", "-m", checkpoint, "--greedy", "-n", "4", prompt)
    return out.translate(CONTROLS)


def test_the_prompt_loop_prints_samples_one_below_the_other(checkpoint, run):
    sample = continuation(run, checkpoint, "b")
    arguments = ("generate", "-m", checkpoint, "--greedy", "-n", "4", "--num-samples", "2")
    with Terminal(*arguments) as terminal:
        assert "Ctrl-D leaves" in terminal.type("", until="> ")
        shown = terminal.type("b\r", until="> ")
        assert shown == f"b\n--- 1 of 2 ---\nb{sample}--- 2 of 2 ---\nb{sample}> "
        terminal.type(CTRL_D)
        assert terminal.process.wait(timeout=60) == 0, terminal.text


def test_an_empty_line_a_mistake_and_ctrl_c_do_not_end_the_prompt_loop(checkpoint, run):
    sample = continuation(run, checkpoint, "b")
    with Terminal("generate", "-m", checkpoint, "--greedy", "-n", "4") as terminal:
        terminal.type("", until="> ")
        assert terminal.type("\r", until="> ") == "\n> "
        shown = terminal.type("<|endoftext|>\r", until="> ")
        assert "tiedgpt: error: the text holds <|endoftext|>" in shown
        terminal.type(f"typed{CTRL_C}", until="To leave, press Ctrl-D.\n> ")
        assert terminal.type("b\r", until="> ") == f"b\nb{sample}> "
        terminal.type(CTRL_D)
        assert terminal.process.wait(timeout=60) == 0, terminal.text
        assert "Traceback" not in terminal.text


def test_a_paste_of_several_lines_is_one_prompt_and_only_its_last_line_is_repeated(checkpoint, run):
    readline = pytest.importorskip("readline")
    if "libedit" in readline.__doc__:
        pytest.skip("libedit does not know how terminals mark a paste")
    # A terminal marks the begin and the end of a paste while a program has turned the marks on.
    begin_of_paste, end_of_paste = "\x1b[200~", "\x1b[201~"
    marks_on, marks_off = "\x1b[?2004h", "\x1b[?2004l"
    lines_of_paste = "a\r\rb\rcd\r"
    sample = continuation(run, checkpoint, "a\n\nb\ncd")
    arguments = ("generate", "-m", checkpoint, "--greedy", "-n", "4")
    with Terminal(*arguments, term="xterm") as terminal:
        assert marks_on in terminal.type("", until="> ")
        shown = terminal.type(f"{begin_of_paste}{lines_of_paste}{end_of_paste}\r", until="> ")
        # readline shows the paste while it is typed. Then it turns the marks off.
        _typed, _, after_the_paste = shown.replace("\r", "").partition(marks_off)
        assert after_the_paste.lstrip("\n") == f"cd{sample}{marks_on}> ", shown


def test_ctrl_c_stops_a_text_and_the_loop_goes_on(tmp_path):
    # A model that is so slow that the text is not complete before Ctrl-C
    slow = replace(CONFIG, n_layer=4, n_embd=384, n_head=6, n_inner=1536, n_ctx=1024)
    tiedgpt.save_model(tiedgpt.GPT2.random(slow), Tokenizer([]), tmp_path)
    with Terminal("generate", "-m", str(tmp_path), "-n", "1000000", "-s", "1") as terminal:
        terminal.type("", until="> ")
        terminal.type("a\r", until="a\na")  # the line that was typed, and the begin of the text
        terminal.type(CTRL_C, until="\n> ")
        terminal.type(CTRL_D)
        assert terminal.process.wait(timeout=60) == 0
        assert "To leave" not in terminal.text  # which is said only after Ctrl-C at a prompt
