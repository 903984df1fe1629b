"""Train a model, and save it as often as it is evaluated."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import TiedGPTError
from ..gpt2.run import OnProgress
from .loop import Trainer


def train_and_save(
    trainer: Trainer,
    others: Mapping[str, bytes],
    directory: Path,
    should_stop: Callable[[], bool],
    progress: OnProgress = None,
) -> Iterator[dict[str, Any]]:
    """Train to the end; yield the records of Trainer.run.

    `others` are the contents of the files beside the model, such as the tokenizer's, by name.
    The trainer is saved before a record with a "val_loss" is yielded. When `should_stop()` is True
    after a step, the trainer is saved and the training ends. `progress` is called during an
    evaluation, as by Trainer.run.

    Raises TiedGPTError for a loss that is not finite, files that cannot be written and a batch that
    does not fit into memory. The message says which model the directory holds.
    """
    saved = trainer.best  # the evaluation of the model in the directory; None if there is none
    try:
        for record in trainer.run(progress):
            is_last = should_stop()
            if "val_loss" in record or is_last:
                trainer.save(directory, others)
                saved = trainer.best
            yield record
            if is_last:
                return
    except MemoryError as error:
        settings = trainer.settings
        raise TiedGPTError(
            f"not enough memory for a batch of {settings.batch:,} sequences of "
            f"{settings.context:,} tokens; use a smaller --batch"
        ) from error
    except TiedGPTError as error:
        if saved is None:
            raise
        raise TiedGPTError(f"{error}; {directory} holds the model of step {saved.step}") from error
