"""What several test modules share. Fixtures are in conftest.py.

models              small random models, and a text in their tokens
commands            the command line: its output, its errors, the words that start it
terminal            a command on a pseudo-terminal
interrupted         a command that gets Ctrl-C at a difficult moment
texts               random texts, and merging by the book
generation          the tokens of several prompts
checks              an error of one line, the memory of a call, the files of a directory, waiting
loopback_hub        a hub that can fail, and downloads from it
writers             commands that write files, killed at any moment
checkpoint_files    checkpoints with any tensors; two models that are the same
openai_files        checkpoints as OpenAI released them
vocabularies        a tokenizer.json
reference           where reference data is
comparing           models to compare, and their activations
other_gpt2          a GPT-2 written apart from tiedgpt
wrong_gpt2s         the same GPT-2 with a wrong formula, one for each known mistake
torch_gpt2s         GPT-2 in torch
exercise_solutions  a solution of each exercise
wrong_solutions     a wrong solution for each mistake that has a name
"""

import pytest

# The assertions in these modules then say what differs, as the assertions in a test do.
pytest.register_assert_rewrite(
    "support.checkpoint_files",
    "support.checks",
    "support.commands",
    "support.loopback_hub",
    "support.terminal",
    "support.texts",
)
