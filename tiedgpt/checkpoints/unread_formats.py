"""Name the formats that are not read, so that an error can say what a file is and what to do.

Nothing here opens more than the first bytes of a file, and no pickle is loaded.
"""

from pathlib import Path

from ..errors import CheckpointError
from .reading import open_to_read

READ_MORE = "README.md, Checkpoints of other programs"
PICKLE = "a pickle, which can run any code, so it is not read"
CONVERT_PICKLE = f"two lines of Python convert it with tiedgpt.from_state_dict ({READ_MORE})"
CONVERT_BACK = f"load the model.safetensors that it was made from ({READ_MORE})"
LLM_C = (20240326).to_bytes(4, "little")  # the first number of a checkpoint of llm.c

# What a file begins with, what it is, and what to do.
BEGINNINGS = [
    (b"GGUF", "is a GGUF file, as llama.cpp has them", CONVERT_BACK),
    (b"\x89HDF", "is an HDF5 file, as Keras has them", CONVERT_BACK),
    (LLM_C, "is a checkpoint of llm.c", f"convert it with llm.c's export_hf.py ({READ_MORE})"),
    (b"PK\x03\x04", f"is a file of PyTorch (ckpt.pt, pytorch_model.bin): {PICKLE}", CONVERT_PICKLE),
    (b"\x80", f"is a file of PyTorch (ckpt.pt, pytorch_model.bin): {PICKLE}", CONVERT_PICKLE),
]
# The same by the end of a name, for files that begin with anything.
ENDINGS = [
    (".npz", "is an archive of NumPy", CONVERT_PICKLE),
    (".onnx", "is an ONNX file", CONVERT_BACK),
    (".keras", "is a file of Keras", CONVERT_BACK),
    (".msgpack", "is a file of Flax", CONVERT_BACK),
    (".ckpt.index", "is one of OpenAI's files", "give its directory"),
    (".ckpt.data-00000-of-00001", "is one of OpenAI's files", "give its directory"),
    (".safetensors.index.json", "is the index of several files", "give its directory"),
]
# Files of weights that a directory may have instead of model.safetensors.
WEIGHTS_OF_OTHERS = [
    "pytorch_model*.bin",
    "*.pt",
    "*.pth",
    "*.gguf",
    "*.h5",
    "*.onnx",
    "onnx/*.onnx",
    "*.msgpack",
    "*.bin",
    "*.npz",
    "*.keras",
]
# What Hugging Face's Trainer writes beside the weights.
NOT_WEIGHTS = ["optimizer.pt", "scheduler.pt", "training_args.bin"]


def describe(path: Path) -> str:
    """What a file is, and what to do, if it is in a known format that is not read; else "".

    For example, "is an ONNX file; load the model.safetensors that it was made from (...)".
    """
    for ending, kind, advice in ENDINGS:
        if path.name.lower().endswith(ending):
            return f"{kind}; {advice}"
    with open_to_read(path) as file:
        beginning = file.read(8)
    for start, kind, advice in BEGINNINGS:
        if beginning.startswith(start):
            return f"{kind}; {advice}"
    return ""


def check_format(path: Path) -> None:
    """Raise CheckpointError for a file that is not a .safetensors file. A directory passes."""
    if not path.is_file() or path.suffix == ".safetensors":
        return
    description = describe(path)
    if description:
        raise CheckpointError(f"{path} {description}")
    raise CheckpointError(
        f"{path} is not a checkpoint: expected a directory or a .safetensors file"
    )


def describe_weights(directory: Path) -> str:
    """The first file of weights in a directory that `describe` knows, and what to do; else ""."""
    for pattern in WEIGHTS_OF_OTHERS:
        for path in sorted(directory.glob(pattern)):
            if path.is_file() and path.name not in NOT_WEIGHTS:
                description = describe(path)
                if description:
                    return f"{path.relative_to(directory)} {description}"
    return ""
