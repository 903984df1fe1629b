"""GPT-2 in JavaScript, run by node: the modules of tiedgpt/explore/article."""

import atexit
import json
import os
import shutil
import subprocess
from functools import cache

import pytest
from page.article import modules

# Node takes a tenth of a second to start. So one process runs the scripts of all tests, each as a
# function of its own. It reads a script and its input from each line, and writes a line for each.
MAIN = """
const {readFileSync} = await import("node:fs")
const {createInterface} = await import("node:readline")
const AsyncFunction = (async () => {}).constructor
const bufferOf = path => new Uint8Array(readFileSync(path)).buffer
// Arrays come out as nested lists. JSON has no typed arrays.
const withLists = (_, value) => (ArrayBuffer.isView(value) ? [...value] : value)
for await (const line of createInterface({input: process.stdin})) {
    const {script, input} = JSON.parse(line)
    const answer = {error: null}
    const print = value => { answer.printed = value }
    try {
        await new AsyncFunction("input", "print", "bufferOf", script)(input, print, bufferOf)
    } catch (error) {
        answer.error = error.stack
    }
    console.log(JSON.stringify(answer, withLists))
}
"""


@cache
def node_process() -> subprocess.Popen[str]:
    """Node with MAIN, which ends with this process."""
    node = shutil.which("node")
    if node is None and os.environ.get("CI") != "true":
        pytest.skip("node is not installed (apt-get install nodejs)")
    process = subprocess.Popen(
        [node, "--input-type=module", "--eval", MAIN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    atexit.register(process.communicate)  # it closes the input, and waits for the end
    return process


def run_node(script, *others, **values):
    """What `script` prints with print(value).

    It has `input.NAME`, and the functions of the engine and of the other modules that are named.
    """
    process = node_process()
    whole_script = '"use strict"\n' + modules("tokenizer.js", "gpt2.js", *others) + script
    try:
        print(json.dumps({"script": whole_script, "input": values}), file=process.stdin, flush=True)
        answer = json.loads(process.stdout.readline())
    except BaseException:  # of a test that takes too long, the answer is not that of the next one
        process.kill()
        node_process.cache_clear()
        raise
    assert answer["error"] is None, answer["error"]
    return answer["printed"]
