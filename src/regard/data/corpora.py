"""Corpora known by name: their files, readers, licences and checksums.

`manifest.json` has an entry per corpus: public source, licence, citation, splits, and two SHA-256 checksums
of every file, one of the text and one of the compressed file. The files are in REGARD_DATA/NAME (or
./data/NAME), plain, .gz or .xz. Only `tatoeba-sample` is bundled with the package.

`get` in an entry describes the download: GitHub repository, commit, and for each downloaded file its SHA-256,
its size and the conversion steps (`conversions.py`) to the files of the corpus. `verified` is the day on
which these steps reproduced our files byte for byte. `by_hand` says why a corpus cannot be downloaded.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from regard.data.csv_reader import Csv
from regard.data.readers import LinePairs, Rows, Table, TextLines, concatenate
from regard.data.splits import HashSplitRows, RowRange
from regard.data.text_files import unpacked
from regard.errors import DataError
from regard.files.atomic import write_file
from regard.files.cache import CACHE_HINT, cache_folder
from regard.files.checksums import file_sha256
from regard.files.progress import track

ENDINGS = ("", ".gz", ".xz")


def data_folder() -> Path:
    """The folder of the user's corpora: REGARD_DATA, or `data` in the working directory."""
    folder = os.environ.get("REGARD_DATA")
    return Path(folder).expanduser() if folder else Path("data")


@cache
def _bundled() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "manifest.json").read_text(encoding="utf-8"))


_added: dict[str, dict[str, Any]] = {}  # by `add_corpora`


@cache
def _from_environment(paths: str) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for path in filter(None, paths.split(os.pathsep)):
        entries |= _read_manifest(Path(path).expanduser())
    return entries


def _manifest() -> dict[str, Any]:
    """All corpora by name: those of manifest.json, of REGARD_CORPORA and of `add_corpora`."""
    return _bundled() | _from_environment(os.environ.get("REGARD_CORPORA", "")) | _added


def add_corpora(manifest: str | os.PathLike[str] | Mapping[str, Any]) -> list[str]:
    """Make corpora known by name, as those of manifest.json are, and return their names.

        regard.data.add_corpora("corpora.json")

    Recipes (`data: {corpus: NAME}`) and `regard data NAME` then find them. The environment variable
    REGARD_CORPORA names manifests for the command line.

    Args:
        manifest: the path of a JSON file, or its content: name → entry. An entry needs `task`, `languages`
            and `sets`; its files are in `folder` (relative to the manifest), or in REGARD_DATA/NAME.
            docs/data.md describes the keys.
    """
    if isinstance(manifest, Mapping):
        entries = {
            name: _complete(name, entry, Path.cwd(), "the manifest") for name, entry in manifest.items()
        }
    else:
        entries = _read_manifest(Path(manifest).expanduser())
    for name, entry in entries.items():
        if name in _manifest() and _added.get(name) != entry:
            raise DataError(f"there is a corpus {name!r} already; choose another name")
    _added.update(entries)
    return list(entries)


def remove_corpora(*removed: str) -> None:
    """Forget corpora that `add_corpora` added; their files stay."""
    for name in removed:
        if name not in _added:
            raise DataError(
                f"add_corpora did not add a corpus {name!r}; only corpora added with it can be removed"
            )
        del _added[name]


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"the manifest {path} cannot be read ({error}); give a JSON file of corpora"
        ) from None
    if not isinstance(entries, dict):
        raise DataError(
            f"the manifest {path} is not a JSON object; give one that maps names of corpora to entries"
        )
    return {name: _complete(name, entry, path.parent.resolve(), str(path)) for name, entry in entries.items()}


def _complete(name: str, entry: Any, folder: Path, manifest: str) -> dict[str, Any]:
    """An entry of a user's manifest with the optional keys filled in."""
    missing = [
        key for key in ("task", "languages", "sets") if not isinstance(entry, dict) or not entry.get(key)
    ]
    if missing:
        raise DataError(
            f"the corpus {name!r} of {manifest} has no {missing[0]!r}; docs/data.md describes the keys"
        )
    splits = [part.get("split") for part in entry["sets"]]
    roles = {role: role for role in ("train", "validation", "test") if role in splits}
    defaults = {
        "about": "",
        "source": manifest,
        "licence": "unknown",
        "cite": "",
        "roles": roles,
        "files": {},
    }
    complete = {**defaults, **entry}
    if "folder" in complete:
        complete["folder"] = str(folder / complete["folder"])
    return complete


def names() -> list[str]:
    """The corpora known by name."""
    return sorted(_manifest())


def find(name: str) -> NamedCorpus:
    """The corpus of that name."""
    if name not in _manifest():
        similar = difflib.get_close_matches(name, names(), 1, 0.5)
        hint = f"did you mean {similar[0]}?" if similar else "`regard data` lists them"
        raise DataError(f"no corpus is called {name!r}; {hint}")
    return NamedCorpus(name)


def named_in(data: Any) -> list[str]:
    """The known corpora that a `data:` block names, as an object or a dict."""
    block = data if isinstance(data, dict) else vars(data)
    items = [block.get("corpus")]
    for split in ("train", "validation", "test"):
        files = block.get(split) or []
        items += [files] if isinstance(files, str) else files
    candidates = [item.partition(":")[0] for item in items if isinstance(item, str)]
    return [name for name in dict.fromkeys(candidates) if name in _manifest()]


@dataclass(frozen=True)
class FileStatus:
    """The state of a file: `as named` (same bytes), `same text` (compressed differently), `differs` or
    `missing`.
    """

    file: str
    state: str


@dataclass(frozen=True)
class Download:
    """A file of the public repository, and the conversion steps to the files of the corpus."""

    path: str
    sha256: str
    bytes: int
    makes: dict[str, list[str]]


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus of the manifest."""

    name: str

    @property
    def _entry(self) -> dict[str, Any]:
        return _manifest()[self.name]

    @property
    def about(self) -> str:
        return self._entry["about"]

    @property
    def source(self) -> str:
        """The public source of the texts."""
        return self._entry["source"]

    @property
    def licence(self) -> str:
        return self._entry["licence"]

    @property
    def cite(self) -> str:
        return self._entry["cite"]

    @property
    def task(self) -> str:
        """The task it is for: one of `regard.tasks.TASKS`, or search, recommend or align."""
        return self._entry["task"]

    @property
    def languages(self) -> list[str]:
        return self._entry["languages"]

    @property
    def versions(self) -> list[str]:
        """Names of the versions of the text other than the default."""
        return sorted({subset["version"] for subset in self._entry["sets"] if "version" in subset})

    @property
    def splits(self) -> list[str]:
        """The names of its splits."""
        return list(dict.fromkeys(subset["split"] for subset in self._entry["sets"]))

    @property
    def roles(self) -> dict[str, str]:
        """Which split is used as train, validation and test."""
        return self._entry["roles"]

    @property
    def is_parallel(self) -> bool:
        """True if its rows are translations: files or columns by language, read in either direction."""
        return any(
            "files" in subset or isinstance(subset.get("columns"), dict) for subset in self._entry["sets"]
        )

    @property
    def folds(self) -> int | None:
        """The usual number of cross-validation folds of a corpus without splits."""
        return self._entry.get("folds")

    @property
    def labels(self) -> dict[str, str]:
        """Names of labels that are numbers in its files."""
        return self._entry.get("labels", {})

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        if self._entry.get("bundled"):
            return Path(__file__).parent / "samples"
        return Path(self._entry["folder"]) if "folder" in self._entry else data_folder() / self.name

    @property
    def _get(self) -> dict[str, Any]:
        return self._entry.get("get", {})

    @property
    def downloads(self) -> list[Download]:
        """The public files it is made from; empty if it is bundled or made by hand."""
        return [Download(path, **facts) for path, facts in self._get.get("downloads", {}).items()]

    @property
    def repository(self) -> str:
        """The GitHub repository of the downloads, as OWNER/NAME."""
        return self._get["repository"]

    @property
    def commit(self) -> str:
        return self._get["commit"]

    @property
    def by_hand(self) -> str:
        """Why the corpus cannot be downloaded and what to do instead; empty if it can."""
        return self._get.get("by_hand", "")

    def file(self, name: str) -> dict[str, Any]:
        """The manifest entry of a file: `text` and `packed` (SHA-256), `as` (extension), `bytes`
        (compressed).
        """
        return self._entry["files"][name]

    def present(self) -> bool:
        """True if every file of the corpus is there, whatever its content."""
        return all(self._existing(file) for file in self._entry["files"])

    def pair(self, source: str | None = None, target: str | None = None) -> tuple[str, str]:
        """Source and target language; one that is not given is the first other language of the corpus."""
        for language in (source, target):
            if language is not None and language not in self.languages:
                raise DataError(
                    f"{self.name} has no language {language!r}; it has {', '.join(self.languages)}"
                )
        if source is not None and source == target:
            raise DataError(
                f"source and target of {self.name} are both {source!r}; "
                f"choose two of {', '.join(self.languages)}"
            )
        free = [language for language in self.languages if language not in (source, target)]
        source = source or free.pop(0)
        return source, target or free.pop(0)

    def rows(
        self, split: str, source: str | None = None, target: str | None = None, version: str | None = None
    ) -> Rows:
        """The reader of a split: pairs from `source` to `target` in either direction, or lines of a text."""
        subset = self._set(split, source, target, version)
        if "text" in subset:
            return TextLines(self.path(subset["text"]), tuple(subset.get("part", (0.0, 1.0))))
        if "conll" in subset:
            return self._conll(subset["conll"])
        if "csv" in subset:
            return Csv(
                self.path(subset["csv"]),
                tuple(subset["columns"]),
                score=subset.get("score"),
                least=subset.get("least"),
            )
        if "table" in subset and not self.is_parallel:
            columns = tuple(subset["columns"])
            return Table(self.path(subset["table"]), columns, labels=tuple(self.labels.items()))
        pair = self.pair(source, target)
        if "table" in subset:
            columns = tuple(subset["columns"][language] for language in pair)
            table = Table(self.path(subset["table"]), columns)
            return HashSplitRows(table, pair.index("en"), subset["drawn"]) if "drawn" in subset else table
        return LinePairs(*(self.path(subset["files"][language]) for language in pair))

    def _conll(self, entries: list[dict[str, Any]]) -> Rows:
        """The reader of several CoNLL files; of some only a range of the sentences."""
        from regard.data.conll_reader import Conll

        parts: list[Rows] = []
        for entry in entries:
            rows = Conll(self.path(entry["file"]), columns=tuple(entry.get("columns", (1, 2))))
            parts.append(RowRange(rows, *entry["part"]) if "part" in entry else rows)
        return concatenate(parts)

    def files(
        self, split: str, source: str | None = None, target: str | None = None, version: str | None = None
    ) -> tuple[Path, ...]:
        """The files of a split."""
        return self.rows(split, source, target, version).files

    def row_count(
        self, split: str, source: str | None = None, target: str | None = None, version: str | None = None
    ) -> int | None:
        """The number of rows of a split, if the manifest has it."""
        return self._set(split, source, target, version).get("rows")

    def has(
        self, split: str, source: str | None = None, target: str | None = None, version: str | None = None
    ) -> bool:
        """True if the corpus has that split, for these languages and version; its files may be absent."""
        try:
            return bool(self._set(split, source, target, version))
        except DataError:
            return False

    def check(self) -> list[FileStatus]:
        """Compare every file with the manifest; if it is compressed differently, compare its text."""
        files = self._entry["files"]
        sizes = sum(path.stat().st_size for file in files if (path := self._existing(file)))
        with track(sizes, f"checking {self.name}", "bytes") as progress:
            return [
                FileStatus(file, self._state(file, self._existing(file), progress.advance)) for file in files
            ]

    def differing(self, hashes: dict[Path, str]) -> list[str]:
        """The files that differ from the manifest, both compressed and as text, given their SHA-256."""
        differing = []
        for file, facts in self._entry["files"].items():
            path = self._existing(file)
            if path in hashes and hashes[path] not in (facts["packed"], facts["text"]):
                # Decompressing is slow, so the checksum of the text is cached.
                cached_checksum = cache_folder() / "texts" / hashes[path]
                if not cached_checksum.is_file():
                    write_file(cached_checksum, self._text_sha256(path), CACHE_HINT)
                if cached_checksum.read_text(encoding="utf-8") != facts["text"]:
                    differing.append(file)
        return differing

    def _state(self, file: str, path: Path | None, advance: Callable[[int], None]) -> str:
        facts = self.file(file)
        if path is None:
            return "missing"
        if file_sha256(path, advance) in (facts["packed"], facts["text"]):
            return "as named"
        return "same text" if self._text_sha256(path) == facts["text"] else "differs"

    @staticmethod
    def _text_sha256(path: Path) -> str:
        digest = hashlib.sha256()
        try:
            for block in unpacked(path):
                digest.update(block)
        except DataError:
            return "cannot be unpacked"
        return digest.hexdigest()

    def _set(self, split: str, source: str | None, target: str | None, version: str | None) -> dict[str, Any]:
        if version is not None and version not in self.versions:
            fix = f"it has {', '.join(self.versions)}" if self.versions else "leave data.version out"
            raise DataError(f"{self.name} has no version {version!r}; {fix}")
        name = self.roles.get(split, split)
        subsets = [
            subset
            for subset in self._entry["sets"]
            if subset["split"] == name and subset.get("version") == version
        ]
        if not subsets:
            kind = f" of version {version}" if version else ""
            raise DataError(f"{self.name} has no split {split!r}{kind}; it has {', '.join(self.splits)}")
        if not self.is_parallel:
            return next(
                (subset for subset in subsets if subset.get("language") == (source or self.languages[0])),
                subsets[0],
            )
        pair = self.pair(source, target)
        for subset in subsets:
            if set(pair) <= set(subset.get("files") or subset["columns"]):
                return subset
        raise DataError(
            f"{self.name} has no split {name} for {pair[0]} and {pair[1]}; choose another split or pair"
        )

    def _existing(self, file: str) -> Path | None:
        return next((path for ending in ENDINGS if (path := self.folder / (file + ending)).is_file()), None)

    def path(self, file: str) -> Path:
        """The path of a file, plain, .gz or .xz."""
        if path := self._existing(file):
            return path
        if self.by_hand:
            fix = f"`regard data {self.name}` says how to get it"
        else:
            fix = f"fetch it with `regard data get {self.name}`"
        if not self.folder.is_dir():
            fix += ", or set REGARD_DATA to the folder that holds your corpora"
            raise DataError(f"the corpus {self.name} is not in {self.folder}; {fix}")
        raise DataError(f"{self.name} lacks {self.folder / file} (or .gz, .xz); {fix}")
