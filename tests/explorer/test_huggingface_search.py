"""Tests of huggingface_search.py: the beam search of Hugging Face models, its tree, forced tokens."""

import math

import pytest

pytest.importorskip("transformers", minversion="5")

from regard.errors import OptionError
from regard.explorer.run_job import Job

TEXT = "The man is eating food."


def path_of(tree, node):
    ids = []
    while node:
        ids, node = [tree["nodes"][node]["id"], *ids], tree["nodes"][node]["parent"]
    return ids


@pytest.mark.parametrize("kind", ["GPT-2", "Marian", "Llama"])
def test_the_tree_holds_the_hypotheses_and_their_probabilities(huggingface, kind):
    model = huggingface(kind)
    run, tree = model.run(Job(TEXT, beam=3)), model.search_tree(Job(TEXT, beam=3))
    assert [h["text"] for h in tree["hypotheses"]] == [h["text"] for h in run.output["hypotheses"]]
    assert {"kept", "pruned"} <= {node["status"] for node in tree["nodes"]}
    for hypothesis in tree["hypotheses"]:
        last = hypothesis["nodes"][-1]
        target = path_of(tree, last)
        assert tree["nodes"][last]["score"] == pytest.approx(hypothesis["score"])
        if kind == "Marian":
            expected = model._sum_log_p(run.private["source"], target, 0)
        else:
            prompt = model._read(TEXT)
            expected = model._sum_log_p(None, [*prompt, *target], len(prompt) - 1)
        assert hypothesis["logP"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["GPT-2", "Marian"])
def test_a_pruned_token_can_be_forced_and_decoding_continues(huggingface, kind):
    model = huggingface(kind)
    tree = model.search_tree(Job(TEXT))
    pruned = next(
        i for i, n in enumerate(tree["nodes"])
        if n["step"] == 3 and n["status"] == "pruned" and n["id"] not in model.ends
    )  # fmt: skip
    prefix = tuple(path_of(tree, pruned))
    forced = model.search_tree(Job(TEXT, beam=2, prefix=prefix))
    chain = [n for n in forced["nodes"] if 0 < n["step"] <= 3]
    assert tuple(n["id"] for n in chain) == prefix
    assert chain[-1]["logP"] == pytest.approx(tree["nodes"][pruned]["logP"], rel=1e-4)
    run = model.run(Job(TEXT, beam=2, prefix=prefix))
    assert run.output["text"] == forced["hypotheses"][0]["text"] and run.output["forced"]
    target = run.private["target"] if kind == "Marian" else run.private["target"][len(model._read(TEXT)) :]
    assert tuple(target[:3]) == prefix


def test_words_and_complete_translations_can_be_forced(huggingface):
    tree = huggingface("GPT-2").search_tree(Job(TEXT), "man")
    assert huggingface("GPT-2").tokenizer.decode(tree["prefix"]) == " man"
    run = huggingface("Marian").run(Job(TEXT, target="Der Mann isst."))
    assert run.output["text"] == "Der Mann isst." and run.output["ended"]
    assert math.isfinite(run.output["logP"])
    for kind, job, message in (
        ("Marian", Job(TEXT, prefix=(10**6,)), "token 1000000 cannot be forced"),
        ("Marian", Job(TEXT, prefix=(0, 5)), "end of the text can only be the last"),
        ("Marian", Job(TEXT, target="日本"), "'日本' is not in the vocabulary"),
        ("GPT-2", Job(TEXT, target="Hallo"), "on a translator only"),
        ("GPT-2", Job(TEXT, prefix=(5,) * 500), "500 tokens are forced, and the output has room for"),
        ("BERT", Job(TEXT), "generates no text, so there is no search"),
    ):
        with pytest.raises(OptionError, match=message):
            huggingface(kind).search_tree(job)


def test_forbidden_tokens_and_several_end_tokens_of_a_generation_config_are_used(huggingface, monkeypatch):
    model = huggingface("Marian")
    config, unconstrained = model.model.generation_config, model.run(Job(TEXT))
    first = unconstrained.private["target"][0]
    monkeypatch.setattr(config, "bad_words_ids", [[first]])
    forbidden = model.run(Job(TEXT, beam=2))
    assert first not in forbidden.private["target"]
    monkeypatch.setattr(config, "bad_words_ids", None)
    monkeypatch.setattr(config, "eos_token_id", [0, first])  # the likeliest token now ends the text
    ended = model.run(Job(TEXT))
    assert ended.private["target"] == [first] and ended.output["ended"]
    assert ended.output["logP"] == pytest.approx(unconstrained.output["tokenLogP"][0], rel=1e-5)
