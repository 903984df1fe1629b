"""Lock a file, so that one process at a time does what the file stands for.

The operating system holds the lock and releases it when the process ends, even if it is killed.
`publishing.lock_directory` locks a directory in this way.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

LOCK = ".lock"  # a file that a process keeps locked while it uses the directory
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
ID_BYTES = 20  # of the process id in the file; spaces after it overwrite a longer one
Waiting = Callable[[], Any] | None  # called once, when another process has the lock


@contextmanager
def locked_file(
    path: Path, waiting: Waiting = None, lock_is_optional: bool = True
) -> Iterator[None]:
    """Make and lock a file that holds this process's id; remove it at the end.

    waiting: is called if another process has the lock, which is then waited for. If it is None,
        CheckpointError is raised.
    lock_is_optional: whether to go on without a lock where the file system has none.
    """
    lock = _open_and_lock(path, waiting, lock_is_optional)
    try:
        with suppress(OSError):  # a full disk: the id is only for another process's message
            os.write(lock, str(os.getpid()).ljust(ID_BYTES).encode())
        yield
    finally:
        with suppress(OSError):  # on Windows, an open file cannot be removed: it stays
            os.unlink(path)
        os.close(lock)


def _open_and_lock(path: Path, waiting: Waiting, lock_is_optional: bool) -> int:
    """Open and lock the file, for `locked_file`, whose arguments these are.

    Returns its descriptor, at position 0.
    """
    is_waiting = False
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o666)
        is_locked = try_lock(lock, lock_is_optional)
        links = os.fstat(lock).st_nlink  # the number of names that the file has
        os.lseek(lock, 0, os.SEEK_SET)  # on Windows, try_lock moves the position
        if is_locked and links == 1:
            return lock
        # The process that has the lock wrote its id into the file, unless it got the lock just now.
        owner = os.read(lock, ID_BYTES).decode(errors="replace").strip()
        os.close(lock)

        if links > 1:  # the id would be written into the other file
            raise CheckpointError(f"{path} is a link to another file; remove it")
        if links == 0:  # the process that had the lock removed the file just now
            continue
        if waiting is None:
            process = f"process {owner}" if owner.isdecimal() else "another process"
            raise CheckpointError(
                f"{path.parent} is in use by {process}; wait, or choose another directory"
            )
        if not is_waiting:
            is_waiting = True
            waiting()
        time.sleep(0.01)


def try_lock(descriptor: int, lock_is_optional: bool = True) -> bool:
    """Lock an open file; False if another process has locked it.

    Where the file system has no locks, `lock_is_optional` is returned.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            # Windows locks bytes, and nobody else can read them. A byte far after the content is
            # locked, so that other processes can read the content.
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return lock_is_optional
    return True
