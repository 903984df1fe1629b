"""GPT-2 in JavaScript, run by node: the modules of tiedgpt/explore/article."""

import json
import os
import shutil
import subprocess

import pytest
from page.article import modules

# Arrays come out as nested lists. JSON has no typed arrays.
MAIN = """
const {readFileSync} = await import("node:fs")
const input = JSON.parse(readFileSync(0, "utf8"))
const bufferOf = path => new Uint8Array(readFileSync(path)).buffer
const withLists = (_, value) => (ArrayBuffer.isView(value) ? [...value] : value)
const print = value => console.log(JSON.stringify(value, withLists))
"""


def run_node(script, *more_modules, **values):
    """What `script` prints with print(value).

    It can use the values as `input.NAME`, and the functions of tokenizer.js, gpt2.js and
    `more_modules`.
    """
    node = shutil.which("node")
    if node is None and os.environ.get("CI") != "true":
        pytest.skip("node is not installed (apt-get install nodejs)")
    source = modules("tokenizer.js", "gpt2.js", *more_modules) + MAIN + script
    process = subprocess.run(
        [node, "--input-type=module", "--eval", source],
        input=json.dumps(values),
        capture_output=True,
        encoding="utf-8",
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
