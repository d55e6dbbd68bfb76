"""Downloads from a local HTTP server: complete, resumed, corrupted, interrupted, by mirror and by proxy."""

import gzip
import io
import os
import random
import threading
import zipfile

import pytest

from regard.data import corpora, download
from regard.errors import DataError, FolderError, OptionError
from tests.data.file_server import entry, serving, sha256

TEXT = random.Random(1).randbytes(200_000)
PLAIN = b"one\ntwo\n"


def zipped(**members):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return archive.getvalue()


ZIP = zipped(a=b"x\r\ny\r\n")
FILES = {"a.txt": TEXT, "b.txt": PLAIN, "c.txt": b"x\ny\n"}
SOURCES = {
    "raw/a b.txt": (TEXT, {"a.txt": []}),
    "b.txt": (PLAIN[:-1], {"b.txt": ["end_last_line"]}),
    "c.zip": (ZIP, {"c.txt": ["unzip a", "line_feeds"]}),
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A corpus `made-up` in the manifest and a server with its sources; no delay between retries."""
    monkeypatch.setattr(corpora, "_manifest", lambda: {"made-up": entry(FILES, SOURCES)})
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving({f"/owner/name/c0ffee/{path}": data for path, (data, _) in SOURCES.items()}) as server:
        monkeypatch.setenv("REGARD_MIRROR", server.url + "/")
        yield server


def leftovers(tmp_path):
    """All files under the data folder except the corpus."""
    return sorted(
        path.name for path in (tmp_path / "data").rglob("*") if path.is_file() and "made-up" not in path.parts
    )


def partial_files(tmp_path):
    return list((tmp_path / "data" / ".made-up.download").glob("*.part"))


def test_a_corpus_is_fetched_converted_and_checked(server, tmp_path, capsys):
    folder = download.get("made-up")
    assert folder == tmp_path / "data" / "made-up"
    assert {path.name: gzip.decompress(path.read_bytes()) for path in folder.iterdir()} == {
        f"{k}.gz": v for k, v in FILES.items()
    }
    known = corpora.find("made-up")
    assert known.present() and {finding.state for finding in known.check()} == {"same text"}
    assert leftovers(tmp_path) == []
    assert "/owner/name/c0ffee/raw/a%20b.txt" in server.requested
    output = capsys.readouterr().err
    assert "0.2 MB from github.com/owner/name" in output and "licence: CC BY 4.0; cite Nobody 1999" in output


def test_only_missing_files_are_downloaded(server):
    folder = download.get("made-up")
    request_count = len(server.requested)
    assert download.get("made-up") == folder and len(server.requested) == request_count
    (folder / "b.txt.gz").unlink()
    download.get("made-up")
    assert server.requested[request_count:] == ["/owner/name/c0ffee/b.txt"]


def test_a_file_of_the_user_is_never_replaced(server, tmp_path):
    folder = tmp_path / "data" / "made-up"
    folder.mkdir(parents=True)
    (folder / "b.txt").write_text("mine\n")
    with pytest.raises(
        DataError, match="made-up/b.txt exists and differs from the file of the manifest; move it away"
    ):
        download.get("made-up")
    assert (folder / "b.txt").read_text() == "mine\n" and not server.requested


def test_a_cut_connection_is_resumed_from_where_it_ended(server):
    server.faults = [("cut", 70_000), ("cut", 50_000), 503, None]
    folder = download.get("made-up")
    assert server.ranges[:4] == [None, "bytes=70000-", "bytes=120000-", "bytes=120000-"]
    assert gzip.decompress((folder / "a.txt.gz").read_bytes()) == TEXT


def test_a_failed_download_is_kept_and_the_next_call_resumes_it(server, tmp_path):
    server.faults = [("cut", 70_000)] + [500] * download.TRIES
    with pytest.raises(
        DataError,
        match=r"a%20b.txt cannot be fetched: the server answers 500 .*; run the same command again to resume",
    ):
        download.get("made-up")
    assert not (tmp_path / "data" / "made-up").exists()
    assert [path.stat().st_size for path in partial_files(tmp_path)] == [70_000]
    request_count = len(server.ranges)
    download.get("made-up")
    assert server.ranges[request_count] == "bytes=70000-" and leftovers(tmp_path) == []


def test_a_download_interrupted_by_ctrl_c_is_resumed(server, tmp_path):
    server.faults = [("ctrl-c", 70_000)]
    with pytest.raises(KeyboardInterrupt):
        download.get("made-up")
    assert [path.stat().st_size for path in partial_files(tmp_path)] == [70_000]
    assert not (tmp_path / "data" / "made-up").exists()
    folder = download.get("made-up")
    assert server.ranges[:2] == [None, "bytes=70000-"] and leftovers(tmp_path) == []
    assert gzip.decompress((folder / "a.txt.gz").read_bytes()) == TEXT


def test_without_range_requests_the_download_starts_again(server):
    server.faults = [("cut", 70_000), "no range"]
    folder = download.get("made-up")
    assert server.ranges[:2] == [None, "bytes=70000-"]
    assert gzip.decompress((folder / "a.txt.gz").read_bytes()) == TEXT


@pytest.mark.parametrize(
    "wrong", [b"\0" * 70_000, b"\0" * len(TEXT), b"\0" * (len(TEXT) + 5)], ids=["short", "full", "long"]
)
def test_a_wrong_partial_file_is_removed_and_downloaded_again(server, tmp_path, wrong):
    kept = tmp_path / "data" / ".made-up.download"
    kept.mkdir(parents=True)
    (kept / f"{sha256(TEXT)}.part").write_bytes(wrong)
    folder = download.get("made-up")
    assert gzip.decompress((folder / "a.txt.gz").read_bytes()) == TEXT


def test_wrong_bytes_are_refused_and_removed(server, tmp_path):
    server.faults = [("send", TEXT[:-1] + b"\0")]
    with pytest.raises(
        DataError,
        match=r"the bytes that the manifest names \(SHA-256 .*set REGARD_MIRROR to another server",
    ):
        download.get("made-up")
    assert not partial_files(tmp_path) and not (tmp_path / "data" / "made-up").exists()


def test_a_login_page_instead_of_the_file_is_refused_at_once(server, tmp_path):
    server.faults = [("send", b"<html>please log in</html>")]
    with pytest.raises(
        DataError, match=r"does not have the bytes that the manifest names \(26 of them, not 200,000\)"
    ):
        download.get("made-up")
    assert len(server.requested) == 1 and not partial_files(tmp_path)


def test_the_number_of_retries_is_limited(server):
    wrong = TEXT[:-1] + b"\0"
    server.files = dict.fromkeys(server.files, wrong)
    server.faults = [("cut", 70_000), None, ("cut", 70_000), None] * 9
    with pytest.raises(DataError, match="does not have the bytes"):
        download.get("made-up")
    assert len(server.requested) == 4


def test_a_damaged_partial_download_is_not_used(server, tmp_path):
    kept = tmp_path / "data" / ".made-up.download"
    kept.mkdir(parents=True)
    (kept / sha256(TEXT)).write_bytes(b"damaged")
    with pytest.raises(DataError, match="changed on the disk and was removed; run the same command again"):
        download.get("made-up")
    download.get("made-up")


def test_a_conversion_with_another_checksum_writes_nothing(server, tmp_path, monkeypatch):
    facts = entry(FILES, SOURCES)
    facts["files"]["c.txt"]["text"] = sha256(b"other")
    monkeypatch.setattr(corpora, "_manifest", lambda: {"made-up": facts})
    with pytest.raises(DataError, match="c.zip does not give c.txt of made-up"):
        download.get("made-up")
    assert not (tmp_path / "data" / "made-up").exists()


def test_a_file_missing_on_the_server_is_an_error_of_one_sentence(server):
    server.files.clear()
    with pytest.raises(
        DataError,
        match=r"a%20b.txt cannot be fetched: the server answers 404 \(Not Found\); set REGARD_MIRROR",
    ):
        download.get("made-up")
    assert len(server.requested) == 1


def test_a_missing_network_is_an_error_of_one_sentence(server, monkeypatch):
    monkeypatch.setenv("REGARD_MIRROR", "http://127.0.0.1:9")
    with pytest.raises(
        DataError, match=r"cannot be fetched: Connection refused; check the network and HTTPS_PROXY"
    ):
        download.get("made-up")


def test_a_full_disk_is_an_error_of_one_sentence(server, tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    kept = tmp_path / "data" / ".made-up.download"
    kept.mkdir(parents=True)
    (kept / f"{sha256(TEXT)}.part").symlink_to("/dev/full")
    with pytest.raises(
        FolderError,
        match="cannot be written .No space left on device.; free some space, or set REGARD_DATA",
    ):
        download.get("made-up")


def test_too_little_disk_space_is_reported_before_any_download(server, monkeypatch):
    facts = entry(FILES, SOURCES)
    facts["files"]["a.txt"]["bytes"] = 1 << 60
    monkeypatch.setattr(corpora, "_manifest", lambda: {"made-up": facts})
    with pytest.raises(DataError, match="MB free and made-up needs 1,152,921,504,607.0 MB; free some space"):
        download.get("made-up")
    assert not server.requested


def test_an_unwritable_folder_is_an_error_of_one_sentence(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "file"))
    with pytest.raises(FolderError, match="cannot be written .*; free some space, or set REGARD_DATA"):
        download.get("made-up")


def test_a_mirror_that_is_not_a_url_is_refused(server, monkeypatch):
    monkeypatch.setenv("REGARD_MIRROR", "/srv/mirror")
    with pytest.raises(
        OptionError, match="REGARD_MIRROR is '/srv/mirror'; give an address that begins with https://"
    ):
        download.get("made-up")
    monkeypatch.delenv("REGARD_MIRROR")
    assert download.mirror() == "https://raw.githubusercontent.com"


def test_a_proxy_of_the_environment_is_used(server, monkeypatch):
    """The mirror's name does not resolve: only the proxy can answer."""
    monkeypatch.setenv("REGARD_MIRROR", "http://mirror.invalid")
    monkeypatch.setenv("http_proxy", server.url)
    download.get("made-up")
    assert server.requested[0] == "http://mirror.invalid/owner/name/c0ffee/raw/a%20b.txt"


def test_https_goes_through_the_proxy_and_no_proxy_is_respected(server, monkeypatch):
    monkeypatch.setenv("REGARD_MIRROR", "https://mirror.invalid")
    monkeypatch.setenv("HTTPS_PROXY", server.url)
    with pytest.raises(DataError, match="Tunnel connection failed: 403"):
        download.get("made-up")
    connect = "CONNECT mirror.invalid:443"  # other libraries of this process may use the proxy, too
    request_count = server.requested.count(connect)
    assert request_count
    monkeypatch.setenv("NO_PROXY", "mirror.invalid")
    with pytest.raises(DataError, match="cannot be fetched"):
        download.get("made-up")
    assert server.requested.count(connect) == request_count


def test_two_concurrent_downloads_fetch_the_corpus_once(server):
    folders, threads = [], []
    for _ in range(2):
        threads.append(threading.Thread(target=lambda: folders.append(download.get("made-up"))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(folders) == 2 and len(server.requested) == len(SOURCES)


def test_the_error_for_a_corpus_without_downloads_says_what_to_do(server, monkeypatch):
    facts = entry(FILES, SOURCES, by_hand="copy it by hand")
    monkeypatch.setattr(corpora, "_manifest", lambda: {"made-up": facts})
    with pytest.raises(
        DataError, match="made-up cannot be fetched: copy it by hand; put its files into .*/made-up"
    ):
        download.get("made-up")
    with pytest.raises(DataError, match="`regard data made-up` says how to get it"):
        corpora.find("made-up").rows("train")


def test_the_error_for_an_absent_corpus_names_the_command(server):
    with pytest.raises(
        DataError,
        match="the corpus made-up is not in .*made-up; fetch it with `regard data get made-up`",
    ):
        corpora.find("made-up").rows("train")


def test_the_corpora_named_in_a_data_section_are_listed():
    data = {
        "corpus": "sst2",
        "test": ["wmt-newstest:newstest2014", "my.tsv", ["a.en", "a.de"]],
        "train": "tatoeba-en-de",
    }
    assert corpora.named_in(data) == ["sst2", "tatoeba-en-de", "wmt-newstest"]
