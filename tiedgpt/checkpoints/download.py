"""Find a model, and download it from the Hugging Face hub if it is named and not on this machine.

<weights>/gpt2/
  .commit             the commit of the repository from which all files of the folder come; the
                      process that downloads to the folder has a lock on this file
  config.json         is written when vocabulary and settings are there, and before the weights
  .model.safetensors.607a30d783df.part    the bytes received so far, of this commit
  model.safetensors   the same file once it is whole and verified

A file is verified by its hash: the one in model_names.py, else the one that the hub publishes.
"""

import hashlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from ..atomic import remove_unfinished, replaced_file
from ..errors import ArgumentError, CheckpointError, ConfigError, TiedGPTError, short_repr
from ..gpt2.config import Config
from .files import ADAPTER, MERGE, TIED, WEIGHTS, check_weight_map
from .json_files import CONFIG, MAX_TEXT, read_json
from .model_names import (
    ALIASES,
    DEFAULT_MODEL,
    INDEX,
    MODELS,
    PYTORCH,
    PYTORCH_INDEX,
    SHIPPED,
    VOCABULARY_SHA256,
    WEIGHT_FOLDER,
    Note,
    check_name,
    discard_note,
    find_by_name,
    folder_for_download,
    not_here,
)
from .opened import Opened
from .vocabulary import read_tokenizer

if TYPE_CHECKING:
    import requests  # imported where it is used, like tqdm: most commands need neither

HUB = "https://huggingface.co"
COMMIT = ".commit"
VOCABULARY = ("vocab.json", "merges.txt")
MORE_SMALL_FILES = (  # a known model needs none of them
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",  # for copies of the model
    "generation_config.json",
)

TIMEOUT = (10, 30)  # seconds to connect, and to wait for more data
ATTEMPTS = 6  # consecutive attempts without a new byte before it gives up
DELAY = 0.5  # seconds before the next attempt; doubled after each attempt without a new byte
MAX_DELAY = 300.0  # seconds, even if the server asks for more
BYTES_PER_READ = 1 << 15  # a lost connection loses fewer bytes than this


def find_model(
    source: str | Path,
    note: Note = discard_note,
    weights: bool = True,
    fetch: bool = True,
) -> tuple[str, Path]:
    """The name and the path of a model: a directory, or a file of weights.

    source: a known name always means that model (./gpt2 is a directory). Any other text is a path
        if that exists, else a hub repository owner/name.
    note: is called with what the user should know, such as the start of a download.
    weights: False if configuration and vocabulary are enough.
    fetch: whether a name that is not on this machine is downloaded; a Path never is.
    Raises CheckpointError for a source that cannot be found or downloaded, ArgumentError for
    another type of source.
    """
    if not isinstance(source, str | Path):
        raise ArgumentError(f"a model must be a name or a path, got {short_repr(source)}")
    text = str(source)
    name = ALIASES.get(text, text)
    if name not in (*MODELS, *SHIPPED):
        path = Path(os.path.expanduser(source))
        if text and os.path.exists(path):  # Path("") is the working directory
            return text, path
        check_name(name)
    folder = find_by_name(name, weights)
    if folder is None and fetch and isinstance(source, str) and name not in SHIPPED:
        if os.path.isdir(source):
            note(f"{source} is the name of a model; for the directory here, write ./{source}")
        folder = _download(name, note, weights)
    if folder is None:
        raise not_here(name, text)
    return text, folder


def find_default(note: Note, weights: bool = True) -> tuple[str, Path]:
    """The name and the path of the model that the environment variable TIEDGPT_MODEL names.

    Without it, gpt2 if it is on this machine, else a shipped one. Raises CheckpointError.
    """
    named = os.environ.get(DEFAULT_MODEL, "")
    if named:
        try:
            return find_model(named, note, weights)
        except CheckpointError as error:
            raise CheckpointError(f"{DEFAULT_MODEL}: {error}") from error
    for name in ("gpt2", SHIPPED[0]):
        folder = find_by_name(name)
        if folder is not None:
            if name in SHIPPED:
                note(f"model: {name}; for a larger one: tiedgpt download gpt2")
            return name, folder
    raise not_here(name="gpt2", text="gpt2")  # the shipped model is missing, too


def download(name: str, note: Note = discard_note) -> Path:
    """Download a model, unless it is on this machine; return its directory.

    Raises CheckpointError.
    """
    name = check_name(name)
    folder = find_by_name(name)
    if folder is not None:
        if name not in SHIPPED:  # which come with the package
            note(f"{name} is on this machine already")
        return folder
    if name in SHIPPED:
        raise not_here(name, name)
    return _download(name, note, weights=True)


def offline_variable() -> str | None:
    """The environment variable that forbids downloads; None if none does.

    As in huggingface_hub, TRANSFORMERS_OFFLINE counts only if HF_HUB_OFFLINE is not set, or empty.
    """
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        value = os.environ.get(variable, "")
        if value:
            return variable if value.upper() in ("1", "ON", "YES", "TRUE") else None
    return None


def _download(name: str, note: Note, weights: bool) -> Path:
    """Fetch what is missing of a model, or of its small files, to its folder."""
    folder = folder_for_download(name)
    files = ", ".join((CONFIG, WEIGHTS, *VOCABULARY))
    advice = f"; without a download, put the model's files ({files}) in {folder}, or give a path"
    variable = offline_variable()
    if variable is not None:
        raise CheckpointError(f"{name} is not on this machine, and {variable} is set{advice}")
    try:
        _fetch_missing(name, folder, note, weights)
    except KeyboardInterrupt:
        note("stopped; the same command continues from here")
        raise
    except OSError as error:
        raise CheckpointError(
            f"cannot write to {folder}: {error.strerror or error}; name another folder in "
            f"{WEIGHT_FOLDER}{advice}"
        ) from error
    except TiedGPTError as error:
        raise CheckpointError(f"{error}{advice}") from error
    return folder


def _fetch_missing(name: str, folder: Path, note: Note, weights: bool) -> None:
    """Fetch small files first, and the weights if they are asked for, all of one commit."""
    recorded = ""  # the commit of the files that are there
    if (folder / COMMIT).exists():
        recorded = (folder / COMMIT).read_text(encoding="ascii", errors="replace")
    repository = Repository(name, recorded, note)
    config = repository.read(CONFIG)
    if config is None and repository.read(ADAPTER) is not None:
        raise CheckpointError(
            f"{repository.label} is a LoRA adapter: merge it into its base model first, {MERGE}; "
            f"{TIED}"
        )
    if config is None:
        of_commit = f"; {folder} has files of this commit" if recorded else ""
        raise CheckpointError(
            f"{repository.label}: no such repository, or no {CONFIG} in it at {repository.revision}"
            f" (404){of_commit}"
        )
    # What is no GPT-2 is refused before anything is written. No file has this path: it is what an
    # error calls the content.
    path = Path(repository.label, CONFIG)
    try:
        Config.from_json(read_json(path, content=config))
    except ConfigError as error:
        raise CheckpointError(f"{repository.label}/{CONFIG}: {error}") from error

    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, repository.revision, note):
        if not (folder / CONFIG).exists():
            note(f"downloading the vocabulary of {name} from {repository.label} to {folder}")
            _fetch_small_files(repository, folder, config)
        if weights and find_by_name(name) != folder:  # the folder has no whole weights yet
            note(f"downloading the weights of {name} from {repository.label} to {folder}")
            _fetch_weights(repository, folder)


@contextmanager
def _locked(folder: Path, commit: str, note: Note) -> Iterator[None]:
    """A folder to which one process downloads at a time, files of one commit. Other processes wait.

    The file COMMIT is locked, and has the commit. Raises CheckpointError if the folder has files of
    another commit, or files that no download wrote. Windows has no such lock. There, the system
    refuses to rename a part that another process has open.
    """
    # "a+" makes the file if it is missing, and empties none.
    with open(folder / COMMIT, "a+", encoding="ascii", errors="replace") as record:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                note(f"another process downloads to {folder}: waiting for it")
                fcntl.flock(record, fcntl.LOCK_EX)
        record.seek(0)
        recorded = record.read()
        # A download writes the commit first: without one, it wrote no file but the hidden .commit.
        if recorded == "" and any(not path.name.startswith(".") for path in folder.iterdir()):
            raise CheckpointError(
                f"{folder} has files, but not all of a model; move it away to download the model"
            )
        if recorded not in ("", commit):
            raise CheckpointError(
                f"{folder} has files of commit {short_repr(recorded)}, and the download is of "
                f"{commit}; try again"
            )
        if recorded == "":
            record.write(commit)
            record.flush()
        yield


def _fetch_small_files(repository: "Repository", folder: Path, config: bytes) -> None:
    """Fetch all files but the weights, and read them.

    config: the content of config.json, which is written last.
    """
    files = VOCABULARY if repository.is_known else (*VOCABULARY, *MORE_SMALL_FILES)
    for file in files:
        content = repository.read(file)
        if content is not None:
            _write(folder / file, content)
        elif repository.is_known:
            raise CheckpointError(f"{repository.label} has no {file} (404)")
    if any((folder / file).exists() for file in ("merges.txt", "tokenizer.json")):
        read_tokenizer(folder)
    _write(folder / CONFIG, config)
    _ = Opened(folder).config_of_files  # raises if generation_config.json has a wrong field


def _write(path: Path, content: bytes) -> None:
    """Write a file, and remove what a killed download left of it."""
    remove_unfinished(path)
    with replaced_file(path) as file:
        file.write(content)


def _fetch_weights(repository: "Repository", folder: Path) -> None:
    """Fetch the first of these: model.safetensors, the files of an index, PyTorch's files.

    An index is written when all files that it names are there: a folder with it is whole.
    """
    for file, index in ((WEIGHTS, INDEX), (PYTORCH, PYTORCH_INDEX)):
        if repository.fetch(file, folder):
            return
        content = repository.read(index)
        if content is not None:
            path = Path(repository.label, index)
            weight_map = check_weight_map(read_json(path, content=content), f"{path}")
            for shard in sorted(set(weight_map.values())):
                if not repository.fetch(shard, folder):
                    raise CheckpointError(
                        f"{repository.label} has no {shard}, which {index} names (404)"
                    )
            _write(folder / index, content)
            return
    raise CheckpointError(
        f"{repository.label} has none of {WEIGHTS}, {INDEX}, {PYTORCH} and {PYTORCH_INDEX}"
    )


CUT = "the connection was cut"
# What a failed request has among its causes -> what a message says of it. For any other cause it
# has the system's own words, such as "Connection refused".
REASONS = {
    TimeoutError: "no answer in time",
    ConnectionResetError: CUT,
    ConnectionAbortedError: CUT,
    BrokenPipeError: CUT,
}
Answer = TypeVar("Answer")  # what an attempt returns


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """An error, and the errors among its `reason`, its arguments and what it was raised from."""
    yield error
    for cause in (getattr(error, "reason", None), *error.args, error.__cause__, error.__context__):
        if isinstance(cause, BaseException):
            yield from causes_of(cause)


class Interrupted(Exception):
    """An attempt failed, and the next one may succeed."""

    def __init__(self, reason: str, wait: float = 0) -> None:
        super().__init__(reason)
        self.wait = wait  # seconds; 0 if the server named no time


class Repository:
    """A repository of the hub at one commit."""

    def __init__(self, name: str, commit: str, note: Note) -> None:
        """commit: "" is a known model's own commit, else the newest one of main.

        Raises CheckpointError for an HF_TOKEN that is none.
        """
        self.is_known = name in MODELS
        repository = name
        self.hashes: dict[str, str] = {}  # those that are known before the hub names them
        if name in MODELS:
            repository = MODELS[name].repository
            commit = commit or MODELS[name].commit
            self.hashes = {**VOCABULARY_SHA256, WEIGHTS: MODELS[name].sha256}
        self.revision = commit or "main"  # until the first answer names the commit of main
        self.note = note
        token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
        self.token = token.strip()
        if not re.fullmatch("[!-~]*", self.token):  # ASCII without spaces and control characters
            raise CheckpointError("HF_TOKEN contains characters that no token has")
        endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
        self.url = f"{endpoint}/{repository}"
        # The name in messages: without "https://" and a password.
        self.label = re.sub(".*(//|@)", "", self.url)
        self.was_reached = False  # whether it has answered

    def read(self, file: str) -> bytes | None:
        """The content of a small file, verified; None if the repository has none.

        Raises CheckpointError for a file of more than MAX_TEXT bytes, which is not read to its end.
        """
        content = io.BytesIO()
        is_there = self._receive(file, content, MAX_TEXT)
        return content.getvalue() if is_there else None

    def fetch(self, file: str, folder: Path) -> bool:
        """Download a file, unless it is there. False if the repository has none."""
        path = folder / file
        if path.exists():
            return True
        part = folder / f".{file}.{self.revision[:12]}.part"
        with open(part, "a+b") as content:
            is_there = self._receive(file, content)
            os.fsync(content.fileno())  # else a crash after the rename could leave an empty file
        if is_there:
            os.replace(part, path)
        else:
            part.unlink()
        return is_there

    def read_range(self, file: str, start: int, stop: int) -> tuple[bytes, int] | None:
        """The bytes [start, stop) of a file, or as many as it has, and the size of the whole file.

        They are not verified: the hub's hash is of the whole file. None if the repository has no
        such file. Raises CheckpointError.
        """
        return self._repeat(file, lambda: self._attempt_range(file, start, stop))

    def _attempt_range(self, file: str, start: int, stop: int) -> tuple[bytes, int] | None:
        """Ask once for the bytes [start, stop) of a file, and the size of the whole.

        None if the repository has no such file. Raises Interrupted if another attempt may succeed.
        """
        with self._get(file, start, stop) as response:
            if not self._has_file(file, response):
                return None
            match = None  # its group 1 is the size of the whole file
            if response.status_code == 206:  # the part comes
                range_sent = response.headers.get("Content-Range", "")
                match = re.fullmatch(rf"bytes {start}-\d+/(\d{{1,18}})", range_sent)
            elif start == 0:  # the whole file comes, and the connection is closed after the bytes
                length = response.headers.get("Content-Length", "")
                match = re.fullmatch(r"(\d{1,18})", length)
            if match is None:
                raise CheckpointError(
                    f"{self.label}/{file}: the server does not send parts of files"
                )
            size = int(match[1])
            content = bytearray()
            for block in self._blocks(file, response):
                content += block
                if len(content) >= stop - start:  # a server may send the whole file
                    break
        if len(content) < min(stop, size) - start:
            raise Interrupted(CUT)
        return bytes(content[: stop - start]), size

    def _receive(self, file: str, content: BinaryIO, limit: int | None = None) -> bool:
        """Append the rest of a file to what an open file has of it, and verify the whole.

        limit: the most bytes that the file may have, where `content` is in memory. False if the
        repository has no such file. Raises CheckpointError.
        """
        expected = self._repeat(file, lambda: self._attempt(file, content, limit), content)
        if expected is None:
            return False
        size = content.seek(0, os.SEEK_END)
        hasher: Any = hashlib.sha256()
        if len(expected) == 40:  # git's SHA-1: of "blob", the size, a zero byte and the content
            hasher = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        content.seek(0)
        with _progress_bar("verifying", size) as bar:
            while block := content.read(1 << 20):
                hasher.update(block)
                bar.update(len(block))
        digest = hasher.hexdigest()
        if digest != expected:
            content.truncate(0)
            raise CheckpointError(
                f"{self.label}/{file}: its hash is {digest}, expected {expected}; what was "
                "received is deleted, and the same command starts over"
            )
        return True

    def _repeat(
        self, file: str, attempt: Callable[[], Answer], content: BinaryIO | None = None
    ) -> Answer:
        """Call `attempt` until it succeeds, and return its result.

        content: the file to which each attempt appends; None if each begins anew. An attempt that
        makes the file longer has brought something. Raises CheckpointError after ATTEMPTS in a row
        that brought nothing.
        """
        most_bytes = 0 if content is None else content.seek(0, os.SEEK_END)
        failures = 0  # attempts in a row that brought nothing
        while True:
            try:
                return attempt()
            except Interrupted as interruption:
                size = 0 if content is None else content.seek(0, os.SEEK_END)
                failures = 0 if size > most_bytes else failures + 1
                most_bytes = max(size, most_bytes)
                if failures == ATTEMPTS:
                    advice = "" if content is None else "; the same command continues from here"
                    raise CheckpointError(
                        f"{self.label}/{file}: {interruption}; {ATTEMPTS} attempts in a row brought"
                        f" no data{advice}"
                    ) from interruption
                # The time that the server named, or a time that doubles.
                wait = min(interruption.wait, MAX_DELAY) or DELAY * 2**failures
                self.note(f"{file}: {interruption}; trying again in {wait:g} s")
                time.sleep(wait)

    def _attempt(self, file: str, content: BinaryIO, limit: int | None) -> str | None:
        """Ask once for the rest of a file. Returns the hash that the whole should have.

        None if the repository has no such file. Raises Interrupted if another attempt may succeed.
        """
        size = content.seek(0, os.SEEK_END)
        # The last byte is asked for again: if the file is whole already, a request for the bytes
        # after it would be an error.
        start = max(size - 1, 0)
        with self._get(file, start) as response:
            if response.status_code == 416:
                content.truncate(0)
                raise Interrupted("what was received is longer than the file")
            if not self._has_file(file, response):
                return None
            expected = self.hashes.get(file) or self._published_hash(file, response)
            if response.status_code == 200:  # the whole file comes, whatever was asked for
                start = 0
            content.seek(start)
            content.truncate()  # what was received, and comes again
            length = response.headers.get("Content-Length", "")
            end = start + int(length) if re.fullmatch("[0-9]{1,18}", length) else None
            with _progress_bar(file, end, start) as bar:
                for block in self._blocks(file, response):
                    # The size that the server says, or what has come, if that is larger.
                    known_size = max(end or 0, content.tell() + len(block))
                    if limit is not None and known_size > limit:
                        raise CheckpointError(
                            f"{self.label}/{file}: {known_size} bytes; expected at most {limit}"
                        )
                    content.write(block)
                    bar.update(len(block))
        if end is not None and content.tell() < end:
            raise Interrupted(CUT)
        return expected

    def _get(self, file: str, start: int, stop: int | None = None) -> "requests.Response":
        """The response, whose body, the bytes [start, stop) of the file, is not read yet."""
        import requests

        # "identity": positions and sizes are those of the file, so it must not come compressed.
        headers = {"User-Agent": "tiedgpt", "Accept-Encoding": "identity"}
        if stop is not None:
            headers["Range"] = f"bytes={start}-{stop - 1}"
        elif start:
            headers["Range"] = f"bytes={start}-"
        # requests removes the token when it is redirected to another host. Without `auth` it would
        # send a password of ~/.netrc in its place.
        auth = self._add_token if self.token else None
        url = f"{self.url}/resolve/{self.revision}/{file}"
        try:
            response = requests.get(url, headers=headers, auth=auth, stream=True, timeout=TIMEOUT)
        except (OSError, ValueError) as error:  # requests' own errors, and what it does not catch
            raise self._failure(file, error) from error
        self.was_reached = True
        return response

    def _add_token(self, request: "requests.PreparedRequest") -> "requests.PreparedRequest":
        """Add the token to a request. requests calls this once, before it follows a redirect."""
        request.headers["Authorization"] = f"Bearer {self.token}"
        return request

    def _blocks(self, file: str, response: "requests.Response") -> Iterator[bytes]:
        """The body of a response, in pieces. Raises Interrupted if another attempt may succeed,
        else CheckpointError."""
        import requests

        try:
            yield from response.iter_content(BYTES_PER_READ)
        except requests.RequestException as error:
            raise self._failure(file, error) from error

    def _failure(self, file: str, error: Exception) -> Exception:
        """The exception for a failed request: Interrupted if another attempt may succeed.

        Another attempt may succeed if an earlier request reached the hub, or if this one did and
        was cut or not answered in time. Else the address or the network is wrong. The reason is in
        a few words: an error of requests has the cause deep in it.
        """
        from http.client import HTTPException

        import requests
        from requests.exceptions import ChunkedEncodingError

        message = re.sub(r"//[^/\s]*@", "//", str(error))  # without a password
        reason = short_repr(message, limit=200)
        for cause in causes_of(error):
            reasons = [REASONS[kind] for kind in REASONS if isinstance(cause, kind)]
            if isinstance(cause, HTTPException):  # the response has no end
                reasons.append(CUT)
            if isinstance(cause, OSError) and cause.strerror:
                reasons.append(cause.strerror)
            if reasons:
                reason = reasons[0]
                break
        is_of_network = isinstance(
            error, requests.ConnectionError | requests.Timeout | ChunkedEncodingError
        )
        reached_now = reason == CUT or isinstance(error, requests.ReadTimeout)
        if is_of_network and (self.was_reached or reached_now):
            return Interrupted(reason)
        return CheckpointError(f"{self.label}/{file} cannot be reached: {reason}")

    def _is_hub(self, response: "requests.Response") -> bool:
        """Whether the hub answered, and not another host to which it redirected."""
        answering = urlsplit(response.url)
        asked = urlsplit(self.url)
        return (answering.hostname, answering.port) == (asked.hostname, asked.port)

    def _header(self, response: "requests.Response", name: str) -> str:
        """A header of the first answer of the hub that has it; "" if none has.

        The headers of another host do not count: its ETag, for example, is no hash of the file.
        """
        for answer in (*response.history, response):
            if name in answer.headers and self._is_hub(answer):
                return answer.headers[name]
        return ""

    def _has_file(self, file: str, response: "requests.Response") -> bool:
        """Whether a response has the file; False if the repository has none.

        Raises Interrupted if the next response may have it, else CheckpointError.
        """
        code = response.status_code
        if code == 404 and self._is_hub(response):
            return False
        if code in (200, 206):
            commit = self._header(response, "X-Repo-Commit")
            # Stay at the commit that main was at the first answer. Only that answer must name it.
            if self.revision == "main" and re.fullmatch("[0-9a-f]{40}", commit):
                self.revision = commit
            elif self.revision == "main" or commit not in ("", self.revision):
                raise CheckpointError(
                    f"{self.label}/{file}: expected a file of commit {self.revision}, the server "
                    f"names {short_repr(commit)}"
                )
            return True
        host = urlsplit(response.url).hostname
        reason = f"{host} answers {code}"
        # The hub redirects to a link that is valid for a while. The next attempt gets a new one.
        is_of_link = not self._is_hub(response)
        # 408 means too slow a request, 429 too many of them, 500 and above a fault of the server.
        if is_of_link or code in (408, 429) or code >= 500:
            wait = response.headers.get("Retry-After", "")
            seconds = float(wait) if re.fullmatch(r"[0-9]{1,9}", wait) else 0.0
            raise Interrupted(reason, wait=seconds)
        advice = ""
        if code in (401, 403):
            token_advice = "and HF_TOKEN" if self.token else "or set HF_TOKEN"
            advice = (
                f": no such repository, or a private or gated one; check the name, {token_advice}"
            )
        raise CheckpointError(f"{self.label}/{file}: {reason}{advice}")

    def _published_hash(self, file: str, response: "requests.Response") -> str:
        """The hub's hash of a file: SHA-256 of a large one, git's SHA-1 of a small one.

        Raises CheckpointError if there is none.
        """
        etag = self._header(response, "X-Linked-Etag") or self._header(response, "ETag")
        digest = etag.removeprefix("W/").strip('"')  # W/"..." is a weak ETag
        if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", digest):
            raise CheckpointError(
                f"{self.label}/{file}: the server names no hash, so the file cannot be verified"
            )
        return digest


def _progress_bar(doing: str, size: int | None, done: int = 0) -> Any:
    """A bar with speed and time left, if stderr is a terminal and the work takes over 0.3 s."""
    from tqdm import tqdm

    return tqdm(
        desc=doing,
        total=size,
        initial=done,
        file=sys.stderr,
        unit="B",
        unit_scale=True,
        leave=False,
        disable=None,  # no bar unless stderr is a terminal
        delay=0.3,
    )
