"""benchmarks/align.py: the training text, choices that do not see what they score, and a tiny run."""

import gzip
import json
import lzma

import pytest
import torch
from benchmarks import align, align_peer
from benchmarks.align import HEAD, JOINT, MEAN, Scored, Task

from regard.evaluation.alignment import AlignmentScore, Gold

TASK = Task("de", "europarl", "gold", None, "wa", 0, True)


@pytest.fixture
def corpora(tmp_path, monkeypatch):
    """A corpus of three training pairs, one of them empty, and two gold pairs."""
    monkeypatch.setattr(align, "data_folder", lambda: tmp_path)
    texts = {"train.en": "The eu-budget.\n\nYes!\n", "train.de": "Der EU-Haushalt.\nNein.\nJa!\n"}
    texts |= {"dev.en": "A dog\n", "dev.de": "Ein Hund\n"}
    gold = {"test.en": "good morning\nno\n", "test.de": "guten morgen\nNein\n", "test.wa": "0-0 1-1\n0-0\n"}
    (tmp_path / "europarl").mkdir()
    (tmp_path / "gold").mkdir()
    for name, text in texts.items():
        (tmp_path / "europarl" / f"{name}.xz").write_bytes(lzma.compress(text.encode()))
    for name, text in gold.items():
        (tmp_path / "gold" / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def test_the_training_text_has_the_gold_text_without_its_links(corpora, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    align.write_text(TASK, folder, None, copies=2)
    english = (folder / "train.en").read_text(encoding="utf-8").splitlines()
    german = (folder / "train.de").read_text(encoding="utf-8").splitlines()
    assert english == [*["good morning", "no"] * 2, "the eu-budget .", "yes !"]
    assert german == [*["guten morgen", "nein"] * 2, "der eu-haushalt .", "ja !"]
    assert (folder / "dev.de").read_text(encoding="utf-8") == "ein hund\n"
    assert align._short_sentences(folder, 3) == (
        ["good morning", "no", "the eu-budget ."],
        ["guten morgen", "nein", "der eu-haushalt ."],
    )
    (folder / "train.en").write_text("kept\n", encoding="utf-8")
    align.write_text(TASK, folder, None)
    assert (folder / "train.en").read_text(encoding="utf-8") == "kept\n"


def test_without_a_trial_set_no_pair_is_scored_by_a_choice_that_saw_it():
    """Weights a are right in the first half and wrong in the second, b the other way round: a choice on the
    scored half would make no error, one on the other half makes only errors.
    """
    right, wrong = torch.eye(2), torch.eye(2).flip(0)
    gold = [Gold(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1)}))] * 4
    side = {"a": [right, right, wrong, wrong], "b": [wrong, wrong, right, right]}
    scored = align._score_halves("attention", (side, side), gold)
    assert scored.trial_aer == 0 and scored.score.aer == 1
    assert "forward b" in scored.choice and "forward a" in scored.choice


def test_each_kind_of_weights_is_chosen_by_itself():
    side = {"layer 0, reads": [], HEAD: [], JOINT: [], MEAN: []}
    weights = (side, side)
    names = [list(align.chosen_from(weights, kind)[0]) for kind in align.KINDS]
    assert names == [["layer 0, reads"], [HEAD], [JOINT], [MEAN]]


def test_the_table_marks_the_row_with_the_lowest_error_on_the_trial_set():
    def scored(name, trial, aer):
        return Scored(name, AlignmentScore(aer, 0.9, 0.8, 1, 1, 1, 1), trial, "how")

    *_, first, second = align.table([scored("one", 0.2, 0.1), scored("two", 0.1, 0.3)]).splitlines()
    assert first == "| one | 20.0 | 10.0 | 90.0 | 80.0 | how |" and second.startswith(
        "| **two** | 10.0 | 30.0 "
    )


def test_an_interrupted_translator_is_not_finished(tmp_path):
    assert not align.is_finished(tmp_path)
    for finished in (False, True):
        (tmp_path / "report.json").write_text(json.dumps({"finished": finished}), encoding="utf-8")
        assert align.is_finished(tmp_path) is finished


def test_stored_weights_are_those_that_were_scored(corpora, tmp_path):
    draw = torch.Generator().manual_seed(0)
    forward = [torch.rand(2, 2, generator=draw), torch.rand(1, 1, generator=draw)]
    sides = {"layer 0, reads": forward}, {"layer 1, generates": [w.T.contiguous() for w in forward]}
    align.save_weights(tmp_path / "weights.npz", {"test": sides})
    loaded = align.load_weights(tmp_path / "weights.npz", TASK)["test"]
    for side, again in zip(sides, loaded, strict=True):
        assert list(side) == list(again)
        for a, b in zip(*(next(iter(x.values())) for x in (side, again)), strict=True):
            assert torch.allclose(a.double(), b, atol=1e-3)
    (row,) = align.evaluate(TASK, {"test": loaded})
    assert row.name == "attention" and row.score.sentences == 2


@pytest.mark.slow
@pytest.mark.parametrize("language", ["fr", "de"])
def test_a_tiny_run_goes_through_every_part_and_resumes(language, tmp_path, capsys):
    if not (align.data_folder() / align.TASKS[language].corpus).is_dir():
        pytest.skip("needs Europarl in REGARD_DATA")
    arguments = [language, "--tiny", "--folder", str(tmp_path)]
    assert align.main(arguments) == 0
    log = json.loads((tmp_path / f"align-{language}.json").read_text(encoding="utf-8"))
    assert [row["links"] for row in log["rows"]] == list(align.KINDS)
    assert log["pairs"] > 500 and [t["steps"] for t in log["translators"]] == [8, 8]
    table = capsys.readouterr().out
    assert align.main(arguments) == 0
    assert capsys.readouterr().out == table
    assert align.main([language, "--weights", str(tmp_path / language / "weights.npz")]) == 0
    again = capsys.readouterr().out
    assert all(f"| {name} |" in again.replace("*", "") for name in align.KINDS)


def test_the_peer_gets_the_same_text_and_its_links_are_read(corpora, tmp_path):
    """The program here writes the diagonal; the last pairs are the test set."""
    program = tmp_path / "diagonal"
    program.write_text(
        "#!/usr/bin/env python3\n"
        "import sys\n"
        "options = dict(zip(sys.argv[1:], sys.argv[2:]))\n"
        "rows = open(options['-s']).read().splitlines()[1:]\n"
        "text = ''.join(' '.join(f'{i}-{i}' for i in range(int(r.split()[0]))) + chr(10) for r in rows)\n"
        "for name in ('-f', '-r'):\n"
        "    open(options[name], 'w').write(text)\n"
    )
    program.chmod(0o755)
    folder = tmp_path / "peer"
    folder.mkdir()
    align.write_text(TASK, folder, None)
    forward, backward = align_peer.align_both(TASK, folder, str(program))
    assert forward == backward == [{(0, 0), (1, 1)}, {(0, 0)}]
    ids = (folder / "eflomal.source").read_text(encoding="utf-8").splitlines()
    assert ids == ["4 8", "3 0 1 2", "2 3 4", "2 5 6", "1 7"]  # Europarl, then the gold text once
    assert "| intersection | 0.0 | 100.0 | 100.0 |" in align_peer.table(TASK, forward, backward)
