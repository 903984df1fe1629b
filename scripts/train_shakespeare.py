"""Train the small models in weights/: one tied, one untied, on the same bytes of Shakespeare.

    pip install torch==2.13.0 && pip install -e '.[parity]'
    python scripts/train_shakespeare.py ../shared/corpus/tinyshakespeare.txt weights/

Writes shakespeare-tied/ and shakespeare-untied/ there: 4 layers, 4 heads, d 128, context 128, one token a
byte, the last tenth of the text held out. About ten minutes each on two cores, in torch; both have the
same seed and see the same batches.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

import tiedgpt
from tiedgpt.checkpoints.huggingface import PREFIX

SEED, STEPS, WARM_UP, BATCH, CONTEXT, LR = 1, 2500, 100, 32, 128, 3e-3


def batches(data: np.ndarray, seed: int) -> Any:
    """BATCH random stretches of CONTEXT tokens, for ever."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(data) - CONTEXT, BATCH)
        yield torch.from_numpy(data[starts[:, None] + np.arange(CONTEXT)])


def mean_loss(model: Any, data: np.ndarray) -> float:
    """nats per token over consecutive stretches of CONTEXT tokens."""
    stretches = data[: len(data) // CONTEXT * CONTEXT].reshape(-1, CONTEXT)
    model.eval()
    with torch.inference_mode():
        losses = [
            model(input_ids=part, labels=part).loss.item() * len(part)
            for part in torch.from_numpy(stretches).split(64)
        ]
    model.train()
    return sum(losses) / len(stretches)


def learning_rate(step: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth."""
    if step < WARM_UP:
        return LR * (step + 1) / WARM_UP
    progress = (step - WARM_UP) / (STEPS - WARM_UP)
    return LR * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def train(head: str, config: tiedgpt.Config, training: np.ndarray, validation: np.ndarray) -> Any:
    """A transformers GPT-2 after STEPS steps of AdamW, and its validation loss in nats per token."""
    torch.manual_seed(SEED)
    dropout = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.0}
    settings = {**config.with_head(head).to_json(), **dropout}
    model = GPT2LMHeadModel(GPT2Config(**settings)).train()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), fused=True)
    bar = tqdm(range(STEPS), head)
    for step, batch in zip(bar, batches(training, SEED), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 500 == 499:
            bar.write(f"{head} step {step + 1}: validation {mean_loss(model, validation):.4f} nats per byte")
    return model, mean_loss(model, validation)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--heads", nargs="+", default=["tied", "untied"], choices=["tied", "untied"])
    args = parser.parse_args()

    tokenizer = tiedgpt.Tokenizer([])
    ids = np.array(tokenizer.encode(args.corpus.read_text(encoding="utf-8")))
    cut = len(ids) * 9 // 10
    config = tiedgpt.Config(
        vocab_size=tokenizer.vocab_size,
        n_ctx=CONTEXT,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=tokenizer.eot_id,
        eos_token_id=tokenizer.eot_id,
    )
    for head in args.heads:
        trained, loss = train(head, config, ids[:cut], ids[cut:])
        named = {name.removeprefix(PREFIX): p.detach().numpy() for name, p in trained.named_parameters()}
        model = tiedgpt.GPT2(config.with_head(head), named)
        tiedgpt.save_model(model, tokenizer, args.weights / f"shakespeare-{head}")
        print(f"{head}: {loss:.4f} nats, {loss / math.log(2):.3f} bits per byte of the held-out text")


if __name__ == "__main__":
    main()
