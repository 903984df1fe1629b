"""The output: one file, and a directory of its parts until all of them are there.

OUT.parts/
    .lock               locked by a run that does all parts
    .input-0            a copy of an input that can be read once
    plan.json           the settings, which determine the output, with the input's SHA-256
    000000-TAG.jsonl    the part of shard 0: a row for each line. TAG is a hash of the settings
    joined              all parts. OUT becomes a second name of this file, then the directory
                        is removed
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..checkpoints.publishing import StagedFiles, link_new
from ..checkpoints.reading import read_json
from ..errors import ArgumentError, TiedGPTError
from .inputs import hash_lines, open_input
from .rows import Row, Settings, first_difference
from .shards import PLAN, Shard, read_all, write_rows

COPY = ".input-"  # the name of a copy of an input begins with this
JOINED = "joined"


class Output:
    """OUT, and the directory of its parts. `note` is called with each message for the user."""

    def __init__(self, out: str, note: Callable[[str], Any]) -> None:
        self.path = Path(os.path.abspath(out))  # a worker may run in another directory
        self.note = note
        self.directory = self.path.with_name(f"{self.path.name}.parts")
        # Where the directory is moved before it is removed. Any process may remove it.
        self.done = self.path.with_name(f".{self.directory.name}.done")

    def plan(
        self, files: list[str], settings: Settings, resume: bool
    ) -> tuple[Settings, list[Shard]]:
        """Read all input; begin a run, or find the plan of the run that has begun.

        Returns the settings with the input's SHA-256, which plan.json has, and the shards. Raises
        ArgumentError if OUT exists, if there is a plan and `resume` is False, or another plan.
        """
        self._finish_removal()
        if os.path.lexists(self.path):
            raise ArgumentError(
                f"{self.path} exists and is not replaced; choose another --out (- is stdout)"
            )
        has_begun = self._has_begun(resume)

        with StagedFiles(self.directory) as staged:
            sources = self._sources(files, staged, has_begun)
            if has_begun:
                copies = self.directory
            else:
                copies = staged.new  # the copies are moved from there at the end of this block
            shards = [shard for shard, _ in read_all(sources, settings["shard_size"], copies)]
            hashes = [shard.sha256.encode() for shard in shards]
            settings = settings | {"input_sha256": hash_lines(hashes)}
            self._write_or_compare_plan(settings, staged)
        return settings, with_part_names(shards, settings)

    def _write_or_compare_plan(self, settings: Settings, staged: StagedFiles) -> None:
        """Write plan.json. If it is there, raise ArgumentError if it has other settings."""
        plan = self.directory / PLAN
        if not plan.exists():
            staged.open(PLAN).write(json.dumps(settings).encode())
            return
        difference = first_difference(read_json(plan), settings)
        if difference is not None:
            raise ArgumentError(
                f"{self.directory} was begun with another {difference}; give the same, or "
                "remove the directory"
            )

    def _finish_removal(self) -> None:
        """Remove the parts of a run that is complete, but was killed before it had removed them."""
        shutil.rmtree(self.done, ignore_errors=True)
        joined = self.directory / JOINED
        if joined.exists() and self.path.exists() and joined.samefile(self.path):
            self._remove_parts()

    def _has_begun(self, resume: bool) -> bool:
        """Whether there is a run to continue. Raises ArgumentError if it may not be continued."""
        # The lock and the copies of inputs, whose names begin with a point, are not a run yet.
        names = [path.name for path in self.directory.glob("[!.]*")]
        # The plan is looked for last. If another process begins a run between the two looks, the
        # other order would find its files and no plan.
        has_begun = (self.directory / PLAN).exists()
        if names and not has_begun:
            raise ArgumentError(
                f"{self.directory} holds {names[0]}, but no run; to begin a new one, remove it"
            )
        if names and not resume:
            raise ArgumentError(
                f"{self.directory} holds a run, which --resume continues; to begin a new one, "
                "remove it"
            )
        return has_begun

    def _sources(self, files: list[str], staged: StagedFiles, has_begun: bool) -> list[str]:
        """The files to read: a copy in place of each that can be read once, such as a pipe.

        Copies are named relative to the directory of the parts. They are made in `staged`; a run
        that has begun has them already.
        """
        sources = []
        for number, file in enumerate(files):
            if file != "-" and os.path.isfile(file):
                sources.append(file)
                continue
            copy = f"{COPY}{number}"
            if has_begun:
                self.note(f"{file} is read from its first copy in {self.directory}")
            else:
                self.note(f"{file} is read from its copy in {self.directory}")
                self._copy(file, staged.open(copy))
            sources.append(copy)
        return sources

    def _copy(self, file: str, copy: BinaryIO) -> None:
        """Copy a file that can be read once.

        Raises TiedGPTError for one that takes half of the free disk; it may have no end.
        """
        max_bytes = shutil.disk_usage(copy.name).free // 2
        with open_input(file) as source:
            while block := source.read1():
                copy.write(block)
                if copy.tell() > max_bytes:
                    raise TiedGPTError(
                        f"{file} takes more than half of the free disk at {self.directory}"
                    )
        copy.flush()

    def missing(self, shards: list[Shard]) -> list[Shard]:
        """The shards that have no part yet."""
        return [shard for shard in shards if not (self.directory / shard.part).exists()]

    def finish(self, shards: list[Shard]) -> tuple[int, int]:
        """Join all parts to OUT; count the rows, and those with an error.

        Raises TiedGPTError for a damaged part, and if OUT is there by now.
        """
        with StagedFiles(self.directory) as staged:
            counts = write_rows(self._rows(shards), staged.open(JOINED))
        try:
            link_new(self.directory / JOINED, self.path)
        except FileExistsError as error:
            raise TiedGPTError(f"{self.path} exists now; move it away") from error
        self._remove_parts()
        return counts

    def _rows(self, shards: list[Shard]) -> Iterator[Row]:
        """The rows of all parts. Raises TiedGPTError for a part with too few or too many."""
        for shard in shards:
            complete_rows = 0  # a part that was cut may end within a row
            with open(self.directory / shard.part, "rb") as part:
                for line in part:  # one at a time: a part may be much larger than its shard
                    yield Row.read(line)
                    if line.endswith(b"\n"):
                        complete_rows += 1
            if complete_rows != shard.lines:
                raise TiedGPTError(
                    f"{part.name} has {complete_rows} rows, not {shard.lines}: remove it and resume"
                )

    def _remove_parts(self) -> None:
        """Remove the directory in one step, so that half of it is never taken for a run."""
        with suppress(FileNotFoundError):  # another process was faster
            os.rename(self.directory, self.done)
        shutil.rmtree(self.done, ignore_errors=True)


def with_part_names(shards: list[Shard], settings: Settings) -> list[Shard]:
    """The shards, each with the name of its part.

    The names depend on the settings: two runs may begin in a directory at the same moment, and the
    parts of each need names of their own.
    """
    settings_hash = hash_lines([json.dumps(settings, sort_keys=True).encode()])
    tag = settings_hash[:16]  # enough digits to tell two runs apart, in a name that can be read
    named_shards = []
    for number, shard in enumerate(shards):
        named_shards.append(shard._replace(part=f"{number:06}-{tag}.jsonl"))
    return named_shards
