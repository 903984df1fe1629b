"""Read about the tie, and look at one or two models in the browser.

The page is an article on the tie, with the shipped models in it. The laboratory is one link from
it, and shows one or two models on your own prompt: the likeliest next tokens with either head, the
direct path, the logit lens, attention, which parts a prediction comes from, and gradients. The
source code that computes each number is beside it. With your own models or text, the laboratory is
opened first.

Both are served by this machine to this machine. Nothing is sent elsewhere. Ctrl-C stops the server.
For the pages of another machine, start it there with --port 8080, run `ssh -L 8080:127.0.0.1:8080
MACHINE` here, and open the address that it printed.

examples:
  tiedgpt explore
  tiedgpt explore my-tied-model my-untied-model --corpus story.txt
  tiedgpt explore --port 8080 --no-browser
"""

import argparse
import os
import threading
import webbrowser
from pathlib import Path
from typing import Any

from ..checkpoints import load_tokenizer
from ..checkpoints.model_names import SHIPPED, weight_folders
from ..errors import ArgumentError, Range
from ..gpt2.tokenizer import Tokenizer
from ..study.corpus import Corpus
from . import inputs, options
from .inputs import encode_text, read_text, source_name
from .output import note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser,
        "one or two models with the same vocabulary (default: shakespeare-tied shakespeare-untied)",
    )
    parser.add_argument(
        "--corpus",
        metavar="FILE",
        help="a text in UTF-8 whose bigrams are shown beside the models; - for stdin",
    )
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=options.whole_number,
        default=0,
        help="the port on 127.0.0.1 (default: any free one)",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address only, and open no browser"
    )
    options.add(parser, "allow_special")


def run(args: argparse.Namespace) -> None:
    from ..explore.query import ShownModels  # here, because the help page needs none of it

    Range(0, 65535).check("port", args.port)
    names = args.models or list(SHIPPED)
    if len(names) > 2:
        raise ArgumentError(f"expected one or two models, got {len(names)}")
    if args.allow_special and args.corpus is None:
        raise ArgumentError("--allow-special needs --corpus: no other text is read")
    opened = [inputs.open_model(name) for name in names]
    vocabularies = []
    for each in opened:
        # Asked before the tokenizer: the error on a file that is no checkpoint should say that.
        vocab_size = each.config.vocab_size
        vocabularies.append((each.tokenizer.description(), vocab_size))
    if vocabularies[0] != vocabularies[-1]:  # of one model, both are the same
        both = " and ".join(each.name for each in opened)
        raise ArgumentError(f"{both} have different vocabularies; expected the same")
    vocab_size, tokenizer = opened[0].config.vocab_size, opened[0].tokenizer
    corpus = read_corpus(args.corpus, args.allow_special, tokenizer, vocab_size)

    named_models = [(each.name, inputs.load(each, head=None)) for each in opened]
    shown = ShownModels(named_models, tokenizer, corpus)
    page = "lab" if args.models or args.corpus else ""  # the article has models of its own
    serve(shown, page, args.port, with_browser=not args.no_browser)


def read_corpus(
    file: str | None, allow_special: bool, tokenizer: Tokenizer, vocab_size: int
) -> tuple[str, Corpus] | None:
    """The name of the text to compare with, and its counts.

    Without a file: the text that the shipped models learned from, whose counts come with tiedgpt.
    None if the models do not have the shipped vocabulary, or the counts are not on this machine.
    """
    if file is not None:
        source = source_name(file)
        ids = encode_text(tokenizer, read_text(file), allow_special, source)
        shown_name = Path(source).name  # the page has no room for a long path
        return shown_name, Corpus.of(ids, vocab_size)

    shipped = load_tokenizer(SHIPPED[0])
    if tokenizer.merges != shipped.merges or vocab_size != shipped.vocab_size:
        return None
    for folder in weight_folders():
        counts = folder / "shakespeare-bigrams.npz"
        if counts.is_file():
            return "the text that the shakespeare models learned from", Corpus.read(counts)
    return None


def serve(shown: Any, page: str, port: int, with_browser: bool) -> None:
    """Serve the pages until Ctrl-C, and open one of them.

    Raises ArgumentError for a port that cannot be used.
    """
    from ..explore.server import Server

    try:
        server = Server(shown, port)
    except OSError as error:
        raise ArgumentError(
            f"port {port}: {error.strerror}; choose another or leave --port out"
        ) from error
    url = server.url + page
    print(url, flush=True)
    note("the page is at this address, for this machine only; Ctrl-C stops the server")
    if with_browser and not open_browser(url):
        note("found no browser here: open the address above in one")
    with server:
        server.serve()


def open_browser(url: str) -> bool:
    """Open the page in $BROWSER or a browser with windows. False if there is none."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # Browsers for the terminal, such as w3m, are of this class itself, not of a class below it.
    # One is opened only if the reader has chosen it.
    takes_the_terminal = type(browser) is webbrowser.GenericBrowser
    if takes_the_terminal and not os.environ.get("BROWSER"):
        return False
    # In a thread, because `open` may wait for the page, and this thread serves it.
    threading.Thread(target=browser.open, args=(url,), daemon=True).start()
    return True
