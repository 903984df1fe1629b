"""The commands score and documents: how well a model predicts a text, and each of many texts."""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

from ..errors import ArgumentError, TiedGPTError, one_line
from ..evaluation import check_text_ids, stride_or_default
from ..study.reports import ScoreReport, score_report
from . import inputs, options
from .inputs import encode_text, read_text, source_name
from .output import (
    ProgressBar,
    fill,
    note,
    print_json_by_head,
    print_predictions,
    print_table,
    rows_of_fields,
)

ALTERNATIVES = 5  # other tokens in a prediction for --tokens


class Question(TypedDict):
    """What --json prints before the numbers."""

    model: str
    file: str  # "-" for stdin
    text_tokens: int
    text_bytes: int


def add_score_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "file", "model", "heads", "allow_special", "json")
    parser.add_argument(
        "--stride",
        metavar="N",
        type=options.whole_number,
        help="tokens from window to window; fewer take longer, with more context "
        "(default: half the context)",
    )
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="also list each token with its surprisal and the likeliest other tokens",
    )


def run_score(args: argparse.Namespace) -> None:
    """Measure how well a model predicts a text.

    Print the loss per token, perplexity and bits per byte, by the sliding-window recipe of Hugging
    Face's documentation. Windows as long as the context start every --stride tokens. Each window
    predicts the tokens that no earlier window contains. The first token of the text is not
    predicted. If the stride is the whole context, the first token of each window is not predicted
    either.

    With --tokens: the surprisal of a token is -log2 of its probability, in bits. On a terminal,
    less than 1 bit is green, 5 bits or more are yellow, 10 or more are red.

    examples:
      tiedgpt score story.txt
      tiedgpt score --model gpt2 --stride 1024 --json story.txt
      tiedgpt score --tokens --head both poem.txt
      cat story.txt | tiedgpt score
    """
    text = read_text(args.file)
    source = source_name(args.file)
    opened = inputs.open_model(args.model)
    config, tokenizer = opened.config, opened.tokenizer

    # The input is checked before the weights are read, which takes longer.
    stride = stride_or_default(args.stride, config)
    try:
        ids = check_text_ids(encode_text(tokenizer, text, args.allow_special), config)
    except TiedGPTError as error:
        raise ArgumentError(f"{source}: {error}") from error

    loaded = inputs.load_heads(opened, args.head)
    alternatives = ALTERNATIVES if args.tokens else None
    with ProgressBar("scoring", len(loaded) * ids.size, "token") as progress:
        reports = [
            score_report(model, tokenizer, ids, stride, alternatives, progress.add)
            for model in loaded
        ]
    question: Question = {
        "model": opened.name,
        "file": args.file or "-",
        "text_tokens": ids.size,
        "text_bytes": len(text.encode()),
    }
    if args.json:
        print_json_by_head(question, reports)
        return
    if args.tokens:
        # A line for each token of the text, also for those that are not predicted.
        for report in reports:
            if len(reports) > 1:
                print(f"--- {report['head']} ---")
            by_place = {prediction["place"]: prediction for prediction in report["predictions"]}
            rows = [(token, by_place.get(place)) for place, token in enumerate(ids.tolist())]
            print_predictions(tokenizer, "bits", rows)
            print()
    head = reports[0]["head"] if len(reports) == 1 else "both heads"
    print(one_line(f"{opened.name}, {head}, on {source}"), end="\n\n")
    print_scores(question, reports)


def print_scores(question: Question, reports: list[ScoreReport]) -> None:
    """Print a table with a column for each head, and a paragraph that says what was measured."""
    labels = {
        "nll": "loss, nats per token",
        "perplexity": "perplexity",
        "bits_per_byte": "bits per byte",
    }
    if len(reports) > 1:
        labels = {"head": "", **labels}
    print_table(rows_of_fields(labels, reports))

    first = reports[0]  # both heads predict the same tokens
    paragraph = (
        f"The model predicted {first['tokens']:,} of {question['text_tokens']:,} tokens "
        f"({first['bytes']:,} of {question['text_bytes']:,} bytes), in windows of up to "
        f"{first['context']:,} tokens, one every {first['stride']:,}. "
        "Compare perplexity between models that share a tokenizer, and bits per byte "
        "between any models, on the same text."
    )
    print()
    print(fill(paragraph))


def add_documents_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", metavar="IN", nargs="+", help=".jsonl or .jsonl.gz files")
    parser.add_argument(
        "--out", metavar="DIR", required=True, help="a new directory, or one to go on with"
    )
    options.add(parser, "model", "head")
    parser.add_argument(
        "--stride",
        metavar="N",
        type=options.whole_number,
        help="tokens from window to window, as for `tiedgpt score`",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="a Dask scheduler, tcp://HOST:PORT, whose workers see DIR and the model under the "
        "same paths (default: a process for each core of this machine)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="after all lines, exit with 1 if one has an error"
    )


def run_documents(args: argparse.Namespace) -> None:
    """Score many texts: JSON lines in, a directory of JSON lines out.

    A line is a JSON object with a "text", and an "id" if it has one. DIR gets a row for each line:
    the id, or the file and the byte offset of the line, with the text's loss ("nll", in nats per
    token), or with an "error". With --strict, the exit code is 1 if there is such a row. Needs
    Dask: pip install 'tiedgpt[dask]'. After an interruption, the same command goes on.

    examples:
      tiedgpt documents in.jsonl --out scores
      tiedgpt documents *.jsonl.gz --out scores --scheduler tcp://10.0.0.1:8786
    """
    if not find_spec("distributed"):
        raise ArgumentError("this command needs Dask: pip install 'tiedgpt[dask]'")
    from .. import documents  # here, because `score` needs none of it

    opened = inputs.open_model(args.model)
    stride = stride_or_default(args.stride, opened.config)  # raises before the input is read
    sources = [documents.read_input(file) for file in args.inputs]
    model = inputs.load(opened, args.head)
    settings = documents.settings_of(sources, model, opened.tokenizer, stride)

    out = Path(args.out)
    documents.begin(out, settings)
    size = sum(source.size for source in sources)
    try:
        with ProgressBar("scoring", size, unit="B") as bar:
            model_path, scheduler = opened.path, args.scheduler
            documents.score_inputs(sources, out, model_path, settings, scheduler, bar.add)
    except BaseException:  # Ctrl-C, too
        note(f"the parts in {out} are complete; the same command goes on")
        raise
    rows, errors = documents.count_rows(out)
    note(f"{rows:,} rows in {out}, {errors:,} with an error")
    if args.strict and errors > 0:
        raise SystemExit(1)
