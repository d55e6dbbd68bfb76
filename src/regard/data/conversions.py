"""From the files of public repositories to the files of our corpora: small steps from bytes to bytes.

The manifest names the steps that make a file, in order, each as `name` or `name argument`:

    convert(zipped, ["unzip qc/train.txt", "questions"])

A new step is a function here with an entry in STEPS.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence

from regard.errors import DataError

BYTE_ORDER_MARK = "\ufeff".encode()


def convert(data: bytes, steps: Sequence[str]) -> bytes:
    """Apply steps of the manifest to the bytes of a downloaded file."""
    for step in steps:
        name, _, argument = step.partition(" ")
        if name not in STEPS:
            steps_there = ", ".join(STEPS)
            raise DataError(
                f"the manifest names a conversion {name!r} that does not exist; it is one of {steps_there}"
            )
        try:
            data = STEPS[name](data, argument) if argument else STEPS[name](data)
        except (ValueError, LookupError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise DataError(f"the step {step[:60]!r} cannot convert what was downloaded: {error}") from None
    return data


def gunzip(data: bytes) -> bytes:
    """The content of a gzip file."""
    return gzip.decompress(data)


def unzip(data: bytes, member: str) -> bytes:
    """One file of a zip archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(member)


def line_feeds(data: bytes) -> bytes:
    """Lines that end in \\n, where Windows wrote \\r\\n."""
    return data.replace(b"\r\n", b"\n")


def end_last_line(data: bytes) -> bytes:
    """A line feed after the last line too."""
    return data if data.endswith(b"\n") else data + b"\n"


def strip_line_ends(data: bytes) -> bytes:
    """No spaces or tabs at the ends of lines."""
    return b"\n".join(line.rstrip(b" \t") for line in data.split(b"\n"))


def remove_byte_order_marks(data: bytes) -> bytes:
    """No U+FEFF, neither at the start nor inside."""
    return data.replace(BYTE_ORDER_MARK, b"")


def distinct_lines(data: bytes) -> bytes:
    """Each line once, where it comes first."""
    return _joined(dict.fromkeys(_lines(data)))


def take_lines(data: bytes, runs: str) -> bytes:
    """Lines in another order: `7+2 0+3` is lines 7 and 8, then 0 to 2, counted from 0."""
    lines, taken = _lines(data), []
    for run in runs.split():
        first, count = map(int, run.split("+"))
        if first + count > len(lines):
            raise ValueError(f"there are {len(lines)} lines, and lines up to {first + count} are asked for")
        taken += lines[first : first + count]
    return _joined(taken)


def questions(data: bytes) -> bytes:
    """TREC's `DESC:manner How did …` as coarse label, fine label and question, separated by tabs.

    Byte F0 is damage: it stands for the space of "sister city".
    """
    rows = (line.split(b" ", 1) for line in _lines(data.replace(b"\xf0", b" ")))
    return _joined(b"\t".join((label.split(b":")[0], label, text.strip())) for label, text in rows)


def polarity(data: bytes) -> bytes:
    """Pang and Lee's two files as one table of label (0 negative, 1 positive) and sentence.

    Their Windows-1252 dashes and quotes were read as Latin-1: control characters that are put right here.
    """
    rows = []
    for label, ending in (("0", "neg"), ("1", "pos")):
        text = unzip(data, f"sentence_polarity/rt-polarity.{ending}").decode("utf-8")
        rows += [f"{label}\t{_windows(line).strip()}".encode() for line in text.split("\n") if line]
    return _joined(rows)


def first_users(data: bytes, last: str) -> bytes:
    """Ratings (a CSV file that begins with userId) of the users up to this number."""
    header, *rows = _lines(data)
    return _joined([header, *(row for row in rows if int(row.split(b",", 1)[0]) <= int(last))])


def sure_and_possible(data: bytes) -> bytes:
    """Links `sentence i j S|P` as one line per sentence: sure ones `i-j`, then possible ones `ipj`."""
    links: dict[int, set[tuple[bool, int, int]]] = {}
    for line in _lines(data):
        sentence, i, j, kind = line.split()
        links.setdefault(int(sentence), set()).add((kind != b"S", int(i), int(j)))
    ordered = (sorted(links[sentence]) for sentence in sorted(links))
    return _joined(
        " ".join(f"{i}{'-p'[possible]}{j}" for possible, i, j in each).encode() for each in ordered
    )


def links_inside(data: bytes, folder: str) -> bytes:
    """The links `i-j` of de-en.wa in a zip archive that point inside the sentences of test.de and test.en."""
    texts = [remove_byte_order_marks(unzip(data, f"{folder}/test.{language}")) for language in ("de", "en")]
    german, english = ([len(line.split()) for line in _lines(text)] for text in texts)
    rows = []
    for line, words, others in zip(_lines(unzip(data, f"{folder}/de-en.wa")), german, english, strict=True):
        links = (link.split(b"-") for link in line.split())
        rows.append(b" ".join(b"-".join((i, j)) for i, j in links if int(i) < words and int(j) < others))
    return _joined(rows)


def pack(data: bytes, ending: str) -> bytes:
    """A file for the disk: .gz, .xz or plain; the same bytes every time."""
    if ending == ".gz":
        packed = io.BytesIO()
        with gzip.GzipFile("", "wb", 9, packed, mtime=0) as file:
            file.write(data)
        return packed.getvalue()
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME) if ending == ".xz" else data


def _lines(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\n").split(b"\n") if data else []


def _joined(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _windows(text: str) -> str:
    return "".join(bytes([ord(c)]).decode("cp1252") if "\x80" <= c < "\xa0" else c for c in text)


STEPS: dict[str, Callable[..., bytes]] = {
    step.__name__: step
    for step in (
        gunzip, unzip, line_feeds, end_last_line, strip_line_ends, remove_byte_order_marks, distinct_lines,
        take_lines, questions, polarity, first_users, sure_and_possible, links_inside,
    )
}  # fmt: skip
