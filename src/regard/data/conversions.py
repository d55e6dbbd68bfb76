"""Convert files of public repositories to the files of our corpora, in small steps from bytes to bytes.

The manifest lists the steps of each file in order, as `name` or `name argument`:

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
            raise DataError(
                f"the manifest names a conversion {name!r} that does not exist; use one of {', '.join(STEPS)}"
            )
        try:
            data = STEPS[name](data, argument) if argument else STEPS[name](data)
        except (ValueError, LookupError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise DataError(f"the step {step[:60]!r} cannot convert the downloaded file: {error}") from None
    return data


def gunzip(data: bytes) -> bytes:
    """Decompress a gzip file."""
    return gzip.decompress(data)


def unzip(data: bytes, member: str) -> bytes:
    """Extract one file of a zip archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(member)


def line_feeds(data: bytes) -> bytes:
    """Replace Windows line ends, \\r\\n, by \\n."""
    return data.replace(b"\r\n", b"\n")


def end_last_line(data: bytes) -> bytes:
    """Add a line feed after the last line if there is none."""
    return data if data.endswith(b"\n") else data + b"\n"


def strip_line_ends(data: bytes) -> bytes:
    """Remove spaces and tabs at the ends of lines."""
    return b"\n".join(line.rstrip(b" \t") for line in data.split(b"\n"))


def remove_byte_order_marks(data: bytes) -> bytes:
    """Remove U+FEFF everywhere, not only at the start."""
    return data.replace(BYTE_ORDER_MARK, b"")


def distinct_lines(data: bytes) -> bytes:
    """Remove repeated lines; the first occurrence stays."""
    return _joined(dict.fromkeys(_lines(data)))


def take_lines(data: bytes, runs: str) -> bytes:
    """Select ranges of lines, START+COUNT from 0, in the given order: `7+2 0+3` is 7, 8, 0, 1, 2."""
    lines, selected = _lines(data), []
    for run in runs.split():
        first, count = map(int, run.split("+"))
        if first + count > len(lines):
            raise ValueError(f"the step needs {first + count} lines and the file has {len(lines)}")
        selected += lines[first : first + count]
    return _joined(selected)


def questions(data: bytes) -> bytes:
    """Convert TREC's `DESC:manner How did …` to coarse label, fine label and question, separated by tabs.

    The source has one damaged byte, F0, in place of the space of "sister city".
    """
    rows = (line.split(b" ", 1) for line in _lines(data.replace(b"\xf0", b" ")))
    return _joined(b"\t".join((label.split(b":")[0], label, text.strip())) for label, text in rows)


def polarity(data: bytes) -> bytes:
    """Join Pang and Lee's two files into one table of label (0 negative, 1 positive) and sentence.

    The source decoded Windows-1252 as Latin-1, so dashes and quotes are control characters: decode them.
    """
    rows = []
    for label, ending in (("0", "neg"), ("1", "pos")):
        text = unzip(data, f"sentence_polarity/rt-polarity.{ending}").decode("utf-8")
        rows += [f"{label}\t{_fix_windows_1252(line).strip()}".encode() for line in text.split("\n") if line]
    return _joined(rows)


def first_users(data: bytes, last: str) -> bytes:
    """Keep the ratings of users up to number `last`; the first CSV column is userId."""
    header, *rows = _lines(data)
    return _joined([header, *(row for row in rows if int(row.split(b",", 1)[0]) <= int(last))])


def sure_and_possible(data: bytes) -> bytes:
    """Convert links `sentence i j S|P` to one line per sentence: sure `i-j`, then possible `ipj`."""
    links: dict[int, set[tuple[bool, int, int]]] = {}
    for line in _lines(data):
        sentence, i, j, kind = line.split()
        links.setdefault(int(sentence), set()).add((kind != b"S", int(i), int(j)))
    ordered = (sorted(links[sentence]) for sentence in sorted(links))
    return _joined(
        " ".join(f"{i}{'-p'[possible]}{j}" for possible, i, j in sentence_links).encode()
        for sentence_links in ordered
    )


def links_inside(data: bytes, folder: str) -> bytes:
    """Extract the links `i-j` of de-en.wa from a zip archive, without those beyond the ends of sentences."""
    texts = [remove_byte_order_marks(unzip(data, f"{folder}/test.{language}")) for language in ("de", "en")]
    german, english = ([len(line.split()) for line in _lines(text)] for text in texts)
    rows = []
    for line, german_words, english_words in zip(
        _lines(unzip(data, f"{folder}/de-en.wa")), german, english, strict=True
    ):
        links = (link.split(b"-") for link in line.split())
        rows.append(
            b" ".join(b"-".join((i, j)) for i, j in links if int(i) < german_words and int(j) < english_words)
        )
    return _joined(rows)


def pack(data: bytes, ending: str) -> bytes:
    """Compress a file by its extension (.gz, .xz or plain), reproducibly: gzip's time stamp is 0."""
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


def _fix_windows_1252(text: str) -> str:
    """Decode the control characters of a text that was read as Latin-1 instead of Windows-1252."""
    return "".join(bytes([ord(c)]).decode("cp1252") if "\x80" <= c < "\xa0" else c for c in text)


STEPS: dict[str, Callable[..., bytes]] = {
    step.__name__: step
    for step in (
        gunzip, unzip, line_feeds, end_last_line, strip_line_ends, remove_byte_order_marks, distinct_lines,
        take_lines, questions, polarity, first_users, sure_and_possible, links_inside,
    )
}  # fmt: skip
