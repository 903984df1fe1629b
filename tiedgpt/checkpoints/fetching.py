"""Fetch one file from a server, resume it after an interruption and verify it.

    .model.safetensors.248dfc3911869ec4.part    the bytes received so far; the name holds the remote file's
                                                hash or ETag, so parts of two versions are never joined

Every attempt has the same steps: read the length of the part, ask for the rest, check that the
answer is the rest of the same file, and append it. An attempt may end at any point (a lost
connection, Ctrl-C, kill -9). The next one, in this process or another, continues from the part.
"""

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import CheckpointError, short_repr
from .files import MAX_TEXT, link_new

if TYPE_CHECKING:
    import requests  # imported where it is used, like tqdm: most commands need neither

TIMEOUT = (10, 30)  # seconds to connect, and to wait for more data
ATTEMPTS = 6  # consecutive attempts without a new byte before it gives up
DELAY = 0.5  # seconds before the next attempt; doubled after each attempt without a new byte
MAX_DELAY = 300.0  # seconds, even if the server asks for more
BYTES_PER_READ = 1 << 15  # a lost connection loses fewer bytes than this


@dataclass(frozen=True)
class Version:
    """The content that a file should have: its size and hash, where they are known."""

    size: int | None = None
    digest: str = ""  # 64 digits: SHA-256; 40 digits: SHA-1 of a git blob; "": unknown

    def difference(self, path: Path) -> str:
        """How a file differs from this version; "" if it does not."""
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


@dataclass(eq=False)
class Interrupted(Exception):
    """An attempt failed, and the next one may succeed."""

    reason: str
    wait: float = 0  # seconds; 0 if unknown


@dataclass
class Server:
    """A folder of files on a server. `note` is called with each message for the user."""

    base: str  # the URL of the folder
    label: str  # its short name in messages
    token: str | None  # "": no token is set; None: the server does not use tokens
    note: Callable[[str], Any]
    pins: dict[str, Version]  # the files whose content is known in advance
    commit: str = ""  # the commit of the files, if the server named it
    was_reached: bool = False

    def fetch(self, file: str, to: Path, parts: Path | None = None) -> bool:
        """Download a file to the folder `to` and verify it; False if the server lacks it.

        Its part is in the folder `parts`, by default in `to`, and stays there. Raises
        CheckpointError.
        """
        folder = parts or to
        most = failures = 0
        while True:
            try:
                if part := self._attempt(file, folder):
                    link_new(part, to / file)
                return part is not None
            except Interrupted as error:
                part = _find_part(file, folder)
                size = part.stat().st_size if part else 0
                failures = 0 if size > most else failures + 1
                most = max(most, size)
                if failures == ATTEMPTS:
                    tried = f"{ATTEMPTS} attempts in a row brought no data"
                    tried += "; the next download continues from here" if most else ""
                    raise CheckpointError(
                        f"{self.label}/{file}: {error.reason}; {tried}"
                    ) from error
                wait = min(error.wait, MAX_DELAY) or DELAY * 2**failures
                self.note(f"{file}: {error.reason}; trying again in {wait:g} s")
                time.sleep(wait)

    def _attempt(self, file: str, folder: Path) -> Path | None:
        part = _find_part(file, folder)
        # Ask for the last byte again, because a request for no bytes of a complete part would be an
        # error.
        start = max(part.stat().st_size - 1, 0) if part else 0
        with self._get(file, start) as response:
            if response.status_code == 404:
                return None
            if part and response.status_code == 416:  # the file is shorter than the part
                part.unlink()
                raise Interrupted("it changed on the server")
            self._check_status(file, response)
            version, key = self._describe(file, response)
            target = folder / f".{file}.{key}.part"
            if part and part != target:
                part.unlink()
                raise Interrupted("it changed on the server")
            self._receive(file, response, start, target, version.size)
        if wrong := version.difference(target):
            target.unlink()
            wrong += "; the part is deleted, the next download starts over"
            raise CheckpointError(f"{self.label}/{file}: {wrong}")
        return target

    def _get(self, file: str, start: int) -> "requests.Response":
        """The server's response, whose body, from byte `start` of the file on, is not read yet."""
        import requests

        headers = {"User-Agent": "tiedgpt", "Accept-Encoding": "identity"}
        headers |= {"Range": f"bytes={start}-"} if start else {}
        # requests removes the token when another host is asked. `auth` keeps it from using ~/.netrc
        # instead.
        headers |= {"Authorization": f"Bearer {self.token}"} if self.token else {}
        auth = (lambda request: request) if self.token else None
        url = f"{self.base}/{file}"
        try:
            response = requests.get(url, headers=headers, auth=auth, stream=True, timeout=TIMEOUT)
        except (OSError, ValueError) as error:  # requests' own errors, and what it does not catch
            raise self._failure(file, error) from error
        self.was_reached = True
        return response

    def _failure(self, file: str, error: Exception) -> Exception:
        """The exception to raise for a failed request: Interrupted if another attempt may
        succeed."""
        import requests
        from requests import exceptions

        text = re.sub(r"//[^/\s]*@", "//", str(error))  # without a password
        connection = (requests.ConnectionError, requests.Timeout, exceptions.ChunkedEncodingError)
        reason = short_repr(text, 200)
        answered = self.was_reached or isinstance(error, requests.ReadTimeout) or "aborted" in text
        if isinstance(error, ValueError):
            reason = f"HF_ENDPOINT, a redirect or the proxy is not a valid http URL: {reason}"
        elif isinstance(error, connection):  # the text holds the messages of three libraries
            found = re.search(r"(?<=\] )[\w :-]+", text)  # of "[Errno 111] Connection refused"
            reason = "no answer in time" if "timed out" in text else "the connection was cut"
            reason = found[0].strip() if found else reason
            if isinstance(error, exceptions.ProxyError):
                reason += " by the proxy"
        if (
            "certificate" in text.lower()
        ):  # requests raises a plain OSError if there is no file of them
            reason += "; the variable REQUESTS_CA_BUNDLE can name a file of certificates to trust"
        # Try again if the server answered before. If it never did, the address or the network is
        # wrong.
        elif answered and isinstance(error, connection):
            return Interrupted(reason)
        return CheckpointError(f"{self.label}/{file} cannot be reached: {reason}")

    def _is_own(self, response: "requests.Response") -> bool:
        """Whether this server answered, and not another one to which it redirected."""
        there, here = urlsplit(response.url), urlsplit(self.base)
        return (there.hostname, there.port) == (here.hostname, here.port)

    def _check_status(self, file: str, response: "requests.Response") -> None:
        code = response.status_code
        if code in (408, 429) or code >= 500 or (code == 403 and not self._is_own(response)):
            wait = response.headers.get("Retry-After", "")
            seconds = float(wait) if re.fullmatch(r"[0-9]{1,9}", wait) else 0.0
            raise Interrupted(f"the server answers {code}", seconds)
        why = ""
        if code in (401, 403) and self.token is not None:
            why = ": no such repository, or a private or gated one; check the name, "
            why += "and HF_TOKEN" if self.token else "or set HF_TOKEN"
        if code not in (200, 206):
            raise CheckpointError(f"{self.label}/{file}: the server answers {code}{why}")

    def _describe(self, file: str, response: "requests.Response") -> tuple[Version, str]:
        """The version that the server and the pin describe, and a key that names this version."""
        expected = self.pins.get(file, Version())
        # Only the hub's own headers count. The host to which it redirects has an ETag of another
        # kind.
        answers = [
            answer.headers for answer in (*response.history, response) if self._is_own(answer)
        ]

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
        said = [
            text for text in (says("X-Linked-Size"), whole) if re.fullmatch("[0-9]{1,18}", text)
        ]
        sizes = sorted({*map(int, said), *([] if expected.size is None else [expected.size])})
        if len(sizes) > 1 or not (sizes or digest):
            found = " and ".join(map(str, sizes)) or "none"
            raise CheckpointError(f"{self.label}/{file}: expected one number of bytes, got {found}")
        key = re.sub(r"[^\w-]", "", digest or etag or says("Last-Modified"), flags=re.ASCII)
        return Version(sizes[0] if sizes else None, digest), key[:40] or f"process-{os.getpid()}"

    def _receive(
        self, file: str, response: "requests.Response", start: int, part: Path, size: int | None
    ) -> None:
        """Write the response's body to the part from byte `start` on, or from 0 if it is the whole
        file."""
        import requests

        name, sent = f"{self.label}/{file}", response.headers.get("Content-Range", "")
        if response.status_code == 200:
            start = 0
        elif not sent.startswith(f"bytes {start}-"):
            raise CheckpointError(
                f"{name}: asked for bytes {start}-, the server sends {short_repr(sent)}"
            )
        needed, free = (size or 0) - start, shutil.disk_usage(part.parent).free
        if needed > free:
            space = f"needs {megabytes(needed)}, but {part.parent} has {megabytes(free)} free"
            raise CheckpointError(
                f"{name} {space}; make room, or name another folder in TIEDGPT_WEIGHTS"
            )
        most = MAX_TEXT if size is None else size  # the size is unknown for small files only
        with open(part, "rb+" if start else "wb") as out, progress_bar(file, size, start) as bar:
            out.seek(start)
            try:
                for chunk in response.iter_content(BYTES_PER_READ):
                    out.write(chunk)
                    bar.update(len(chunk))
                    if out.tell() > most:
                        return  # too long: the check of the size and the hash will fail
            except requests.RequestException as error:
                raise self._failure(file, error) from error
            if size is not None and out.tell() < size:
                raise Interrupted("the connection was cut")


def _find_part(file: str, folder: Path) -> Path | None:
    """The part of a file that an earlier attempt left, of any version."""
    name = rf"\.{re.escape(file)}\.[\w-]+\.part"
    return next((path for path in sorted(folder.iterdir()) if re.fullmatch(name, path.name)), None)


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def progress_bar(doing: str, size: int | None, done: int = 0) -> Any:
    """A progress bar with speed and time left, if stderr is a terminal and the work takes over 0.3
    s."""
    from tqdm import tqdm

    options: dict[str, Any] = {
        "unit": "B",
        "unit_scale": True,
        "leave": False,
        "disable": None,
        "delay": 0.3,
    }
    return tqdm(desc=doing, total=size, initial=done, file=sys.stderr, **options)
