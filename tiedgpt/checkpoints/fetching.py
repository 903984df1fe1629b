"""Fetch one file from a server, resume it after an interruption and verify it.

    .model.safetensors.248dfc3911869ec4.part    the bytes received so far; the name holds the remote
                                                file's hash or ETag, so parts of two versions are
                                                never joined

Every attempt has the same steps: read the length of the part, ask for the rest, check that the
answer is the rest of the same file, append it, and verify the whole (verification.py). An attempt
may end at any point (a lost connection, Ctrl-C, kill -9). The next one, in this process or another,
continues from the part.
"""

import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..errors import CheckpointError, short_repr
from .messages import Note, megabytes, progress_bar
from .publishing import link_new
from .reading import MAX_TEXT
from .verification import Version

if TYPE_CHECKING:
    import requests  # imported where it is used, like tqdm: most commands need neither

TIMEOUT = (10, 30)  # seconds to connect, and to wait for more data
ATTEMPTS = 6  # consecutive attempts without a new byte before it gives up
DELAY = 0.5  # seconds before the next attempt; doubled after each attempt without a new byte
MAX_DELAY = 300.0  # seconds, even if the server asks for more
BYTES_PER_READ = 1 << 15  # a lost connection loses fewer bytes than this


@dataclass(eq=False)
class Interrupted(Exception):
    """An attempt failed, and the next one may succeed."""

    reason: str
    wait: float = 0  # seconds; 0 if unknown


@dataclass
class DownloadClient:
    """It fetches files from one folder of a server."""

    base: str  # the URL of the folder
    label: str  # its short name in messages
    token: str | None  # "": no token is set; None: the server does not use tokens
    note: Note
    pins: dict[str, Version]  # the files whose content is known in advance
    commit: str = ""  # the commit of the last file, if the server named it
    was_reached: bool = False
    parts_without_hash: list[Path] = field(default_factory=list)  # complete, as far as is known

    def fetch(self, file: str, to: Path, parts: Path | None = None) -> bool:
        """Download a file to the folder `to` and verify it; False if the server lacks it.

        Its part is in the folder `parts`, by default in `to`, and stays there. Raises
        CheckpointError.
        """
        part = self._receive_whole(file, parts or to)
        if part is None:
            return False
        link_new(part, to / file)
        return True

    def _receive_whole(self, file: str, folder: Path) -> Path | None:
        """The verified part. None if the server lacks the file.

        A failed attempt is repeated, until ATTEMPTS in a row brought no new byte. Then
        CheckpointError is raised.
        """
        most_bytes = 0  # the largest size of the part after a failed attempt
        failures = 0  # attempts in a row without a new byte
        while True:
            try:
                return self._attempt(file, folder)
            except Interrupted as interruption:
                part = _find_part(file, folder)
                size = part.stat().st_size if part else 0
                if size > most_bytes:
                    most_bytes = size
                    failures = 0
                else:
                    failures += 1
                if failures == ATTEMPTS:
                    continues = "; the next download continues from here" if most_bytes else ""
                    raise CheckpointError(
                        f"{self.label}/{file}: {interruption.reason}; {ATTEMPTS} attempts in a row "
                        f"brought no data{continues}"
                    ) from interruption
                wait = min(interruption.wait, MAX_DELAY)
                if wait == 0:  # the server named no time
                    wait = DELAY * 2**failures
                self.note(f"{file}: {interruption.reason}; trying again in {wait:g} s")
                time.sleep(wait)

    def _attempt(self, file: str, folder: Path) -> Path | None:
        """Ask once for what is missing of a file. Returns the verified part, None for a 404.

        Raises Interrupted if another attempt may succeed.
        """
        part = _find_part(file, folder)
        start = 0
        if part:
            # The last byte is asked for again: a request for no bytes of a complete part would be
            # an error.
            start = max(part.stat().st_size - 1, 0)

        with self._get(file, start) as response:
            if response.status_code == 404:
                return None
            if part and response.status_code == 416:  # the file is shorter than the part
                part.unlink()
                raise Interrupted("it changed on the server")
            self._check_status(file, response)
            self.commit = self._header(response, "X-Repo-Commit")
            version, key = self._describe(file, response)
            target = folder / f".{file}.{key}.part"
            if part and part != target:  # the part is of another version
                part.unlink()
                raise Interrupted("it changed on the server")
            first = self._first_byte(file, response, start)
            if version.size is not None:
                self._check_space(file, target, needed=version.size - first)
            self._receive(file, response, first, target, version.size)

        self._verify(file, target, version)
        return target

    def _verify(self, file: str, part: Path, version: Version) -> None:
        """Delete a complete part that is not the version it should be, and raise."""
        difference = version.find_difference(part)
        if difference:
            part.unlink()
            raise CheckpointError(
                f"{self.label}/{file}: {difference}; the part is deleted, the next download starts "
                "over"
            )
        if version.digest == "":
            # Such a part may be wrong all the same. This is seen when the file is read, and the
            # caller then deletes the part.
            self.parts_without_hash.append(part)

    def stay_at_commit(self) -> None:
        """Fetch all later files from the commit of the last one, if the server named it.

        A URL of the hub ends with a revision: "main", or a commit.
        """
        if re.fullmatch("[0-9a-f]{40}", self.commit):
            self.base = re.sub("/main$", f"/{self.commit}", self.base)

    def _get(self, file: str, start: int) -> "requests.Response":
        """The response, whose body, from byte `start` of the file on, is not read yet."""
        import requests

        # "identity": positions and sizes are those of the file, so it must not come compressed.
        headers = {"User-Agent": "tiedgpt", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        auth = None
        if self.token:
            # requests removes this header when another host is asked. Without `auth` it would send
            # a password of ~/.netrc instead.
            headers["Authorization"] = f"Bearer {self.token}"
            auth = _add_nothing
        url = f"{self.base}/{file}"
        try:
            response = requests.get(url, headers=headers, auth=auth, stream=True, timeout=TIMEOUT)
        except (OSError, ValueError) as error:  # requests' own errors, and what it does not catch
            raise self._failure(file, error) from error
        self.was_reached = True
        return response

    def _failure(self, file: str, error: Exception) -> Exception:
        """The exception for a failed request: Interrupted if another attempt may succeed."""
        import requests

        message = re.sub(r"//[^/\s]*@", "//", str(error))  # without a password
        reason = _reason(error, message)
        if "certificate" in message.lower():
            # The server's certificate is not trusted, or the file of trusted ones is missing.
            reason += "; the variable REQUESTS_CA_BUNDLE can name a file of certificates to trust"
        elif _is_lost_connection(error):
            # If there never was a connection, the address or the network is wrong, and another
            # attempt would fail too. A timeout of reading and a cut connection show that there was.
            timed_out = isinstance(error, requests.ReadTimeout)
            was_cut = "aborted" in message
            if self.was_reached or timed_out or was_cut:
                return Interrupted(reason)
        return CheckpointError(f"{self.label}/{file} cannot be reached: {reason}")

    def _check_status(self, file: str, response: "requests.Response") -> None:
        """Raise for a response without the file: Interrupted if the next one may have it."""
        code = response.status_code
        if code in (200, 206):
            return
        # The hub redirects to a link that is valid for a while. The next attempt gets a new one.
        link_expired = code == 403 and not self._is_of_this_server(response)
        # 408 means too slow a request, 429 too many of them, 500 and above a fault of the server.
        is_temporary = code in (408, 429) or code >= 500
        if is_temporary or link_expired:
            wait = response.headers.get("Retry-After", "")
            seconds = float(wait) if re.fullmatch(r"[0-9]{1,9}", wait) else 0.0
            raise Interrupted(f"the server answers {code}", seconds)
        advice = ""
        if code in (401, 403) and self.token is not None:
            token_advice = "and HF_TOKEN" if self.token else "or set HF_TOKEN"
            advice = (
                f": no such repository, or a private or gated one; check the name, {token_advice}"
            )
        raise CheckpointError(f"{self.label}/{file}: the server answers {code}{advice}")

    def _describe(self, file: str, response: "requests.Response") -> tuple[Version, str]:
        """The version of the file that the server has, and a key that names this version.

        Raises CheckpointError if the server describes it in no way that could be verified.
        """
        # For a large file, the hub gives the ETag of the content another name.
        etag = self._header(response, "X-Linked-Etag") or self._header(response, "ETag")
        etag = etag.removeprefix("W/").strip('"')  # W/"..." is a weak ETag
        digest = self._find_digest(file, etag)
        size = self._find_size(file, response)
        if size is None and digest == "":
            raise CheckpointError(f"{self.label}/{file}: expected one number of bytes, got none")

        # The most exact name that this version has. The key is a part of a file's name, so other
        # characters are left out.
        version_name = digest or etag or self._header(response, "Last-Modified")
        key = re.sub(r"[^\w-]", "", version_name, flags=re.ASCII)[:40]
        if key == "":
            # Nothing names the version, so no other process may continue the part.
            key = f"process-{os.getpid()}"
        return Version(size, digest), key

    def _find_digest(self, file: str, etag: str) -> str:
        """The hash that the file should have: its pin's, else the hub's ETag. "" if unknown."""
        pin = self.pins.get(file, Version())
        if pin.digest != "":
            return pin.digest
        is_of_hub = self.commit != ""  # only the hub names a commit
        is_hash = re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", etag)
        if is_of_hub and is_hash:
            return etag
        return ""

    def _find_size(self, file: str, response: "requests.Response") -> int | None:
        """The size of the whole file, from its pin and the response; None if neither gives it.

        Raises CheckpointError if they give different sizes.
        """
        pin = self.pins.get(file, Version())
        sizes = set()
        if pin.size is not None:
            sizes.add(pin.size)
        for text in (self._header(response, "X-Linked-Size"), _size_of_whole(response)):
            if re.fullmatch("[0-9]{1,18}", text):
                sizes.add(int(text))
        if len(sizes) > 1:
            numbers = " and ".join(str(size) for size in sorted(sizes))
            raise CheckpointError(
                f"{self.label}/{file}: expected one number of bytes, got {numbers}"
            )
        return sizes.pop() if sizes else None

    def _header(self, response: "requests.Response", name: str) -> str:
        """A header of the first answer of this server that has it; "" if none has.

        The hub redirects to another host, whose ETag is not a hash of the file. So the headers of
        other hosts do not count.
        """
        for answer in (*response.history, response):
            if name in answer.headers and self._is_of_this_server(answer):
                return answer.headers[name]
        return ""

    def _is_of_this_server(self, response: "requests.Response") -> bool:
        """Whether this server answered, and not another one to which it redirected."""
        answering = urlsplit(response.url)
        asked = urlsplit(self.base)
        return (answering.hostname, answering.port) == (asked.hostname, asked.port)

    def _first_byte(self, file: str, response: "requests.Response", start: int) -> int:
        """The position in the file of the body's first byte: `start`, or 0 if the whole file came.

        Raises CheckpointError if the body is another part.
        """
        if response.status_code == 200:
            return 0
        content_range = response.headers.get("Content-Range", "")
        if not content_range.startswith(f"bytes {start}-"):
            raise CheckpointError(
                f"{self.label}/{file}: asked for bytes {start}-, the server sends "
                f"{short_repr(content_range)}"
            )
        return start

    def _check_space(self, file: str, part: Path, needed: int) -> None:
        """Raise CheckpointError if the disk has no room for the rest of the file."""
        free = shutil.disk_usage(part.parent).free
        if needed > free:
            raise CheckpointError(
                f"{self.label}/{file} needs {megabytes(needed)}, but {part.parent} has "
                f"{megabytes(free)} free; make room, or name another folder in TIEDGPT_WEIGHTS"
            )

    def _receive(
        self, file: str, response: "requests.Response", start: int, part: Path, size: int | None
    ) -> None:
        """Write the response's body to the part from byte `start` on."""
        import requests

        most_bytes = MAX_TEXT if size is None else size  # only a small file has no known size
        mode = "rb+" if start else "wb"  # "wb" would delete the bytes before `start`
        with open(part, mode) as out, progress_bar(file, size, start) as bar:
            out.seek(start)
            try:
                for chunk in response.iter_content(BYTES_PER_READ):
                    out.write(chunk)
                    bar.update(len(chunk))
                    if out.tell() > most_bytes:
                        return  # too long: the check of the size and the hash will fail
            except requests.RequestException as error:
                raise self._failure(file, error) from error
            if size is not None and out.tell() < size:
                raise Interrupted("the connection was cut")


def _find_part(file: str, folder: Path) -> Path | None:
    """The part of a file that an earlier attempt left, of any version; None if there is none."""
    for path in sorted(folder.iterdir()):
        if re.fullmatch(rf"\.{re.escape(file)}\.[\w-]+\.part", path.name):
            return path
    return None


def remove_parts(folder: Path) -> None:
    """Delete the parts of all files in a folder."""
    for part in folder.glob(".*.part"):
        part.unlink()


def _size_of_whole(response: "requests.Response") -> str:
    """The size of the whole file, as the response gives it; "" if it does not."""
    if response.status_code == 206:
        return response.headers.get("Content-Range", "").rpartition("/")[2]
    return response.headers.get("Content-Length", "")


def _is_lost_connection(error: Exception) -> bool:
    """Whether a request failed on the way, or waited in vain."""
    import requests
    from requests.exceptions import ChunkedEncodingError

    return isinstance(error, requests.ConnectionError | requests.Timeout | ChunkedEncodingError)


def _reason(error: Exception, message: str) -> str:
    """Why a request failed, in few words. `message` is the error's, without a password."""
    from requests.exceptions import ProxyError

    # requests raises a ValueError for a URL only: it checks nothing else before it connects.
    if isinstance(error, ValueError):
        return (
            "HF_ENDPOINT, a redirect or the proxy is not a valid http URL: "
            f"{short_repr(message, 200)}"
        )
    if not _is_lost_connection(error):
        return short_repr(message, 200)

    # The message holds those of three libraries. The innermost is the system's, for example
    # "[Errno 111] Connection refused", of which the text after the bracket is taken.
    system_error = re.search(r"(?<=\] )[\w :-]+", message)
    if system_error:
        reason = system_error[0].strip()
    elif "timed out" in message:
        reason = "no answer in time"
    else:
        reason = "the connection was cut"
    if isinstance(error, ProxyError):
        reason += " by the proxy"
    return reason


def _add_nothing(request: "requests.PreparedRequest") -> "requests.PreparedRequest":
    """An `auth` of requests that adds no password."""
    return request
