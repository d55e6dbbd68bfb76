"""Translation scores equal sacreBLEU's, with signatures and warnings."""

import json
import random
import subprocess
import sys
from importlib.util import find_spec

import pytest

from regard.errors import DataError, OptionError
from regard.evaluation.translation import corpus_bleu, translation_scores
from tests.evaluation.test_input_checks import HYPOTHESIS, REFERENCE, translated


def sacrebleu_scores(hypotheses, documents, lowercase=False):
    from sacrebleu.metrics import BLEU, CHRF, TER

    result = {}
    for name, metric in (
        ("bleu", BLEU(lowercase=lowercase)),
        ("chrf", CHRF(lowercase=lowercase)),
        ("ter", TER()),
    ):
        result[name] = (metric.corpus_score(hypotheses, documents).score, str(metric.get_signature()))
    return result


@pytest.mark.parametrize("references", [1, 2])
@pytest.mark.parametrize("lowercase", [False, True])
def test_the_scores_are_sacrebleus_with_its_signatures(references, lowercase):
    documents = [REFERENCE, translated(REFERENCE, 0.3, seed=4)][:references]
    scores = translation_scores(
        HYPOTHESIS, documents if references > 1 else documents[0], lowercase=lowercase
    )
    for name, (score, signature) in sacrebleu_scores(HYPOTHESIS, documents, lowercase).items():
        assert getattr(scores, name) == pytest.approx(score, abs=1e-9)
        assert scores.signatures[name] == signature
    assert f"nrefs:{references}|" in scores.signatures["bleu"]
    assert (scores.lines, scores.references, scores.warnings) == (120, references, ())
    assert corpus_bleu(HYPOTHESIS, documents, lowercase=lowercase) == scores.bleu


def test_scores_of_equal_and_disjoint_texts():
    assert translation_scores(["", ""], ["a b", "c"]).ter == 100
    assert translation_scores(["a", "b"], ["", ""]).ter == 100
    assert translation_scores(["", ""], ["", ""]).ter == 0
    same = translation_scores(REFERENCE, REFERENCE)
    assert (same.bleu, same.chrf, same.ter) == (pytest.approx(100), pytest.approx(100), 0)


def test_progress_reaches_the_last_line():
    done = []
    translation_scores(HYPOTHESIS, REFERENCE, advance=done.append)
    assert sum(done) == len(HYPOTHESIS)
    assert len(done) > 1


def test_scores_print_and_become_json():
    scores = translation_scores(["", *HYPOTHESIS[1:]], REFERENCE)
    text = str(scores)
    for part in (
        f"BLEU  {scores.bleu:6.2f}",
        "tok:13a",
        "chrF",
        "nc:6",
        "TER",
        "tercom",
        "120 lines, 1 empty, 1 reference",
    ):
        assert part in text
    again = json.loads(json.dumps(scores.as_dict()))
    assert again["bleu"] == scores.bleu
    assert again["warnings"] == ["1 of 120 lines of the hypothesis is empty"]
    assert (again["empty_hypotheses"], again["empty_references"]) == (1, 0)


def test_warnings_come_with_the_scores():
    moved = [*HYPOTHESIS[1:], HYPOTHESIS[0]]
    scores = translation_scores([line.replace(".", " .") for line in moved], REFERENCE)
    assert len(scores.warnings) == 2
    assert scores.bleu < 5 < translation_scores(HYPOTHESIS, REFERENCE).bleu


def test_invalid_input_is_an_error():
    with pytest.raises(DataError, match="the hypothesis has 119 lines but the reference has 120"):
        translation_scores(HYPOTHESIS[1:], REFERENCE)
    with pytest.raises(DataError, match="look transposed: 120 lists of 2 for 120 hypotheses"):
        translation_scores(HYPOTHESIS, [[a, a] for a in REFERENCE])
    with pytest.raises(OptionError, match="tokenize must be one of none, zh, 13a"):
        translation_scores(HYPOTHESIS, REFERENCE, tokenize="moses")


@pytest.mark.skipif(find_spec("MeCab") is not None, reason="MeCab is installed")
def test_a_tokenisation_whose_package_is_missing_says_so():
    with pytest.raises(OptionError, match="tokenize='ja-mecab' needs a package or file that is missing"):
        translation_scores(HYPOTHESIS, REFERENCE, tokenize="ja-mecab")


def test_the_order_of_lines_does_not_change_corpus_bleu():
    order = random.Random(0).sample(range(len(HYPOTHESIS)), len(HYPOTHESIS))
    shuffled = translation_scores([HYPOTHESIS[i] for i in order], [REFERENCE[i] for i in order])
    assert shuffled.bleu == pytest.approx(translation_scores(HYPOTHESIS, REFERENCE).bleu, abs=1e-9)


def test_importing_the_scores_loads_neither_sacrebleu_nor_matplotlib():
    names = "translation, bleu, by_length, perplexity, training_cost, input_checks"
    code = f"import sys; from regard.evaluation import {names}; "
    code += "print(*({'sacrebleu', 'matplotlib', 'rich'} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == ""
