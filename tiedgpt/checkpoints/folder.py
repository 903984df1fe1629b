"""The small files beside a model's weights, each of which is read once."""

from pathlib import Path
from typing import Any

from .json_files import MAX_TEXT, open_to_read, parse_json

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"


class Folder:
    """The folder of a model: config.json, the tokenizer's files. Their contents are kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.contents: dict[str, bytes] = {}
        self.objects: dict[str, dict[str, Any]] = {}

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        """The content of a file. Raises CheckpointError for one that is missing or too large."""
        if name not in self.contents:
            with open_to_read(self.path / name, limit=MAX_TEXT) as file:
                self.contents[name] = file.read()
        return self.contents[name]

    def json(self, name: str) -> dict[str, Any]:
        """The object of a JSON file; it is not to be changed. Raises CheckpointError."""
        if name not in self.objects:
            self.objects[name] = parse_json(self.read(name), f"{self.path / name}")
        return self.objects[name]

    def json_if_there(self, name: str) -> dict[str, Any]:
        """The object of a JSON file; {} without the file. Raises CheckpointError."""
        return self.json(name) if self.has(name) else {}


def folder_of(model: Path) -> Folder:
    """The folder of a model, which is a directory or a file."""
    return Folder(model if model.is_dir() else model.parent)
