"""Where reference data is: the folder `shared` beside the checkout, and GPT-2's vocabulary."""

from contextlib import suppress
from pathlib import Path

from support.models import find_here
from tiedgpt.errors import CheckpointError

SHARED = Path(__file__).resolve().parents[3] / "shared"

# GPT-2's vocabulary, as OpenAI published it. Elsewhere it comes with a gpt2 that tiedgpt finds.
GPT2_MERGES = SHARED / "gpt2" / "124M" / "vocab.bpe"
GPT2_VOCAB = SHARED / "gpt2" / "124M" / "encoder.json"
if not GPT2_MERGES.is_file():
    with suppress(CheckpointError):
        gpt2 = find_here("gpt2")
        GPT2_MERGES = gpt2 / "merges.txt"
        GPT2_VOCAB = gpt2 / "vocab.json"
