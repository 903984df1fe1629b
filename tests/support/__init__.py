"""What several test modules share. Fixtures are in conftest.py.

models              small random models, and a text in their tokens
commands            the command line: its output, its errors, the words that start it
terminal            a command on a pseudo-terminal
texts               random texts, and merging by the book
checks              an error of one line, the memory of a call, the files of a directory, waiting
loopback_hub        a hub that can fail, and downloads from it
writers             commands that write files, killed at any moment
checkpoint_files    checkpoints with any tensors; two models that are the same
openai_files        checkpoints as OpenAI released them
torch_files         files as torch.save writes them, made without torch
layouts             a model's tensors in the names and the layout of another program
count_opens         how often each command opens each file of its models
vocabularies        a tokenizer.json
reference           where reference data is
explore_server      questions to the server of the laboratory
browser             Chromium, playwright and axe
node                the article's JavaScript, run by node
comparing           models to compare, and their activations
other_gpt2          the GPT-2 of the tests, written apart from tiedgpt: each step can be replaced
wrong_gpt2s         the same with a wrong step, one for each known mistake
public_ports        the same with the steps of GPT-2s that others published
torch_gpt2s         GPT-2 as torch modules
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
