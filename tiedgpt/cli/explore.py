"""Look at one or two models in the browser.

Show one or two models in the browser, on your own prompt: the likeliest next tokens with either
head, the direct path, a model of three words to change, the logit lens, attention, which parts a
prediction comes from, gradients, and what the second matrix costs. The source code that computes
each number is beside it.

The page is served by this machine to this machine. Nothing is sent elsewhere. Ctrl-C stops it. For
the page of another machine, start it there with --port 8080, run `ssh -L 8080:127.0.0.1:8080
MACHINE` here, and open the address that it printed.

examples:
  tiedgpt explore
  tiedgpt explore my-tied-model my-untied-model --corpus story.txt
  tiedgpt explore --port 8080 --no-browser
  tiedgpt explore --export page.html
"""

import argparse
from pathlib import Path

from ..checkpoints.known_models import SHIPPED
from ..checkpoints.places import find_model, weight_folders
from ..checkpoints.publishing import StagedFiles
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, Range
from ..gpt2.tokenizer import Tokenizer
from ..study.corpus import Corpus
from . import common
from .terminal import note, read_text, source_name


def add_arguments(parser: common.Parser) -> None:
    models = (
        "one or two models with the same vocabulary (default: shakespeare-tied shakespeare-untied)"
    )
    common.add_models(parser, models)
    parser.add(
        "--corpus FILE", "a text in UTF-8 whose bigrams are shown beside the models; - for stdin"
    )
    port = "the port on 127.0.0.1 (default: any free one)"
    parser.add("--port PORT", port, common.number(Range(0, 65535)), default=0)
    export = "write the page to one file that opens without a server, with four example prompts, and stop"
    parser.add("--export FILE", export)
    parser.add("--no-browser", "print the address only, and open no browser")
    parser.add_shared("--allow-special")


def run(args: argparse.Namespace) -> None:
    from ..explore.export import export
    from ..explore.server import Server, open_browser
    from ..explore.views import Views

    names, file, port, browser = (
        args.models or list(SHIPPED),
        args.export,
        args.port,
        not args.no_browser,
    )
    text, allow_special = args.corpus, args.allow_special
    if len(names) > 2:
        raise ArgumentError(f"expected one or two models, got {len(names)}")
    if file is not None and Path(file).exists() and not Path(file).is_file():
        raise ArgumentError(
            f"--export: {file or repr(file)} is a directory or a device; expected a file"
        )
    opened = [common.open_model(name) for name in names]
    vocabularies = [common.vocabulary(tokenizer, checkpoint) for _, checkpoint, tokenizer in opened]
    if vocabularies[0] != vocabularies[-1]:
        raise ArgumentError(
            f"{names[0]} and {names[1]} have different vocabularies; expected the same"
        )
    _, checkpoint, tokenizer = opened[0]
    corpus = read_corpus(text, allow_special, tokenizer, checkpoint.config.vocab_size)
    models = [(name, common.load(checkpoint, None)) for name, checkpoint, _ in opened]
    views = Views(models, tokenizer, corpus)
    if file is not None:
        with StagedFiles(Path(file).parent) as files:
            size = files.open(Path(file).name).write(export(views).encode())
        return note(f"{file}: {size / 1e6:.1f} MB; it opens from disk, and on any web server")
    try:
        server = Server(views, port)
    except OSError as error:
        raise ArgumentError(
            f"port {port}: {error.strerror}; choose another or leave --port out"
        ) from error
    print(server.url, flush=True)
    note("the page is at this address, for this machine only; Ctrl-C stops the server")
    if browser and not open_browser(server.url_once):
        note("found no browser here: open the address above in one")
    with server:
        try:
            server.serve_forever(poll_interval=0.1)
        finally:
            server.stopping = True


def read_corpus(
    file: str | None, allow_special: bool, tokenizer: Tokenizer, V: int
) -> tuple[str, Corpus] | None:
    """The text to compare with and its name. The shipped models come with the counts of their own
    text."""
    if file is not None:
        name = source_name(file)
        ids = common.encode(tokenizer, read_text(file), allow_special, name)
        return Path(name).name, Corpus.of(ids, V)
    shipped = read_tokenizer(find_model(SHIPPED[0]))
    counts = [
        path for root in weight_folders() if (path := root / "shakespeare-bigrams.npz").is_file()
    ]
    if tokenizer.merges == shipped.merges and shipped.vocab_size == V and counts:
        return "the text that the shakespeare models learned from", Corpus.read(counts[0])
    return None
