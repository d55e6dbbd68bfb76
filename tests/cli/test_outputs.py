"""Outputs of all commands: no input is overwritten, links stay links, errors are one sentence."""

import pytest

PAIRS = "Where is my book?\tWo ist mein Buch?\nI see a dog.\tIch sehe einen Hund.\n"
FILES = {
    "rows.tsv": "text\tlabel\na good film\tpositive\na bad film\tnegative\n",
    "pairs.tsv": PAIRS,
    "a.en": "Where is my book?\n",
    "a.de": "Wo ist mein Buch?\n",
    "notes.txt": "a good film\na bad film\n",
    "few.tsv": "label\ttext\npositive\ta good film\nnegative\ta bad film\n",
}
# Commands that would write over the file of their last argument.
COMMANDS = {
    "evaluate": "evaluate film-reviews --data rows.tsv -o rows.tsv",
    "evaluate against": "evaluate film-reviews --data rows.tsv --against notes.txt -o notes.txt",
    "align": "align -i a.en a.de --model tatoeba-en-de-fr -o a.en",
    "duplicates": "duplicates notes.txt --model film-reviews -o notes.txt",
    "label": "label a.en --examples few.tsv --model film-reviews -o few.tsv",
    "label take": "label few.tsv --take 0.5 -o few.tsv",
    "distill": "distill tatoeba-en-de-fr translator pairs.tsv --only-translate -o pairs.tsv",
    "translate": "translate -i a.en --to de -o a.en",
    "classify": "classify -i notes.txt -o notes.txt",
}


@pytest.fixture
def files(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_writes_over_its_input(regard, files, name):
    *words, output = COMMANDS[name].split()
    code, _, err = regard(*words, output)
    assert (code, err) == (2, f"regard: {output} is both input and output; name another output\n")
    (files / f"soft.{output}").symlink_to(output)
    code, _, err = regard(*words, f"soft.{output}")
    assert code == 2 and "is both input and output" in err
    assert (files / output).read_text(encoding="utf-8") == FILES[output]


@pytest.mark.parametrize("name", ["evaluate", "align", "duplicates", "label", "translate"])
def test_an_output_that_is_a_folder_or_in_none_is_refused_before_the_work(regard, files, name):
    *words, _ = COMMANDS[name].split()
    (files / "folder").mkdir()
    for output, problem in (
        ("folder", "is a folder; name a file in it"),
        ("no/file", "its folder does not exist"),
    ):
        code, out, err = regard(*words, output)
        assert code == 2 and out == "" and problem in err and err.count("\n") == 1


def test_a_link_stays_a_link_and_an_open_file_is_written_to(regard, files):
    (files / "old.txt").write_text("old\n", encoding="utf-8")
    (files / "link.txt").symlink_to("old.txt")
    assert regard("classify", "-i", "notes.txt", "-o", "link.txt")[0] == 0
    assert (files / "link.txt").is_symlink()
    assert (files / "old.txt").read_text(encoding="utf-8").split()[::2] == ["positive", "negative"]
    (files / "out").symlink_to("/dev/fd/1")
    code, out, _ = regard("classify", "-i", "notes.txt", "-o", "out")
    assert code == 0 and out.split()[::2] == ["positive", "negative"] and (files / "out").is_symlink()


def test_scores_are_printed_before_predictions_are_written(regard, files, monkeypatch):
    from regard.files import atomic

    monkeypatch.setattr(atomic, "replace_file", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    code, out, err = regard("evaluate", "film-reviews", "--data", "rows.tsv", "-o", "predictions.txt")
    assert code == 2 and "accuracy" in out and "predictions.txt cannot be written" in err


@pytest.mark.parametrize(
    "words", ["translate --to de -i", "classify -i", "resume", "runs", "average -o new", "duplicates"]
)
def test_a_sentence_in_the_place_of_a_file_is_named(regard, words):
    code, out, err = regard(*words.split(), "This is a long sentence. " * 20)
    assert (code, out) == (2, "") and "This is a long sentence." in err and "Traceback" not in err


def test_a_text_that_is_the_name_of_a_file_is_told(regard, files):
    code, _, err = regard("classify", "notes.txt")
    assert code == 0 and err == "regard: notes.txt is read as a text; add -i to read the file of that name\n"


def test_a_recommender_does_not_replace_another_folder(regard, files):
    (files / "ratings.csv").write_text(
        "userId,movieId,rating\n" + "".join(f"{i % 7},{i % 5},{1 + i % 5}\n" for i in range(40)),
        encoding="utf-8",
    )
    (files / "mine").mkdir()
    (files / "mine" / "config.json").write_text("{}", encoding="utf-8")
    fit = ("recommend", "ratings.csv", "--sweeps", "2", "-o")
    assert "mine already exists" in regard(*fit, "mine")[2]
    assert "was not written by regard" in regard(*fit, "mine", "--overwrite")[2]
    assert (files / "mine" / "config.json").read_text(encoding="utf-8") == "{}"
    assert regard(*fit, "new")[0] == 0
    assert "new already exists" in regard(*fit, "new")[2] and regard(*fit, "new", "--overwrite")[0] == 0
