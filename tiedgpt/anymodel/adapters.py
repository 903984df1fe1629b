"""What an adapter beside a model holds of its two matrices: a copy, or what is added to one."""

from ..checkpoints.beside import ADAPTER_WEIGHTS
from ..checkpoints.files import read_weights
from ..checkpoints.opened import Opened
from ..checkpoints.refused import ADAPTER
from ..errors import CheckpointError
from .headers import AnyModel
from .matrices import EMBEDDINGS, HEADS, IN_A_LAYER


def changed_matrices(model: AnyModel) -> list[str]:
    """ "embedding" and "head", if the adapter beside a model here changes them.

    An adapter on the hub is not asked for.
    """
    if not isinstance(model, Opened) or not model.folder.has(ADAPTER):
        return []
    names: list[str] = []
    for file in ADAPTER_WEIGHTS:
        if model.folder.has(file):
            try:
                names += read_weights(model.folder.path / file).tensors
            except CheckpointError:  # describe_adapter says that it cannot be read
                return []
    changed = []
    for matrix, ends in (("embedding", EMBEDDINGS), ("head", HEADS)):
        parts = {part for name in names if not IN_A_LAYER.search(name) for part in name.split(".")}
        if parts & set(ends):
            changed.append(matrix)
    return changed


def adapter_conflict(changed: list[str], tied: bool | None) -> str:
    """What is wrong if an adapter changes these matrices of a model with this flag; "" if nothing.

    >>> adapter_conflict(["head"], tied=False)
    ''
    """
    if not changed or not tied:
        return ""
    if len(changed) == 1:
        which = f"the {changed[0]} alone"
    else:
        which = "the embedding and the head, which it holds one by one"
    return (
        f"config.json says tied, and the adapter beside the model changes {which}: after it is "
        "merged, the two may differ, and programs that go by the flag drop one"
    )
