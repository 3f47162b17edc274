"""Downloads from a server of our own on 127.0.0.1: whole, continued, cut off, refused."""

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lstlm.data import onebillion
from lstlm.data.download import _StaySecure, download_file
from lstlm.errors import DataError

CONTENT = bytes(range(256)) * 400


class Server(ThreadingHTTPServer):
    """Serves CONTENT; `ranges` says whether it can continue, `cut` after how many bytes it hangs up, `status` fails."""

    ranges = True
    cut: int | None = None
    status = 200
    asked: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        if self.server.status != 200:
            self.send_error(self.server.status)
        elif start >= len(CONTENT):
            self.send_error(416)
        else:
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(CONTENT) - start))
            self.end_headers()
            self.wfile.write(CONTENT[start : self.server.cut])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}/file"


def test_a_file_arrives_whole_and_only_then_under_its_name(tmp_path: Path, server: Server) -> None:
    download_file(address(server), tmp_path / "file", expected_bytes=len(CONTENT), quiet=True)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_broken_transfer_is_an_error_and_the_next_call_continues_it(tmp_path: Path, server: Server) -> None:
    server.cut = 30_000
    with pytest.raises(DataError, match="30000 of 102400 bytes; run again to continue|cannot be fetched"):
        download_file(address(server), tmp_path / "file", expected_bytes=len(CONTENT), quiet=True)
    assert not (tmp_path / "file").exists()
    assert (tmp_path / "file.part").stat().st_size == 30_000
    server.cut = None
    download_file(address(server), tmp_path / "file", expected_bytes=len(CONTENT), quiet=True)
    assert server.asked == [None, "bytes=30000-"]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_server_that_cannot_continue_starts_anew(tmp_path: Path, server: Server) -> None:
    server.ranges = False
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    download_file(address(server), tmp_path / "file", quiet=True)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_kept(tmp_path: Path, server: Server) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    download_file(address(server), tmp_path / "file", quiet=True)  # the server answers 416
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_wrong_size_is_refused(tmp_path: Path, server: Server) -> None:
    with pytest.raises(DataError, match=r"102400 bytes arrived where 102399 were expected; delete .*file\.part"):
        download_file(address(server), tmp_path / "file", expected_bytes=len(CONTENT) - 1, quiet=True)
    assert not (tmp_path / "file").exists()


def test_refusals_and_silence_are_one_line(tmp_path: Path, server: Server) -> None:
    server.status = 404
    with pytest.raises(DataError, match="the server answered 404 Not Found"):
        download_file(address(server), tmp_path / "file", quiet=True)
    with pytest.raises(DataError, match="cannot be fetched .*; run again to continue, or use --archive"):
        download_file("http://127.0.0.1:1/file", tmp_path / "file", quiet=True)


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(tmp_path: Path, server: Server) -> None:
    with pytest.raises(DataError, match="needs .* more bytes, the disk has .* free"):
        download_file(address(server), tmp_path / "file", expected_bytes=1 << 60, quiet=True)
    assert server.asked == []


def test_the_benchmark_is_fetched_into_the_data_folder(tmp_path: Path, server: Server) -> None:
    published = (address(server), len(CONTENT))
    source = onebillion.open_one_billion(
        None, download=True, data_folder=tmp_path / "data", max_bytes=1 << 30, published=published
    )
    assert (tmp_path / "data" / onebillion.ARCHIVE).read_bytes() == CONTENT
    assert source.total_bytes == len(CONTENT)


@pytest.mark.parametrize(
    ("address", "elsewhere", "followed"),
    [
        ("https://a.example/x", "https://b.example/y", True),
        ("http://a.example/x", "http://b.example/y", True),
        ("https://a.example/x", "http://b.example/y", False),
        ("https://a.example/x", "ftp://b.example/y", False),
    ],
)
def test_a_secure_address_stays_one_wherever_the_server_sends_us(address: str, elsewhere: str, followed: bool) -> None:
    def redirect() -> urllib.request.Request | None:
        return _StaySecure().redirect_request(urllib.request.Request(address), None, 302, "Found", {}, elsewhere)

    if followed:
        request = redirect()
        assert request is not None and request.full_url == elsewhere
    else:
        with pytest.raises(urllib.error.URLError, match="which is not https"):
            redirect()
