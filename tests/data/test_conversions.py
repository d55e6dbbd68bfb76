"""Each conversion step on a few lines, and the conversions of the manifest inverted on downloaded corpora."""

import gzip
import io
import lzma
import zipfile

import pytest

from regard.data import corpora
from regard.data.conversions import STEPS, convert, pack
from regard.data.text_files import unpacked
from regard.errors import DataError
from tests.data.file_server import sha256


def zipped(members):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, data in members.items():
            file.writestr(
                zipfile.ZipInfo(name), data
            )  # with a fixed date: the bytes are part of the test ids
    return archive.getvalue()


POLARITY = zipped({
    "sentence_polarity/rt-polarity.neg": "dull . \nbad \x96 really \n".encode(),
    "sentence_polarity/rt-polarity.pos": "caf\xe9 \x91good \n".encode(),
})  # fmt: skip
LINKS = zipped(
    {
        "g/test.de": b"\xef\xbb\xbfa b\nc\n",
        "g/test.en": b"A B C\nD\n",
        "g/de-en.wa": b"0-0 1-2 2-0 1-3\n0-0\n",
    }
)

CASES = {
    "gunzip": (gzip.compress(b"x\n"), ["gunzip"], b"x\n"),
    "unzip": (zipped({"a/b.txt": b"x\n"}), ["unzip a/b.txt"], b"x\n"),
    "line_feeds": (b"a\r\nb\r\n", ["line_feeds"], b"a\nb\n"),
    "end_last_line": (b"a\nb", ["end_last_line", "end_last_line"], b"a\nb\n"),
    "strip_line_ends": (b"a b \t\n\t\nc\n", ["strip_line_ends"], b"a b\n\nc\n"),
    "remove_byte_order_marks": (b"\xef\xbb\xbfa\xef\xbb\xbf\tb\n", ["remove_byte_order_marks"], b"a\tb\n"),
    "distinct_lines": (b"b\na\nb\nc\na", ["distinct_lines"], b"b\na\nc\n"),
    "take_lines": (b"0\n1\n2\n3\n4\n", ["take_lines 3+2 0+1"], b"3\n4\n0\n"),
    "questions": (
        b"DESC:def What is an atom ?\nLOC:city A sister\xf0city ?\n", ["questions"],
        b"DESC\tDESC:def\tWhat is an atom ?\nLOC\tLOC:city\tA sister city ?\n",
    ),
    "polarity": (POLARITY, ["polarity"], "0\tdull .\n0\tbad – really\n1\tcafé ‘good\n".encode()),
    "first_users": (
        b"userId,movieId\n1,5\n672,7\n671,8\n", ["first_users 671"], b"userId,movieId\n1,5\n671,8\n"
    ),
    "sure_and_possible": (
        b"0002 1 1 S\n0001 10 2 P\n0001 2 2 S\n0001 3 1 P\n", ["sure_and_possible"], b"2-2 3p1 10p2\n1-1\n"
    ),
    "links_inside": (LINKS, ["links_inside g"], b"0-0 1-2\n0-0\n"),
}  # fmt: skip


def test_every_step_has_a_case():
    assert set(CASES) == set(STEPS)


@pytest.mark.parametrize("name", CASES)
def test_each_conversion_step_gives_the_expected_output(name):
    given, steps, wanted = CASES[name]
    assert convert(given, steps) == wanted


@pytest.mark.parametrize(
    ("data", "step", "message"),
    [
        (b"x", "gunzip", "'gunzip' cannot convert the downloaded file"),
        (b"x", "unzip a", "not a zip file"),
        (zipped({"a": b""}), "unzip b", "no item named 'b'"),
        (b"0\n1\n", "take_lines 1+2", "the step needs 3 lines and the file has 2"),
        (b"no label\nx", "questions", "'questions' cannot convert"),
        (b"x", "shuffle", "a conversion 'shuffle' that does not exist; use one of gunzip"),
    ],
)
def test_invalid_input_of_a_conversion_is_an_error_of_one_sentence(data, step, message):
    with pytest.raises(DataError, match=message):
        convert(data, [step])


def test_packing_gives_the_same_bytes_every_time():
    assert pack(b"x\n", "") == b"x\n"
    assert pack(b"x\n", ".gz") == pack(b"x\n", ".gz") and gzip.decompress(pack(b"x\n", ".gz")) == b"x\n"
    assert lzma.decompress(pack(b"x\n", ".xz")) == b"x\n"


def is_downloaded(name):
    known = corpora.find(name)
    return not (known.by_hand or known._entry.get("bundled"))


@pytest.mark.parametrize("name", [name for name in corpora.names() if not is_downloaded(name)])
def test_bundled_corpora_and_those_made_by_hand_have_no_downloads(name):
    assert not corpora.find(name).downloads


@pytest.mark.parametrize("name", [name for name in corpora.names() if is_downloaded(name)])
def test_the_manifest_uses_only_existing_conversion_steps(name):
    known = corpora.find(name)
    made = [file for download in known.downloads for file in download.makes]
    assert sorted(made) == sorted(known._entry["files"])
    assert {
        step.partition(" ")[0]
        for download in known.downloads
        for steps in download.makes.values()
        for step in steps
    } <= set(STEPS)
    assert f"github.com/{known.repository}" in known.source
    assert (
        len(known.commit) == 40
        and known._get["verified"]
        and all(len(download.sha256) == 64 for download in known.downloads)
    )
    for download in known.downloads:
        for file, steps in download.makes.items():
            assert steps or download.sha256 == known.file(file)["text"]


def text(name, file):
    return b"".join(unpacked(corpora.find(name).path(file)))


def positions(runs):
    return [
        i
        for first, count in (map(int, run.split("+")) for run in runs.split())
        for i in range(first, first + count)
    ]


INVERSE = {  # from our file back to the downloaded bytes, for lossless conversions
    ("sst2", "dev.tsv"): lambda ours: ours[:-1],
    ("stsb-en-de-fr", "test.fr.csv"): lambda ours: ours.replace(b"\n", b"\r\n"),
    ("cranfield", "qrels.trec.txt"): lambda ours: ours.replace(b"\n", b"\r\n"),
    ("tiny-shakespeare", "input.txt"): lambda ours: ours,
    ("wikitext-2", "train.txt"): lambda ours: ours,
    ("germeval2014-ner", "NER-de-dev.tsv"): lambda ours: ours,
    ("broad-twitter", "a.conll"): lambda ours: ours,
    ("movielens-latest-small", "movies.csv"): lambda ours: ours.replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize(("name", "file"), INVERSE)
def test_inverting_a_conversion_gives_the_pinned_download(real_data, name, file):
    if not (real_data / name).is_dir():
        pytest.skip(f"no {name} in REGARD_DATA")
    ours = text(name, file)
    source = INVERSE[name, file](ours)
    download = next(download for download in corpora.find(name).downloads if file in download.makes)
    assert (sha256(source), len(source)) == (download.sha256, download.bytes)
    assert convert(source, download.makes[file]) == ours


def test_newstest2014_has_the_order_of_the_english_side(real_data):
    known = corpora.find("wmt-newstest")
    download = next(download for download in known.downloads if "newstest2014.en-fr.fr" in download.makes)
    (step,) = download.makes["newstest2014.en-fr.fr"]
    order, ours = (
        positions(step.partition(" ")[2]),
        text("wmt-newstest", "newstest2014.en-fr.fr").split(b"\n")[:-1],
    )
    assert sorted(order) == list(range(3003))
    source = b"".join(line + b"\n" for _, line in sorted(zip(order, ours, strict=True)))
    assert sha256(source) == download.sha256
    assert convert(source, [step]) == b"".join(line + b"\n" for line in ours)
