"""`benchmarks.translator.publish`, `score` and `review`: folder, card and page, with a tiny model."""

import json
from pathlib import Path

import pytest
from benchmarks.translator import prepare, publish, review, score

import regard
from regard.errors import DataError, OptionError
from regard.models import catalog
from regard.pipelines.align import View
from tests.models.multilingual import TRANSFORMER, multilingual

PAIRS = [
    ("Where is he?", "Wo ist er?"),
    ("I am old.", "Ich bin alt."),
    ("Tom sat.", "Tom"),
    ("We go.", "Nun"),
]
LAYER = TRANSFORMER | {"layers": 2, "heads": 2, "inner": 256}  # large enough for int8
SCHEDULE = "step student: 90 s\nwrote /root/somewhere/model now\n"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Data, the model that came back, its logs, and the folder that `install` writes."""
    work = tmp_path_factory.mktemp("translator")
    for language in ("de", "fr"):
        for corpus in ("tatoeba", "europarl"):
            for split in ("train", "validation", "test"):
                prepare.write_pairs(work / "data", f"{corpus}-x", language, split, PAIRS)
    prepare.write_directions(work / "data", work / "directions")
    multilingual(work / "student", layer=LAYER, precision="int8")
    (work / "back").mkdir()
    (work / "back" / "schedule.txt").write_text(SCHEDULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DATA", str(work / "nothing"))  # so without gold links
        arguments = ["--data", work / "data", "--logs", work / "back", *places(work)]
        assert publish.main(["install", *map(str, [work / "student", *arguments])]) == 0
    return work


def places(work):
    return ["--folder", work / "models" / publish.NAME, "--results", work / "results"]


def test_the_installed_folder_is_the_model_with_its_settings(work):
    folder = work / "models" / publish.NAME
    model = regard.load(folder)  # verifies the checksums
    assert model.stored_precision == "int8" and model.card["name"] == publish.NAME
    assert model.card["directions"] == ["en-de", "de-en", "en-fr", "fr-en"]
    assert (folder / "model.safetensors").read_bytes() == (
        work / "student" / "model.safetensors"
    ).read_bytes()
    record = json.loads((work / "results" / "alignment.json").read_text())
    assert vars(View.of(model)) == record["chosen"]
    shares = {
        tuple(row[key] for key in ("layer", "head", "shift")): row["de"] + row["fr"]
        for row in record["agreement"]
    }
    assert len(shares) == 14 and shares[tuple(record["chosen"].values())] == max(shares.values())
    texts = [english for english, _ in PAIRS]
    assert regard.translate(texts, model, "de") == regard.translate(texts, work / "student", "de", beam=4)


def test_logs_are_kept_without_paths_of_the_machine(work):
    kept = (work / "results" / "schedule.txt").read_text()
    assert "step student: 90 s" in kept and "wrote model now" in kept and "/root" not in kept
    data = json.loads((work / "results" / "data.json").read_text())
    assert len(data) == 12 and data["tatoeba.en-de.train.tsv.xz"]["pairs"] == 4


def test_the_card_has_the_scores_of_the_log(work, monkeypatch):
    folder, log = work / "models" / publish.NAME, work / "results" / "test.json"
    with pytest.raises(DataError, match="there is no .*test.json; `install` and"):
        publish.main(["card", *map(str, places(work))])
    score.main([str(folder), str(work / "directions"), "--limit", "2", "--log", str(log), "--split", "test"])
    with pytest.raises(OptionError, match="is not about this model and whole test sets"):
        publish.main(["card", *map(str, places(work))])
    score.main([str(folder), str(work / "directions"), "--log", str(log), "--split", "test"])
    publish.main(["card", *map(str, places(work))])
    record = json.loads(log.read_text())
    assert record["beam"] == 4 and len(record["scores"]) == 8 and "tok:13a" in record["signatures"]["bleu"]
    monkeypatch.setenv("REGARD_MODELS", str(work / "models"))
    monkeypatch.setattr(catalog, "BUNDLED", work / "nothing")
    entry = catalog.known_models()[publish.NAME]
    (first,) = [row for row in record["scores"] if (row["corpus"], row["direction"]) == ("tatoeba", "en-de")]
    assert entry.scores["BLEU Tatoeba test en-de"] == round(first["bleu"], 1) and entry.default
    for text in (
        "## Data\n", "## Scores\n", "## Reproduce\n", "## Limits\n",
        "7 steps, 3 M target tokens, 1.5e+09 FLOPs, 1.5 minutes on one nothing, seed 2",
        record["signatures"]["chrf"], "Cats do not like dogs. → ",
        "regard train tatoeba-en-de-fr-sampled\n",
        json.loads((work / "results" / "data.json").read_text())["europarl.en-fr.test.tsv.xz"]["sha256"],
    ):  # fmt: skip
        assert text in entry.card, text


def test_the_rows_of_the_model_are_put_into_the_pages_once(work, tmp_path):
    folder, log = work / "models" / publish.NAME, work / "results" / "test.json"
    score.main([str(folder), str(work / "directions"), "--log", str(log), "--split", "test"])
    scores = [f"{row['bleu']:.1f}" for row in json.loads(log.read_text())["scores"]]
    for name in ("models.md", "results.md"):
        text = (Path(__file__).parents[1] / "docs" / name).read_text(encoding="utf-8")
        kept = [line for line in text.splitlines() if publish.NAME not in line]
        (tmp_path / name).write_text("\n".join(kept) + "\n", encoding="utf-8")
    for _ in range(2):
        publish.main(["docs", "--docs", str(tmp_path), *map(str, places(work))])
    models, results = ((tmp_path / name).read_text(encoding="utf-8") for name in ("models.md", "results.md"))
    assert models.count(f"\n| `{publish.NAME}` |") == 1
    assert f"BLEU {' / '.join(scores[:4])} (en-de, de-en, en-fr, fr-en)" in models
    rows = [line for line in results.splitlines() if publish.NAME in line]
    assert [row.split(",")[0] for row in rows] == ["| Tatoeba test", "| Europarl test"]
    assert f"| {' / '.join(scores[4:])} (one seed) |" in rows[1]


def test_rows_are_drawn_for_verdicts_which_stay_and_become_a_page(work, tmp_path, monkeypatch):
    monkeypatch.setattr(review, "ROWS", 3)
    table, page = tmp_path / "review.tsv", tmp_path / "page.md"
    drawing = [
        "draw",
        str(work / "directions"),
        "--model",
        str(work / "models" / publish.NAME),
        "--table",
        str(table),
    ]
    review.main(drawing)
    rows = review.read(table)
    assert [row["direction"] for row in rows] == [d for d in score.DIRECTIONS for _ in range(3)]
    model = regard.fast(regard.load(work / "student"))
    for row in rows:
        assert row["output"] == regard.translate(row["source"], model, row["direction"][3:], beam=4)
    with pytest.raises(DataError, match="12 rows of the table have no verdict yet"):
        review.main(["page", "--table", str(table), "--page", str(page)])
    judged = [row | {"verdict": "wrong", "why": "noise | noise"} for row in rows[:-1]]
    review.write(table, [*judged, rows[-1] | {"verdict": "right"}])
    review.main(drawing)  # again, with the same outputs
    assert review.counts(review.read(table)) == {"right": 1, "usable": 0, "wrong": 11}
    review.main(["page", "--table", str(table), "--page", str(page)])
    text = page.read_text()
    assert (
        text.count("\n| ") == 2 + 4 + 4 + 12
        and "wrong: noise &#124; noise |" in text
        and "| all | 1 | 0 | 11 |" in text
    )


@pytest.mark.parametrize(
    ("verdict", "why", "message"),
    [
        ("good", "", "the verdict is one of right, usable, wrong"),
        ("wrong", "", "line 2 .* say why it is wrong"),
    ],
)
def test_a_verdict_that_is_unknown_or_has_no_reason_is_an_error(tmp_path, verdict, why, message):
    row = dict.fromkeys(review.COLUMNS, "x") | {"verdict": verdict, "why": why}
    review.write(tmp_path / "review.tsv", [row])
    with pytest.raises(DataError, match=message):
        review.read(tmp_path / "review.tsv")


def test_a_model_of_another_kind_is_not_installed(work, tmp_path):
    multilingual(tmp_path / "float")
    with pytest.raises(OptionError, match="is not an int8 translator of de, en and fr"):
        publish.main(
            ["install", str(tmp_path / "float"), "--data", str(work / "data"), *map(str, places(tmp_path))]
        )
