"""The models that have a name: OpenAI's four, distilgpt2, and the small ones that tiedgpt ships.

A hash or size here is compared with every download (verification.py).
"""

from dataclasses import dataclass

from ..gpt2.config import Config
from .verification import Version


@dataclass(frozen=True)
class KnownModel:
    """A published model."""

    alias: str  # another name: how many parameters it has, as its authors counted them
    repository: str  # on the Hugging Face hub
    config: Config
    commit: str  # the one of the repository that is downloaded
    weights: Version  # model.safetensors of that commit; without a size, the server's is used


MODELS = {
    "gpt2": KnownModel(
        alias="124M",
        repository="openai-community/gpt2",
        config=Config(),
        commit="607a30d783dfa663caf39e06633721c8d4cfcd7e",
        weights=Version(
            548_105_171, "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707"
        ),
    ),
    "gpt2-medium": KnownModel(
        alias="355M",
        repository="openai-community/gpt2-medium",
        config=Config(n_embd=1024, n_layer=24, n_head=16),
        commit="6dcaa7a952f72f9298047fd5137cd6e4f05f41da",
        weights=Version(
            1_519_984_962, "fc5a354a19255ad494f3d71549390baca1ccf61d1d822b9408971705c687c9cd"
        ),
    ),
    "gpt2-large": KnownModel(
        alias="774M",
        repository="openai-community/gpt2-large",
        config=Config(n_embd=1280, n_layer=36, n_head=20),
        commit="32b71b12589c2f8d625668d2335a01cac3249519",
        weights=Version(None, "5f47f3e12f91cd33b662ce7e433b6150ad5512b5884a2cee961b50e9c3bbebce"),
    ),
    "gpt2-xl": KnownModel(
        alias="1558M",
        repository="openai-community/gpt2-xl",
        config=Config(n_embd=1600, n_layer=48, n_head=25),
        commit="15ea56dee5df4983c59b2538573817e1667135e2",
        weights=Version(None, "0f8b28eb05a8075f48b61b6f35332978c74fc7763fa9fb4051a1c30511736a6a"),
    ),
    "distilgpt2": KnownModel(
        alias="82M",
        repository="distilbert/distilgpt2",
        config=Config(n_layer=6),
        commit="2290a62682d06624634c1f46a6ad5be0f47f38aa",
        weights=Version(
            352_824_413, "e1ff18884359fe8beb795a5f414feb85a6ce3d929ad019c0d958c039d2b94a1b"
        ),
    ),
}
ALIASES = {model.alias: name for name, model in MODELS.items()}
SHIPPED = ("shakespeare-tied", "shakespeare-untied")

# The vocabulary, which is the same in all of MODELS.
VOCAB = Version(1_042_301, "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783")
MERGES = Version(456_318, "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5")

# OpenAI's own files, in TensorFlow's format. The hashes of its larger models are not known here;
# their model.ckpt.index has a checksum of each tensor.
RELEASED_BY_OPENAI = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
OPENAI_124M = {
    "hparams.json": Version(90, "d9d56e4121c427164e0c55c6f03c08e1daf9002b9b672825112d19097b680318"),
    "model.ckpt.index": Version(
        5215, "71916f763f9746f9b2a06b12d91996cf1084ae008d0424543d39391c5f2dc687"
    ),
    "model.ckpt.data-00000-of-00001": Version(
        497_759_232, "2060c885360cc0cf41d7a6dbc4d24b5127aae20260c8b5ae521b5a6578407118"
    ),
}


def known_config(name: str) -> Config | None:
    """The configuration of a known name or alias, without any file; None for another name."""
    model = MODELS.get(ALIASES.get(name, name))
    return model.config if model else None
