"""A model's tensors in the names and the layout of any row of checkpoints/names.py."""

from collections import defaultdict

import numpy as np

from tiedgpt import GPT2
from tiedgpt.checkpoints.names import Layout, with_N


def in_layout(model: GPT2, layout: Layout) -> dict[str, np.ndarray]:
    """The parameters as the program of this layout stores them."""
    # The name of a tensor that has all layers -> the arrays of the layers
    layers: dict[str, list[np.ndarray]] = defaultdict(list)
    tensors = {}
    for ours, array in model.parameters.items():
        kind, number = with_N(ours)
        for name, part in layout.parts.items():
            if part.ours != kind:
                continue
            # The tensor is one of part.of equal parts of ours: q, k and v, for example.
            tensor = np.split(array, part.of, axis=-1)[part.place]
            tensor = np.ascontiguousarray(in_form(tensor, part.form, model.config.n_head))
            if number and "N" not in name:
                layers[name].append(tensor)
            elif number:
                tensors[name.replace("N", number)] = tensor
            else:  # it is in no layer
                tensors[name] = tensor
    return tensors | {name: np.stack(arrays) for name, arrays in layers.items()}


def in_form(tensor: np.ndarray, form: str, n_head: int) -> np.ndarray:
    """A tensor of ours in a form of the table: as it is, transposed, or by head."""
    if form == "T":
        return tensor.T
    if form == "H":
        by_head = tensor.reshape(*tensor.shape[:-1], n_head, -1)  # [D, H, K], or [H, K]
        return np.moveaxis(by_head, -2, 0)
    if form == "HK":
        return tensor.reshape(n_head, -1, tensor.shape[-1])
    return tensor
