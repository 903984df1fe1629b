"""One file from a server: whole and verified, or continued where it was cut.

    .model.safetensors.248dfc3911869ec4.part    what has come, named by the remote file's hash or ETag:
                                                what changes over there is never joined to it

Every attempt does the same: it sees how much there is of the part, asks for the rest, makes sure that the
answer is the rest of that very file, and appends it. Whatever ends an attempt, a cut, Ctrl-C or kill -9,
there is nothing to clean up: the next one, in this process or in another, starts from what it finds.
"""

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import CheckpointError, short_repr
from .files import MAX_TEXT

if TYPE_CHECKING:
    import requests  # at run time, like tqdm, only where it is used: most commands never do

TIMEOUT = (10, 30)  # seconds to connect, and between two pieces of an answer
ATTEMPTS = 6  # in a row without a byte more, before it gives up
DELAY = 0.5  # seconds before the next attempt; twice as long after each that brings nothing
MAX_DELAY = 300.0  # seconds, whatever the server asks for
CHUNK = 1 << 15  # bytes; less than one is lost with a connection


@dataclass(frozen=True)
class Version:
    """The content that a file should have."""

    size: int | None = None
    digest: str = ""  # SHA-256, or of 40 digits git's SHA-1 of a blob; "" where nobody knows

    def difference(self, path: Path) -> str:
        """What is wrong with a file; nothing if it is this version."""
        size = path.stat().st_size
        if self.size not in (None, size):
            return f"it has {size} bytes, expected {self.size}"
        if not self.digest:
            return ""
        name, hasher = "SHA-256", hashlib.sha256()
        if len(self.digest) == 40:
            name, hasher = "git's SHA-1", hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        with open(path, "rb") as file, progress_bar("verifying", size) as bar:
            while block := file.read(1 << 20):
                hasher.update(block)
                bar.update(len(block))
        found = hasher.hexdigest()
        return "" if found == self.digest else f"its {name} is {found}, expected {self.digest}"


class Interrupted(Exception):
    """An attempt came to nothing, or not to the end; the next one may."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait  # seconds, if the server asked for them


@dataclass
class Server:
    """Where files come from. `note` is called with what a user may want to know while waiting."""

    base: str  # a file's address without its name
    label: str  # the same, for people
    token: str | None  # "" is nobody's; None: the server knows of no tokens
    note: Callable[[str], Any]
    commit: str = ""  # which revision it is, if the server ever said
    was_reached: bool = False

    def fetch(self, file: str, folder: Path, expected: Version) -> Path | None:
        """A file as a part in `folder`, whole, verified and flushed to the disk; None if there is none."""
        most = failures = 0
        while True:
            try:
                return self._attempt(file, folder, expected)
            except Interrupted as error:
                part = _find_part(file, folder)
                size = part.stat().st_size if part else 0
                failures = 0 if size > most else failures + 1
                most = max(most, size)
                if failures == ATTEMPTS:
                    raise CheckpointError(
                        f"{self.label}/{file}: {error}, {ATTEMPTS} times without a byte more; what has come "
                        "waits for the next try"
                    ) from error
                wait = min(error.wait, MAX_DELAY) or DELAY * 2**failures
                self.note(f"{file}: {error}; trying again in {wait:g} s")
                time.sleep(wait)

    def has(self, file: str) -> bool:
        """Whether there is such a file; it is not fetched."""
        try:
            with self._get(file) as response:
                return response.ok
        except Interrupted:
            return False

    def _attempt(self, file: str, folder: Path, expected: Version) -> Path | None:
        part = _find_part(file, folder)
        # The last byte again: of a part that is whole but not verified, there is nothing else to ask for.
        start = max(part.stat().st_size - 1, 0) if part else 0
        with self._get(file, start) as response:
            if response.status_code == 404:
                return None
            if part and response.status_code == 416:  # there is no such byte any more
                part.unlink()
                raise Interrupted("it changed on the server")
            self._check_status(file, response)
            version, key = self._describe(file, response, expected)
            target = folder / f".{file}.{key}.part"
            if part and part != target:
                part.unlink()
                raise Interrupted("it changed on the server")
            self._receive(file, response, start, target, version.size)
        if wrong := version.difference(target):
            target.unlink()
            raise CheckpointError(
                f"{self.label}/{file}: {wrong}; what came is deleted, the next try starts over"
            )
        flush(target)
        return target

    @contextmanager
    def _get(self, file: str, start: int = 0) -> Iterator["requests.Response"]:
        """The server's answer, whose body, from byte `start` on, is read inside the block, or not at all."""
        import requests

        def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers["Authorization"] = f"Bearer {self.token}"
            return request  # requests takes it off again when it is sent on to another host

        headers = {"User-Agent": "tiedgpt", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        url, auth = f"{self.base}/{file}", authorize if self.token else None
        try:
            with requests.get(url, headers=headers, auth=auth, stream=True, timeout=TIMEOUT) as response:
                self.was_reached = True
                yield response
        except requests.RequestException as error:
            text = str(error)  # which nests the messages of three libraries
            found = re.search(r"(?<=\] )[\w :-]+", text)  # of "[Errno 111] Connection refused"
            reason = "no answer in time" if "timed out" in text else "the connection was cut"
            reason = found[0].strip() if found else reason
            if isinstance(error, requests.exceptions.ProxyError):
                reason += " by the proxy"
            passing = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
            if isinstance(error, requests.exceptions.SSLError) and "CERTIFICATE" in text:
                reason += "; the variable REQUESTS_CA_BUNDLE can name certificates to trust"
            elif not isinstance(error, passing):
                reason = short_repr(text, 200)
            # What was reached before may be back in a moment; a network that was not there will not.
            elif self.was_reached or isinstance(error, requests.ReadTimeout) or "aborted" in text:
                raise Interrupted(reason) from error
            raise CheckpointError(f"{self.label}/{file} cannot be reached: {reason}") from error

    def _is_own(self, response: "requests.Response") -> bool:
        """Whether it is this server that answers, and not one that it sent us on to."""
        there, here = urlsplit(response.url), urlsplit(self.base)
        return (there.hostname, there.port) == (here.hostname, here.port)

    def _check_status(self, file: str, response: "requests.Response") -> None:
        code = response.status_code
        if code in (408, 429) or code >= 500 or (code == 403 and not self._is_own(response)):
            wait = response.headers.get("Retry-After", "")
            raise Interrupted(
                f"the server answers {code}", float(wait) if re.fullmatch(r"[0-9]{1,9}", wait) else 0.0
            )
        if code in (401, 403) and self.token is not None:
            raise CheckpointError(
                f"{self.label}/{file}: no access ({code}): no such repository, or a private or gated one; "
                f"check the name{' and HF_TOKEN' if self.token else ', or set HF_TOKEN'}"
            )
        if code not in (200, 206):
            raise CheckpointError(f"{self.label}/{file}: the server answers {code}")

    def _describe(self, file: str, response: "requests.Response", expected: Version) -> tuple[Version, str]:
        """What the file should be, by the server and beforehand, and a word that changes with its content."""
        # The hub says what a file is, and sends us on to another host, which has its own words for it.
        answers = [answer.headers for answer in (*response.history, response) if self._is_own(answer)]

        def says(header: str) -> str:
            return next((headers[header] for headers in answers if header in headers), "")

        etag = (says("X-Linked-Etag") or says("ETag")).removeprefix("W/").strip('"')
        self.commit = says("X-Repo-Commit")
        digest = expected.digest
        if self.commit and not digest and re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", etag):
            digest = etag
        whole = response.headers.get("Content-Length", "")
        if response.status_code == 206:
            whole = response.headers.get("Content-Range", "").rpartition("/")[2]
        said = [text for text in (says("X-Linked-Size"), whole) if re.fullmatch("[0-9]{1,18}", text)]
        sizes = sorted({*map(int, said), *([] if expected.size is None else [expected.size])})
        if len(sizes) > 1 or not (sizes or digest):
            found = " and ".join(map(str, sizes)) or "none"
            raise CheckpointError(f"{self.label}/{file}: expected one number of bytes, got {found}")
        key = re.sub(r"[^\w-]", "", digest or etag or says("Last-Modified"), flags=re.ASCII)
        return Version(sizes[0] if sizes else None, digest), key[:40] or f"process-{os.getpid()}"

    def _receive(
        self, file: str, response: "requests.Response", start: int, part: Path, size: int | None
    ) -> None:
        """Write what comes behind the first `start` bytes of the part, or in their place if it is all."""
        sent = response.headers.get("Content-Range", "")
        if response.status_code == 200:
            start = 0
        elif not sent.startswith(f"bytes {start}-"):
            raise CheckpointError(
                f"{self.label}/{file}: asked for bytes {start}-, the server sends {short_repr(sent)}"
            )
        needed, free = (size or 0) - start, shutil.disk_usage(part.parent).free
        if needed > free:
            raise CheckpointError(
                f"{self.label}/{file} needs {megabytes(needed)}, but {part.parent} has {megabytes(free)} "
                "free; make room, or name another folder in TIEDGPT_WEIGHTS"
            )
        most = MAX_TEXT if size is None else size  # only of small files is the size ever unknown
        with open(part, "rb+" if start else "wb") as out, progress_bar(file, size, start) as bar:
            out.seek(start)
            for chunk in response.iter_content(CHUNK):
                out.write(chunk)
                bar.update(len(chunk))
                if out.tell() > most:
                    return  # too long, as will be found
            if size is not None and out.tell() < size:
                raise Interrupted("the connection was cut")


def _find_part(file: str, folder: Path) -> Path | None:
    """What came of a file before, of whatever version."""
    name = re.compile(re.escape(f".{file}.") + r"[\w-]+\.part")
    return next((path for path in sorted(folder.iterdir()) if name.fullmatch(path.name)), None)


def flush(path: Path) -> None:
    """Have a file on the disk before anybody relies on it."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def megabytes(size: int) -> str:
    """A size as people read it: 548.1 MB."""
    return f"{size / 1e6:,.1f} MB"


def progress_bar(doing: str, size: int | None, done: int = 0) -> Any:
    """A bar with speed and time left, if stderr is a terminal and it takes longer than a moment."""
    from tqdm import tqdm

    look: dict[str, Any] = {"unit": "B", "unit_scale": True, "leave": False, "disable": None, "delay": 0.3}
    return tqdm(desc=doing, total=size, initial=done, file=sys.stderr, **look)
