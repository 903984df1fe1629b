"""What the modules of page/ draw of the server's answers, in node: without a browser's layout.

laboratory.js is what a reader does, laboratory.txt what is drawn then, and dom.js as much of a
document as the page uses. The answers are made up, with numbers that are easy to follow: two
models, of which the second is untied, and a prompt of two tokens, " to" and "be".
"""

import base64
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.node import run_node

from tiedgpt.explore.panels import PANELS
from tiedgpt.explore.server import PAGE


def floats(*numbers):
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()


TO = {"id": 3, "token": " to"}
BE = {"id": 4, "token": "be"}
LINE = {"id": 1, "token": "\n"}
PADDING = {"id": 0, "token": None}
SIZES = {"n_ctx": 8, "n_embd": 2, "n_layer": 2, "n_head": 2, "vocab_size": 5000}
PATHS = ["raw", "normed", "mlp0", "model"]


def scores(*numbers):
    """The rows of predictions_report: logit, probability, chance to be drawn, of three tokens."""
    rows = []
    for rank, (token, (logit, probability, drawn)) in enumerate(
        zip((LINE, BE, PADDING), numbers, strict=True)
    ):
        rows.append(
            {**token, "logit": logit, "probability": probability, "drawn": drawn, "rank": rank + 1}
        )
    return rows


NEXT = {
    "text": " tobe",
    "tokens": [TO, BE],
    "place": 1,
    "rows": scores((2.5, 0.75, 0.9), (-1.25, 0.08, 0.1), (-2.5, 0.0004, 0)),
    "kept": 1500,
    "kept_probability": 0.83,
}
PATH = {
    "tokens": [TO, BE],
    "text": {"counts": [[0, 1234], [7, 0]], "percent": [[50, 45.4], [3, 0]]},
    "A": [[1, 2], [2.00001, -4]],
    "W_E": floats(1, 0, 2, -1),
    "W_U": floats(1, 0, 2, -1),
}
SYMMETRY = {
    "paths": {
        "raw": {"asymmetry": 0, "self_prediction": 0.9},
        "normed": {"asymmetry": 0.3, "self_prediction": 0.5},
        "mlp0": {"asymmetry": 0.71, "self_prediction": 0.44},
        "model": {"asymmetry": 1.4, "self_prediction": 0},
    },
    "measured": 5000,
    "text": 0.0312,
}
ASYMMETRIC = {  # on a sample, of a model without MLPs, and without a text
    "paths": {
        "raw": {"asymmetry": 1.6, "self_prediction": 0.0004},
        "normed": {"asymmetry": 1.41, "self_prediction": 0.02},
    },
    "measured": 512,
    "text": None,
}
NEAREST = {
    "token": BE,
    "W_E": [{**TO, "cosine": 0.5}, {**LINE, "cosine": -0.125}],
    "W_U": [
        {**PADDING, "cosine": 0.25},
        {"id": 9, "token": "", "cosine": 0},
        {"id": 10, "token": "a\tb\rc", "cosine": -0.001},
    ],
}
LENS = {
    "tokens": [TO, BE],
    "layers": [
        {
            "positions": [
                [{**TO, "probability": 0.9}, {**BE, "probability": 0.05}],
                [{**TO, "probability": 0.5}, {**LINE, "probability": 0.0001}],
            ]
        },
        {
            "positions": [
                [{**BE, "probability": 0.6}, {**TO, "probability": 0.2}],
                [{**BE, "probability": 0.7}, {**TO, "probability": 0}],
            ]
        },
        {"positions": [[{**LINE, "probability": 0.6}], [{**TO, "probability": 0.7}]]},
    ],
}
PARTS = {
    "tokens": [{**BE, "probability": 0.08, "logit": -1.25, "rank": 1200}],
    "likeliest": [LINE, BE],
    "parts": {
        "wte": 1,
        "wpe": -0.5,
        "attn.0.head.0": 0.25,
        "attn.0.head.1": 2,
        "attn.0.bias": 0.001,
        "mlp.0": -4,
        "mlp.0.bias": 0,
        "attn.1.head.0": 0.5,
        "attn.1.head.1": 1.5,
        "attn.1.bias": 0,
        "mlp.1": 1.75,
        "mlp.1.bias": 0.125,
        "ln_f.bias": 0.75,
    },
}
WITHOUT = {
    **PARTS,
    "likeliest": [LINE],
    "ablated": {"tokens": [{**BE, "probability": 0.2, "logit": 0, "rank": 2}]},
    "change": [
        {**LINE, "probability": 0.75, "without": 0.25},
        {**BE, "probability": 0.08, "without": 0.2},
    ],
}
ATTENTION = {
    "tokens": [TO, BE],
    "patterns": floats(
        *(1, 0, 0.25, 0.75), *(1, 0, 1, 0), *(1, 0, 0.5, 0.5), *(1, 0, 0.001, 0.999)
    ),
}
GRADIENT = {
    "loss": 1.5,
    "rows": [
        {**TO, "embed": 0.16, "head": 0.04, "cosine": -0.5},
        {**BE, "embed": 0, "head": 0.01, "cosine": 0},
        {**LINE, "embed": 0, "head": 0.64, "cosine": 0},
    ],
    "reached": [1, 5000],
    "read": 2,
    "absent": 1,
    "embed": 3,
    "head": 4,
    "cosine": -0.1234,
}
START = {
    "models": [
        {**SIZES, "name": "a", "heads": ["tied"], "paths": PATHS, "parameters": 1234},
        {
            **SIZES,
            "n_ctx": 6,
            "name": "b",
            "heads": ["untied", "tied"],
            "paths": PATHS,
            "parameters": 5678,
        },
    ],
    "corpus": "a text",
    "prompts": ["to be", "or"],
    "sampling": [
        {
            "name": "temperature",
            "default": 1.0,
            "help": "divide",
            "min": 0,
            "max": None,
            "whole": False,
        },
        {
            "name": "top_k",
            "default": None,
            "help": "likeliest",
            "min": 0,
            "max": None,
            "whole": True,
        },
        {"name": "greedy", "default": False, "help": "take"},
    ],
}
WORDS = [
    {**TO, "probability": 0.25, "bits": 2, "rank": 1},
    {**LINE, "probability": 0.0001, "bits": 13.3, "rank": 1200},
]
SOLVED = {"missing": {"scale": 0.125, "head": 1.5, "rank": 0}}
ANSWERS = {
    "start": [START],
    "next": [NEXT],
    "path": [PATH],
    "symmetry": [SYMMETRY],
    "nearest": [NEAREST],
    "lens": [LENS],
    "parts": [PARTS],
    "attention": [ATTENTION],
    "gradient": [GRADIENT],
    "solve": [SOLVED],
    "generate": [*WORDS, {"end": "length", "bits_per_token": 7.65}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The modules of the page where node takes them for modules, and dom.js."""
    folder = tmp_path_factory.mktemp("laboratory")
    for file in [*PAGE.glob("*.js"), Path(__file__).with_name("dom.js")]:
        shutil.copy(file, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


# The boxes of the panels. Later steps look at those that they change.
BOXES = [
    "#strip",
    "#status",
    "#bars",
    "#drawing",
    "#turn",
    "#flow",
    "#flowsays",
    "#paths",
    "#matrices",
    "#mirror",
    "#product",
    "#corpus",
    "#nearto",
    "#near",
    "#repair",
    "#lensbox",
    "#partsbox",
    "#partsout",
    "#partsbars",
    "#token",
    "#heads",
    "#attnbox",
    "#gradbox",
    "#controls",
    "#problem",
    "#otherpath",
    "#solvedbox",
    "#barsnote",
    "#bytes",
]
ADDRESSES = [
    "#lens?text=a?+b%3F&place=0&heads=tied_tied&side=1&removed=mlp.0_attn.0.head.1&path=mlp0",
    "#parts?ids=3_4_1&seed=7&greedy=true&temperature=0&token=2&layer=x",
    "#nowhere?side=9&path=nowhere&heads=untied_x&removed=&made_up=1&greedy=false",
]
SCRIPT = Path(__file__).with_name("laboratory.js").read_text(encoding="utf-8")
LABORATORY = Path(__file__).with_name("laboratory.txt")
STEPS = dict(re.findall(r"^=== (.*)\n((?:.+\n)*)", LABORATORY.read_text(encoding="utf-8"), re.M))


@pytest.fixture(scope="module")
def laboratory(request, tmp_path_factory):
    """What each step draws, as a text. Node takes the modules of the page for modules there."""
    folder = tmp_path_factory.mktemp("laboratory")
    for file in [*PAGE.glob("*.js"), Path(__file__).with_name("dom.js")]:
        shutil.copy(file, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    steps = run_node(
        SCRIPT,
        folder=str(folder),
        html=(PAGE / "page.html").read_text(encoding="utf-8"),
        answers=ANSWERS,
        without=WITHOUT,
        asymmetric=ASYMMETRIC,
        panels=list(PANELS),
        boxes=BOXES,
        addresses=ADDRESSES,
    )
    steps = {name: "\n".join(lines) + "\n" for name, lines in steps.items()}
    if request.config.getoption("--update"):
        text = "\n".join(f"=== {name}\n{lines}" for name, lines in steps.items())
        LABORATORY.write_text(text, encoding="utf-8")
    return steps


@pytest.mark.parametrize("step", STEPS)
def test_what_the_laboratory_draws(laboratory, step):
    """If it is meant to be another: pytest --update writes laboratory.txt anew."""
    assert laboratory[step] == STEPS[step]


def test_each_step_is_in_the_file(laboratory):
    assert list(laboratory) == list(STEPS)
    assert len(STEPS) == 10
