"""Downloads over a network that fails: cut connections, wrong answers, wrong addresses.

After each fault, either the right file is there under its final name, or no file is.

The fixture hub_server is a hub on this machine. It has a small model, NAME, whose files are the
fixture hub_files. `hub_server.faults[file]` is a list of faults: each spoils one answer to a
request for the file, and after the last fault the answers are right. `first_bytes()` lists the
first byte of each request for the weights, and `served[file]` counts the bytes that were sent.
With `is_plain`, the hub sends no hashes and does not redirect. Downloads go to weights_folder.

`Fault(stop=n)` cuts the connection after the first n bytes of the file. The client keeps what it
has received in a hidden file, the part. Its next request begins at the last byte of the part, so
that the request is not empty if the part is complete. The client reads BLOCK bytes at a time, so
it loses less than a block when the connection is cut. HALF is in the middle of the weights.

The client gives up after 6 attempts in a row that bring no new byte. It waits 0.001 s after an
attempt that brought data, 0.002 s after the first attempt in a row that brought none, then 0.004 s,
and so on.
"""

import json
import shutil
import socket
import ssl
import subprocess

import numpy as np
import pytest
from support.loopback_hub import (
    BLOCK,
    COMMIT,
    CONFIG,
    HALF,
    NAME,
    WEIGHTS,
    Fault,
    assert_command_fails,
    assert_download_fails,
    assert_has_exactly,
    flip_bit,
    part_of,
    reset,
    stall,
    visible_files,
)
from support.models import random_model

from tiedgpt.checkpoints import fetching, hub

# Faults of one response

DROPPED = Fault(is_dropped=True)
BUSY = Fault(503)  # a status: the service is not available now
HALFWAY = Fault(stop=HALF)  # the connection is cut in the middle of the weights


def lasting(fault: Fault) -> list[Fault]:
    """The same fault for more requests than a download makes."""
    return [fault] * 99


# Interruptions that pass

PASSING = [  # the faults of the first requests for the weights
    pytest.param([Fault(stop=0)], id="cut-at-once"),
    pytest.param([Fault(stop=1)], id="cut-after-a-byte"),
    pytest.param([Fault(stop=-1)], id="cut-before-the-last-byte"),
    pytest.param([Fault(stop=100), HALFWAY, Fault(stop=HALF + 1)], id="cut-three-times"),
    pytest.param([Fault(stop=HALF, then=reset)], id="reset"),
    pytest.param([Fault(500), Fault(502), Fault(504), Fault(408)], id="500-502-504-408"),
    pytest.param(
        [
            Fault(429, {"Retry-After": "0"}),
            Fault(429, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}),
        ],
        id="429",
    ),
    pytest.param([Fault(403)], id="an-expired-link-to-the-cdn"),
    pytest.param([HALFWAY, Fault(416)], id="416"),
    pytest.param(
        [
            BUSY,
            Fault(stop=9),
            DROPPED,
            Fault(429),
            Fault(stop=HALF, then=reset),
            Fault(stop=800),
        ],
        id="one-of-each",
    ),
]


@pytest.mark.parametrize("faults", PASSING)
def test_after_an_interruption_the_download_continues(hub_server, hub_files, faults):
    """One note says that the download begins, and one after each fault that it is tried again."""
    hub_server.faults[WEIGHTS] = list(faults)
    notes = []
    assert_has_exactly(hub.download(NAME, note=notes.append), hub_files)
    assert hub_server.faults[WEIGHTS] == []  # each fault was met
    assert len(notes) == 1 + len(faults)


@pytest.mark.parametrize("file", ["config.json", "vocab.json", "merges.txt"])
def test_a_small_file_is_asked_for_again_after_each_fault(hub_server, hub_files, file):
    hub_server.faults[file] = [DROPPED, BUSY, Fault(stop=3), Fault(stop=1), Fault(429)]
    assert_has_exactly(hub.download(NAME), hub_files)
    assert hub_server.faults[file] == []


def test_a_server_that_stalls_is_asked_again(hub_server, hub_files, monkeypatch):
    monkeypatch.setattr(fetching, "TIMEOUT", (5, 0.2))  # seconds to connect, and for more data
    hub_server.faults[WEIGHTS] = [Fault(stop=HALF, then=stall)]
    assert_has_exactly(hub.download(NAME), hub_files)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([HALFWAY, Fault(no_range=True)], id="once"),
        pytest.param(
            [
                HALFWAY,
                Fault(no_range=True, stop=HALF + 5),
                Fault(no_range=True, stop=9),
                Fault(no_range=True),
            ],
            id="always",
        ),
    ],
)
def test_a_server_that_sends_the_whole_file_whatever_was_asked(hub_server, hub_files, faults):
    """With no_range, an answer begins at byte 0, although the client has asked for the rest."""
    hub_server.faults[WEIGHTS] = list(faults)
    assert_has_exactly(hub.download(NAME), hub_files)
    assert hub_server.faults[WEIGHTS] == []


@pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
def test_a_response_without_its_length(hub_server, hub_files, file):
    """A response in chunks has no Content-Length."""
    hub_server.faults[file] = [Fault(chunked=True)]
    assert_has_exactly(hub.download(NAME), hub_files)


def test_the_part_of_a_file_from_a_plain_server_is_continued(hub_server, hub_files):
    """A plain server sends no hashes. A part is continued as long as the ETag stays the same.

    There are four requests: the first and the third are cut, and the second is not answered.
    """
    hub_server.is_plain = True
    first_cut = 100 * BLOCK
    third_cut = 200 * BLOCK + 7
    hub_server.faults[WEIGHTS] = [Fault(stop=first_cut), DROPPED, Fault(stop=third_cut)]
    assert_has_exactly(hub.download(NAME), hub_files)

    # A request begins at the last byte of the part.
    second_start = first_cut - 1
    third_start = second_start  # the second request brought nothing
    # The client keeps the whole blocks of the third response, and loses the rest: 8 bytes.
    lost = (third_cut - third_start) % BLOCK
    fourth_start = third_cut - lost - 1
    assert hub_server.first_bytes() == [0, second_start, third_start, fourth_start]
    already_in_the_part = 2  # bytes: the first byte of the third response, and of the fourth
    assert hub_server.served[WEIGHTS] == len(hub_files[WEIGHTS]) + lost + already_in_the_part


# How long it waits, and when it gives up


def test_it_waits_as_long_as_the_server_says_up_to_a_maximum(hub_server, monkeypatch):
    slept = []
    monkeypatch.setattr(fetching.time, "sleep", slept.append)
    hub_server.faults[WEIGHTS] = [
        Fault(429, {"Retry-After": "7"}),
        Fault(503, {"Retry-After": "99999999"}),
    ]
    hub.download(NAME)
    assert slept == [7, fetching.MAX_DELAY]


def test_it_waits_twice_as_long_after_each_attempt_without_a_new_byte(
    weights_folder, hub_server, hub_files, monkeypatch
):
    """The server is busy three times, then sends a block in each of 19 answers, and is busy again.

    After an attempt with a new byte, the waits begin at 0.001 s again.
    """
    slept = []
    notes = []
    monkeypatch.setattr(fetching.time, "sleep", slept.append)
    n_blocks = 19
    progress = [Fault(stop=BLOCK * n) for n in range(1, n_blocks + 1)]
    hub_server.faults[WEIGHTS] = [BUSY, BUSY, BUSY, *progress, *lasting(BUSY)]
    assert_download_fails(
        rf"{NAME}/{WEIGHTS}: the server answers 503; 6 attempts in a row brought no data",
        note=notes.append,
    )
    before_progress = [0.002, 0.004, 0.008]
    during_progress = [0.001] * n_blocks
    after_progress = [0.002, 0.004, 0.008, 0.016, 0.032]  # it gives up at the sixth attempt
    assert slept == [*before_progress, *during_progress, *after_progress]
    assert notes[-1] == f"{WEIGHTS}: the server answers 503; trying again in 0.032 s"
    attempts_after_progress = 6
    faults_not_met = hub_server.faults[WEIGHTS]
    assert len(faults_not_met) == len(lasting(BUSY)) - attempts_after_progress

    # The client keeps one whole block of each answer. The first byte of each block but the first
    # was in the part already.
    bytes_received_twice = n_blocks - 1
    part = part_of(weights_folder / NAME)
    assert part.stat().st_size == n_blocks * BLOCK - bytes_received_twice
    hub_server.faults.clear()
    assert_has_exactly(hub.download(NAME), hub_files)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param(
            BUSY, "the server answers 503; 6 attempts in a row brought no data$", id="503"
        ),
        pytest.param(
            HALFWAY,
            "the connection was cut; 6 attempts in a row brought no data; the next download "
            "continues from here$",
            id="cut",
        ),
        pytest.param(
            Fault(stop=HALF, then=stall),
            "no answer in time; 6 attempts in a row brought no data; the next download",
            id="stalled",
        ),
    ],
)
def test_an_interruption_that_lasts_is_an_error(hub_server, hub_files, monkeypatch, fault, message):
    """When the interruption is over, the next download succeeds."""
    monkeypatch.setattr(fetching, "TIMEOUT", (5, 0.1))  # seconds to connect, and for more data
    hub_server.faults[WEIGHTS] = lasting(fault)
    error = assert_download_fails(message)
    assert error.startswith(f"{hub_server.host}/{NAME}")
    monkeypatch.setattr(fetching, "TIMEOUT", (5, 5))  # on a busy machine, 0.1 s may be too short
    hub_server.faults.clear()
    assert_has_exactly(hub.download(NAME), hub_files)


def test_a_server_that_stops_during_the_download_is_asked_again(hub_server):
    """A refused connection is an interruption if the server has answered before."""

    def stop_server(_):
        hub_server.socket.close()

    hub_server.faults[WEIGHTS] = [Fault(stop=HALF, then=stop_server)]
    notes = []
    assert_download_fails(
        f"{WEIGHTS}: Connection refused; 6 attempts in a row brought no data", note=notes.append
    )
    downloading = 1
    trying_again_after_the_cut = 1
    trying_again_after_a_refused_connection = 5  # it gives up at the sixth
    expected = downloading + trying_again_after_the_cut + trying_again_after_a_refused_connection
    assert len(notes) == expected


# The part that a download left


def download_until(server, stop: int) -> None:
    """Start a download that fails after `stop` bytes of the weights, and leaves a part."""
    server.faults[WEIGHTS] = [Fault(stop=stop), *lasting(DROPPED)]
    assert_download_fails("; the next download continues from here")
    server.faults.clear()


def download_until_disk_is_full(stop: int) -> None:
    """Start a download that fails after `stop` bytes of the weights, as if the disk were full.

    This process is not allowed to make a file of more than `stop` bytes.
    """
    resource = pytest.importorskip("resource")
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (stop, hard_limit))
    try:
        assert_download_fails(r"cannot write to .*: File too large; .*TIEDGPT_WEIGHTS")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft_limit, hard_limit))


def assert_continues(server, part, content: bytes) -> None:
    """Download the model. The server must send the last byte of the part, and the rest alone."""
    rest = len(content) - part.stat().st_size
    sent_before = server.served[WEIGHTS]
    hub.download(NAME)
    sent = server.served[WEIGHTS] - sent_before
    last_byte_of_part = 1
    assert sent == last_byte_of_part + rest


def test_the_next_download_continues_after_a_cut(weights_folder, hub_server, hub_files):
    download_until(hub_server, HALF)
    part = part_of(weights_folder / NAME)
    received = part.read_bytes()
    assert hub_files[WEIGHTS].startswith(received)
    assert len(received) > HALF - BLOCK  # a cut connection may lose less than a block
    assert_continues(hub_server, part, hub_files[WEIGHTS])
    assert_has_exactly(weights_folder / NAME, hub_files)


def test_the_next_download_continues_after_a_full_disk(weights_folder, hub_server, hub_files):
    download_until_disk_is_full(HALF)
    assert_continues(hub_server, part_of(weights_folder / NAME), hub_files[WEIGHTS])
    assert_has_exactly(weights_folder / NAME, hub_files)


def test_of_a_complete_part_only_the_last_byte_is_sent(weights_folder, hub_server, hub_files):
    download_until(hub_server, HALF)
    part = part_of(weights_folder / NAME)
    part.write_bytes(hub_files[WEIGHTS])
    assert_continues(hub_server, part, hub_files[WEIGHTS])
    assert_has_exactly(weights_folder / NAME, hub_files)


def test_a_damaged_part_is_deleted(weights_folder, hub_server, hub_files):
    """The part lacks the first byte of the weights. So the completed file has a wrong hash."""
    download_until(hub_server, HALF)
    part = part_of(weights_folder / NAME)
    part.write_bytes(hub_files[WEIGHTS][1:HALF])
    assert_download_fails(
        rf"{WEIGHTS}: its SHA-256 is \w{{64}}, expected \w{{64}}; the part is deleted"
    )
    assert not part.exists()
    assert_has_exactly(hub.download(NAME), hub_files)


def other_weights(dtype: str) -> bytes:
    """The model.safetensors of a different model, in F32 or F16."""
    tensors = {}
    data = b""
    for name, array in random_model(CONFIG, seed=1).parameters.items():
        if dtype == "F16":
            array = array.astype(np.float16)
        offsets = [len(data), len(data) + array.nbytes]
        tensors[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
        data += array.tobytes()
    # A safetensors file has the size of the header, the header, and the data.
    header = json.dumps(tensors).encode()
    header_size = len(header).to_bytes(8, "little")
    return header_size + header + data


# The dtype of the new file, and how many bytes of the old file the client has received. The old
# file is in F32, so a new file in F16 has half its size.
NEW_SIZES = [
    pytest.param("F16", 2 * HALF, id="shorter-than-the-part"),
    pytest.param("F16", len(other_weights("F16")), id="as-long-as-the-part"),
    pytest.param("F32", HALF, id="longer"),
]


@pytest.mark.parametrize(("dtype", "stop"), NEW_SIZES)
def test_a_file_that_changes_between_two_downloads_is_not_joined(
    hub_server, hub_files, dtype, stop
):
    """The old file is sent up to the byte `stop`, and then the server has the new one."""
    download_until(hub_server, stop)
    new_files = {**hub_files, WEIGHTS: other_weights(dtype)}
    hub_server.put(NAME, new_files)
    notes = []
    assert_has_exactly(hub.download(NAME, note=notes.append), new_files)
    expected = f"{WEIGHTS}: it changed on the server; trying again in 0.00"  # 0.001 s or 0.002 s
    assert expected in notes[-1]


@pytest.mark.parametrize(("dtype", "stop"), NEW_SIZES)
def test_a_file_that_changes_during_a_download_is_not_joined(hub_server, hub_files, dtype, stop):
    """The old file is sent up to the byte `stop`, and then the server has the new one."""
    new_files = {**hub_files, WEIGHTS: other_weights(dtype)}

    def put_new_files(_):
        hub_server.put(NAME, new_files)

    hub_server.faults[WEIGHTS] = [Fault(stop=stop, then=put_new_files)]
    notes = []
    assert_has_exactly(hub.download(NAME, note=notes.append), new_files)
    expected = f"{WEIGHTS}: it changed on the server; trying again in 0.00"  # 0.001 s or 0.002 s
    assert expected in notes[-1]


# A mirror without hashes


def test_weights_that_a_mirror_has_cut_short_are_not_kept(weights_folder, hub_server, hub_files):
    """Without a hash, only reading the file shows that it is not whole."""
    hub_server.is_plain = True
    without_the_end = hub_files[WEIGHTS][:-4000]
    hub_server.put(NAME, {WEIGHTS: without_the_end})
    error = assert_download_fails(
        rf"{NAME}/{WEIGHTS}: truncated: the tensors end at byte .*; the next download"
    )
    assert error.startswith(f"{hub_server.host}/")
    assert not weights_folder.exists()
    hub_server.put(NAME, hub_files)
    assert_has_exactly(hub.download(NAME), hub_files)


@pytest.mark.parametrize("file", ["config.json", "vocab.json", "merges.txt"])
def test_a_small_file_that_a_mirror_has_cut_short_is_not_kept(hub_server, hub_files, file):
    """A plain server sends no hash. Reading the file shows that it is not whole."""
    hub_server.is_plain = True
    without_the_end = hub_files[file][:-9]
    hub_server.put(NAME, {file: without_the_end})
    assert_download_fails(rf"{NAME}/{file}")
    hub_server.put(NAME, hub_files)
    assert_has_exactly(hub.download(NAME), hub_files)


# What a server sends instead of the file


def add_a_byte(content: bytes) -> bytes:
    return content + b"!"


def add_many_bytes(content: bytes) -> bytes:
    """Add more than the client reads at a time, so that it has too many before the end."""
    return content + b"!" * (3 * BLOCK)


def drop_a_byte(content: bytes) -> bytes:
    return content[:-1]


SIZES_DIFFER = r"expected one number of bytes, got \d+ and \d+"
WRONG_ANSWERS = [  # the file, what is wrong with each answer to a request for it, the error
    pytest.param(
        WEIGHTS,
        Fault(302, {"Location": "{path}"}),
        f"{WEIGHTS} cannot be reached: 'Exceeded 30 redirects",
        id="redirects-in-a-circle",
    ),
    pytest.param(
        WEIGHTS,
        Fault(change=flip_bit),
        "its SHA-256 is .*, expected .*; the part is deleted",
        id="wrong-bytes",
    ),
    pytest.param(
        "vocab.json",
        Fault(change=flip_bit),
        "its git's SHA-1 is .*, expected .*; the part is deleted",
        id="wrong-bytes-of-a-small-file",
    ),
    pytest.param(WEIGHTS, Fault(change=drop_a_byte), SIZES_DIFFER, id="short"),
    pytest.param(WEIGHTS, Fault(change=add_a_byte), SIZES_DIFFER, id="long"),
    pytest.param(
        WEIGHTS,
        Fault(change=add_many_bytes, chunked=True),
        r"it has \d+ bytes, expected \d+",
        id="longer-than-it-says",
    ),
    pytest.param(
        "merges.txt",
        Fault(chunked=True, headers={"ETag": None, "X-Repo-Commit": None}),
        "expected one number of bytes, got none",
        id="neither-size-nor-hash",
    ),
    pytest.param(
        "merges.txt",
        Fault(chunked=True, endless=True),
        "its git's SHA-1 is .*, expected .*; the part is deleted",
        id="no-end",
    ),
    pytest.param(
        "merges.txt",
        Fault(chunked=True, headers={"X-Linked-Size": "9" * 17}),
        r"needs 100,000,000,000\.0 MB, but .* free",
        id="too-big",
    ),
    pytest.param(
        "config.json",
        Fault(401),
        r"the server answers 401: .* check the name, or set HF_TOKEN$",
        id="401",
    ),
    pytest.param(
        "config.json",
        Fault(403),
        r"the server answers 403: .* check the name, or set HF_TOKEN$",
        id="403",
    ),
    pytest.param(WEIGHTS, Fault(410), "the server answers 410", id="410"),
    pytest.param(
        "config.json",
        Fault(404),
        r"no such repository, or no config\.json in it \(404\)",
        id="404",
    ),
]


@pytest.mark.parametrize(("file", "fault", "message"), WRONG_ANSWERS)
def test_a_wrong_answer_is_an_error_and_publishes_nothing(
    hub_server, hub_files, file, fault, message
):
    """When the answers are right again, the download succeeds."""
    hub_server.faults[file] = lasting(fault)
    error = assert_download_fails(message)  # this also checks that no file is published
    assert error.startswith(f"{hub_server.host}/{NAME}")
    hub_server.faults.clear()
    assert_has_exactly(hub.download(NAME), hub_files)


def test_wrong_bytes_from_the_host_to_which_the_hub_redirects(hub_server, hub_files):
    """The hub's redirection has the right hash, but the other host sends wrong bytes.

    The hub replaces {elsewhere} by the other host, and {path} and {hash} by those of the file.
    """
    headers = {"Location": "{elsewhere}{path}", "ETag": '"{hash}"', "X-Repo-Commit": COMMIT}
    redirection = Fault(302, headers)
    hub_server.faults["vocab.json"] = [redirection, Fault(change=flip_bit)]
    assert_download_fails(r"vocab\.json: its git's SHA-1 is .*, expected .*; the part is deleted")
    assert_has_exactly(hub.download(NAME), hub_files)


START = HALF - 1  # where the second request begins, after the first answer was cut at HALF


@pytest.mark.parametrize(
    ("content_range", "message"),
    [
        pytest.param(
            "bytes 0-{size}/{size}",
            rf"asked for bytes {START}-, the server sends 'bytes 0-\d+/\d+'",
            id="from-the-start",
        ),
        pytest.param(
            f"bytes {START + 1}-{{size}}/{{size}}",
            rf"asked for bytes {START}-, the server sends 'bytes {START + 1}-",
            id="a-byte-later",
        ),
        pytest.param(
            "{size}/{size}",
            rf"asked for bytes {START}-, the server sends '\d+/",
            id="no-unit",
        ),
        pytest.param(f"bytes {START}-99/9", SIZES_DIFFER, id="another-size"),
        pytest.param(None, rf"asked for bytes {START}-, the server sends ''", id="none"),
    ],
)
def test_an_answer_with_a_wrong_range_is_refused(hub_server, hub_files, content_range, message):
    """The first answer is cut, and the second has a wrong Content-Range or none.

    The hub replaces {size} by the size of the file.
    """
    hub_server.faults[WEIGHTS] = [HALFWAY, Fault(headers={"Content-Range": content_range})]
    assert_download_fails(message)
    hub_server.faults.clear()
    assert_has_exactly(hub.download(NAME), hub_files)


def test_a_disk_that_is_too_small_is_an_error_before_the_download(
    weights_folder, hub_server, monkeypatch
):
    """The weights have 1.1 MB, and the disk has 0.9 MB free."""
    usage = shutil.disk_usage(weights_folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=900_000))
    folder = weights_folder / NAME
    assert_download_fails(
        rf"{NAME}/{WEIGHTS} needs 1\.1 MB, but {folder} has 0\.9 MB free; make room"
    )
    assert not weights_folder.exists()


# Addresses that are wrong

# Wrong values of HF_ENDPOINT, and of the header Location of a redirection.
NOT_URLS = [
    pytest.param("http://[::1/x", id="open-bracket"),
    pytest.param("//[x", id="no-scheme"),
    pytest.param("http://u:p@[/", id="password"),
    pytest.param("http://a..b/x", id="empty-label"),
    pytest.param(f"http://{'a' * 300}.example/x", id="long-label"),
    pytest.param("http://127.0.0.1:99999/x", id="port-99999"),
    pytest.param("ftp://127.0.0.1/x", id="ftp"),
]


@pytest.mark.parametrize(
    "url",
    [
        *NOT_URLS,
        pytest.param("http://\udce9/x", id="surrogate-in-the-host"),
        pytest.param("http://127.0.0.1/\udce9", id="surrogate-in-the-path"),
        pytest.param("127.0.0.1", id="host-alone"),
        pytest.param("http://a b", id="space"),
        pytest.param("http://:80", id="no-host"),
        pytest.param("http:///x", id="three-slashes"),
        pytest.param("ftp://u:p@127.0.0.1/x", id="ftp-with-a-password"),
    ],
)
def test_an_endpoint_that_is_not_a_url(weights_folder, hub_server, monkeypatch, run, url):
    """The error does not show a password: u:p is a user and a password in some of the URLs."""
    monkeypatch.setenv("HF_ENDPOINT", url)
    error = assert_command_fails(run, "download", NAME)
    assert " cannot be reached: " in error
    assert "u:p" not in error
    assert visible_files(weights_folder) == set()


@pytest.mark.parametrize("file", ["config.json", WEIGHTS])
@pytest.mark.parametrize(
    "url",
    [
        *NOT_URLS,
        pytest.param("http://\xe9/x", id="byte-in-the-host"),
        pytest.param("\xe9", id="byte"),
    ],
)
def test_a_redirect_to_an_invalid_url(weights_folder, hub_server, monkeypatch, run, file, url):
    """The error does not show a password: u:p is a user and a password in one of the URLs."""
    monkeypatch.setenv("NO_PROXY", "*")  # so the hosts in these URLs are asked without a proxy
    hub_server.faults[file] = [Fault(302, {"Location": url})]
    error = assert_command_fails(run, "download", NAME)
    assert " cannot be reached: " in error
    assert "u:p" not in error
    assert visible_files(weights_folder) == set()


@pytest.fixture
def closed_port():
    """The URL of a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _host, port = listener.getsockname()
    # From here on, nobody listens on this port.
    return f"http://127.0.0.1:{port}"


@pytest.mark.usefixtures("weights_folder")
def test_a_refused_connection_is_an_error_at_once(closed_port, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", closed_port)
    notes = []
    assert_download_fails(
        r"^127\.0\.0\.1:\d+/\S+/config\.json cannot be reached: Connection refused$",
        note=notes.append,
    )
    assert notes == []  # no note that it is tried again


def test_a_server_without_encryption(hub_server, monkeypatch):
    """The endpoint begins with https, but the server does not use TLS."""
    monkeypatch.setenv("HF_ENDPOINT", f"https://{hub_server.host}")
    assert_download_fails(r"config\.json cannot be reached: .*wrong version number")


@pytest.mark.usefixtures("weights_folder")
def test_a_proxy_that_refuses(closed_port, monkeypatch):
    """The client asks the proxy, so it needs no address of hub.invalid."""
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HTTP_PROXY", closed_port)
    assert_download_fails(r"hub\.invalid/.* cannot be reached: Connection refused by the proxy")


@pytest.mark.usefixtures("weights_folder")
def test_a_proxy_that_is_not_a_url(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HTTP_PROXY", "http://[x")
    assert_download_fails(
        r"hub\.invalid/.* cannot be reached: HF_ENDPOINT, a redirect or the proxy is"
    )


@pytest.fixture
def certificate(tmp_path):
    """A certificate of 127.0.0.1 that is signed with its own key."""
    if not shutil.which("openssl"):
        pytest.skip("makes a certificate with openssl")
    path = tmp_path / "certificate"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]  # no password
    files = ["-keyout", tmp_path / "key", "-out", path]
    command = ["openssl", "req", "-x509", *new_key, *files, *subject]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture
def secure_server(hub_server, certificate, monkeypatch):
    """The hub behind TLS, with a certificate that nobody trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.parent / "key")
    hub_server.socket = context.wrap_socket(hub_server.socket, server_side=True)
    hub_server.is_plain = True  # it does not redirect to http://localhost
    monkeypatch.setenv("HF_ENDPOINT", f"https://{hub_server.host}")
    return hub_server


@pytest.mark.usefixtures("secure_server")
def test_a_certificate_that_nobody_trusts():
    assert_download_fails(
        r"certificate verify failed: self.signed certificate; .*REQUESTS_CA_BUNDLE can name"
    )


@pytest.mark.usefixtures("secure_server")
def test_a_missing_file_of_certificates(tmp_path, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing"))
    assert_download_fails(
        "be reached: .* invalid path: .*/missing'; the variable REQUESTS_CA_BUNDLE can name a file"
    )


@pytest.mark.usefixtures("secure_server")
def test_a_certificate_that_the_user_trusts(certificate, hub_files, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    assert_has_exactly(hub.download(NAME), hub_files)


# Tokens


def tokens_sent_to(server, host: str) -> set[str | None]:
    """The tokens of all requests to this host; None for a request without a token."""
    return {request.token for request in server.requests if request.host.startswith(f"{host}:")}


def test_the_token_goes_to_the_hub_and_to_no_other_host(hub_server, hub_files, monkeypatch):
    """The hub, 127.0.0.1, redirects requests for the weights to the host localhost."""
    monkeypatch.setenv("HF_TOKEN", " hf_secret\n")
    assert_has_exactly(hub.download(NAME), hub_files)
    assert tokens_sent_to(hub_server, "127.0.0.1") == {"Bearer hf_secret"}
    assert tokens_sent_to(hub_server, "localhost") == {None}


def test_the_token_stays_when_the_hub_redirects_to_itself(hub_server, monkeypatch):
    """The hub, 127.0.0.1, redirects to another path of 127.0.0.1."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    location = f"/{NAME}/resolve/{COMMIT}/config.json"
    hub_server.faults["config.json"] = [Fault(307, {"Location": location})]
    hub.download(NAME)
    assert tokens_sent_to(hub_server, "127.0.0.1") == {"Bearer hf_secret"}


def test_the_password_of_netrc_is_not_used(hub_server, monkeypatch, tmp_path):
    """.netrc is read from the home directory, which is tmp_path in this test."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    hub.download(NAME)
    assert tokens_sent_to(hub_server, "127.0.0.1") == {"Bearer hf_secret"}


def test_a_token_that_is_refused_is_not_shown(hub_server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub_server.faults["config.json"] = [Fault(401)]
    error = assert_download_fails(r"the server answers 401: .* check the name, and HF_TOKEN$")
    assert "secret" not in error


@pytest.mark.usefixtures("hub_server")
def test_a_text_that_is_not_a_token(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_sec\nret")
    assert_download_fails("^HF_TOKEN contains characters that no token has$")
