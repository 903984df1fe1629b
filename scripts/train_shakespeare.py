"""Train the two models in weights/: one tied, one untied, on the same batches of Shakespeare.

    python scripts/train_shakespeare.py tinyshakespeare.txt retrained/

Writes shakespeare-tied/ and shakespeare-untied/, which must be new, to the directory, in about ten
minutes each on two cores. Both have the same seed, the same batches and the same tokenizer, which
is learned from the first nine tenths of the text. The last tenth is held out.
"""

import signal

from tiedgpt.__main__ import on_ctrl_c

if __name__ == "__main__":
    # Ctrl-C ends the process at once: while the rest is imported, there is nothing to clean up.
    on_ctrl_c(signal.SIG_DFL)

import argparse
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

import tiedgpt
from tiedgpt.atomic import check_new
from tiedgpt.cli.inputs import read_text
from tiedgpt.evaluation import score
from tiedgpt.gpt2.config import HEADS
from tiedgpt.study.corpus import Corpus
from tiedgpt.training.loop import Trainer
from tiedgpt.training.merges import learn_tokenizer
from tiedgpt.training.start import Settings, split

VOCABULARY = 1024  # tokens
DROPOUT = 0.2  # of the embedding and of each layer's outputs
SETTINGS = Settings(steps=4500, batch=32, context=128, lr=3e-3, eval_every=250, seed=1, threads=2)


def train(corpus: str, weights: Path) -> None:
    """Train both models and write them. Raises CheckpointError if they are there already."""
    for head in HEADS:
        check_new(weights / f"shakespeare-{head}")
    text = read_text(corpus)
    learnt_from, held_out_text = split(text)
    tokenizer = learn_tokenizer(learnt_from, VOCABULARY)
    tokens = np.array(tokenizer.encode(learnt_from))
    held_out = np.array(tokenizer.encode(held_out_text))
    for head in HEADS:
        best = train_one(head, tokenizer, tokens, held_out)
        tiedgpt.save_model(best, tokenizer, weights / f"shakespeare-{head}")
        result = score(best, tokenizer, held_out)
        print(
            f"{head}: {result.nll:.4f} nats per token, {result.bits_per_byte:.3f} bits per byte "
            "held out"
        )
    # `tiedgpt study` compares the models with the bigrams of the text that they have seen.
    Corpus.of(tokens, tokenizer.vocab_size).write(weights / "shakespeare-bigrams.npz")


def train_one(
    head: str, tokenizer: tiedgpt.Tokenizer, tokens: np.ndarray, held_out: np.ndarray
) -> tiedgpt.GPT2:
    """Train a model, and return it as it was when its loss on the held-out text was lowest."""
    config = tiedgpt.Config(
        vocab_size=tokenizer.vocab_size,
        n_ctx=SETTINGS.context,
        n_embd=128,
        n_layer=4,
        n_head=4,
        tied=head == "tied",
        embd_pdrop=DROPOUT,
        resid_pdrop=DROPOUT,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eot_id,
        eos_token_id=tokenizer.eot_id,
    )
    trainer = Trainer(tiedgpt.GPT2.random(config, SETTINGS.seed), tokens, held_out, SETTINGS)
    with tqdm(total=SETTINGS.steps, desc=head) as bar:
        for record in trainer.run():
            bar.update(record["step"] - bar.n)  # bar.n: the step of the record before this one
            if "val_loss" in record:
                loss = f"{record['val_loss']:.4f} nats per held-out token"
                bar.write(f"{head} step {record['step']}: {loss}")
    return trainer.best_model()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("corpus", help="a text in UTF-8")
    parser.add_argument("weights", type=Path, help="the directory to write to")
    try:
        on_ctrl_c(signal.default_int_handler)  # from here on, Ctrl-C raises KeyboardInterrupt
        args = parser.parse_args()
        train(args.corpus, args.weights)
    except KeyboardInterrupt:
        print("\ntrain_shakespeare.py: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        print_error(f"{error.filename}: {error.strerror}")
        return 2
    except tiedgpt.TiedGPTError as error:
        print_error(str(error))
        return 2
    return 0


def print_error(message: str) -> None:
    print(f"train_shakespeare.py: error: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
