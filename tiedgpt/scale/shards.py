"""A shard is some whole lines of an input file. Its rows are one part of the output.

A part is written once, or again with the same bytes, by any process. So processes can be killed and
started again at any time.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..checkpoints.publishing import StagedFiles
from ..checkpoints.reading import read_json
from ..errors import TiedGPTError
from ..gpt2.run import OnProgress
from .inputs import hash_lines, read_shards
from .rows import Row, Settings, make_rows

PLAN = "plan.json"  # the settings of the run to which a directory of parts belongs


class Shard(NamedTuple):
    """Whole lines of an input file."""

    part: str  # the name of the file with their rows
    file: str  # a path, from the directory of the parts if it is a copy
    offset: int  # in bytes, after decompression
    line: int  # the number of the first one, counted from 1 through all input files
    lines: int
    sha256: str


def read_all(
    files: list[str], size: int, copies: Path | str = ""
) -> Iterator[tuple[Shard, list[bytes]]]:
    """The shards of all files, and their lines.

    copies: the directory of the files that are relative paths. `part` is "" in each shard: the name
    of a part depends on all shards (see Output.plan).
    """
    number = 1
    for file in files:
        for offset, lines in read_shards(os.path.join(copies, file), size):
            shard = Shard(
                part="",
                file=file,
                offset=offset,
                line=number,
                lines=len(lines),
                sha256=hash_lines(lines),
            )
            yield shard, lines
            number += len(lines)


def rows_of_files(files: list[str], settings: Settings) -> Iterator[Row]:
    """The row of each line of all files, one after another."""
    for shard, lines in read_all(files, settings["shard_size"]):
        yield from make_rows(settings, lines, shard.line)


def do_shard(
    directory: Path, settings: Settings, shard: Shard, progress: OnProgress = None
) -> None:
    """Write the part of a shard, unless it is there, in this process or in a worker.

    Raises TiedGPTError if the directory is that of another run now (a worker may live on after its
    run was removed), and if the lines are not those that were planned.
    """
    with StagedFiles(directory) as staged:
        # The plan is read after staging: files that were staged in a removed directory are lost.
        if read_json(directory / PLAN) != settings:
            raise TiedGPTError(f"{directory} has the plan of another run now")
        if (directory / shard.part).exists():
            return
        lines = read_shard(directory, shard, settings["shard_size"])
        if hash_lines(lines) != shard.sha256:
            raise TiedGPTError(f"{shard.file} has changed since the run began; remove {directory}")
        rows = make_rows(settings, lines, shard.line)
        write_rows(rows, staged.open(shard.part), progress)


def read_shard(directory: Path, shard: Shard, size: int) -> list[bytes]:
    """The lines of a shard as they are now; [] if the file ends before it.

    size: the shard size of the plan, so that the shard ends where it did when it was planned.
    """
    for _, lines in read_shards(directory / shard.file, size, shard.offset):
        return lines  # the first shard from this offset on
    return []


def write_rows(
    rows: Iterable[Row], target: BinaryIO, progress: OnProgress = None
) -> tuple[int, int]:
    """Write rows; count them, and those with an error. progress(1) is called for each."""
    total = 0
    errors = 0
    for row in rows:
        target.write(row.line)
        total += 1
        if row.failed:
            errors += 1
        if progress is not None:
            progress(1)
    return total, errors
