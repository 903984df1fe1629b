"""Read OpenAI's original GPT-2 files, which are in TensorFlow's format. All are tied.

    hparams.json                     {"n_vocab": 50257, "n_ctx": 1024, "n_embd": 768, ...}
    model.ckpt.index                 each tensor's name, and the position of its values
    model.ckpt.data-00000-of-00001   the values of every tensor: float32, row-major, little-endian

tensorflow_index.py reads the index. Every flipped bit of the last two files is detected.
"""

from dataclasses import replace
from pathlib import Path

from ..errors import CheckpointError, ConfigError
from ..gpt2.config import Config
from ..gpt2.parameters import parameter_shapes
from .checkpoint import Checkpoint, check_tensor_shapes
from .reading import read_json
from .safetensors import Tensor
from .tensor_names import to_tensorflow
from .tensorflow_index import read_index

HPARAMS = "hparams.json"
INDEX = "model.ckpt.index"
DATA = "model.ckpt.data-00000-of-00001"
HEAD_WIDTH = 64  # n_embd / n_head, in all of OpenAI's models


def open_directory(directory: Path) -> Checkpoint:
    """Check a directory with the three files above; others in it are ignored.

    Raises CheckpointError.
    """
    config = read_hparams(directory)
    our_names = {to_tensorflow(name): name for name in parameter_shapes(config)}
    tensors: dict[str, Tensor] = {}
    for name, tensor in read_index(directory / INDEX, directory / DATA).items():
        shape = tensor.shape
        if len(shape) == 3 and shape[0] == 1:
            # A block's matrix is stored as the kernel of a convolution of width 1: [1, in, out].
            shape = shape[1:]
        our_name = our_names.get(name, name)  # an unknown name is refused below
        tensors[our_name] = replace(tensor, shape=shape)
    check_tensor_shapes(tensors, config, listing=directory / INDEX, describing=HPARAMS)
    return Checkpoint(directory, config, tensors)


def read_hparams(directory: Path) -> Config:
    """The Config of hparams.json. Raises a CheckpointError that names the file."""
    path = directory / HPARAMS
    hparams = read_json(path)
    try:
        config = Config(
            vocab_size=hparams["n_vocab"],
            n_ctx=hparams["n_ctx"],
            n_embd=hparams["n_embd"],
            n_head=hparams["n_head"],
            n_layer=hparams["n_layer"],
        )
    except KeyError as error:
        raise CheckpointError(f"{path}: {error.args[0]} is missing") from error
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error

    # The file has no checksum: a damaged n_head would load another model.
    if config.head_width != HEAD_WIDTH:
        raise CheckpointError(
            f"{path}: n_embd {config.n_embd} with n_head {config.n_head} makes heads of width "
            f"{config.head_width}, expected {HEAD_WIDTH} as in all of OpenAI's models: fetch the "
            "file again"
        )
    last_id = config.vocab_size - 1  # <|endoftext|> is the last token of OpenAI's vocabulary
    return replace(config, bos_token_id=last_id, eos_token_id=last_id)
