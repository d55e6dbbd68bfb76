"""Tests of docs/first-steps.md: train on a file, evaluate, serve, send a request."""

import json
import re
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from regard.cli import main
from tests.serving.server import process

pytestmark = pytest.mark.usefixtures("own_cache")
PAGE = (Path(__file__).parents[2] / "docs" / "first-steps.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Train on your own files")[1].split("\n## ")[0]
WALKS = [block.strip().splitlines() for block in re.findall(r"^```sh\n(.*?)^```", SECTION, re.M | re.S)]
SHORT = [
    "training.steps=4",
    "schedule.warmup=1",
    "training.validate_every=4",
    "training.save_every=4",
    "training.device=cpu",
]
FILES = {
    "reviews.csv": "review,stars\n"
    + "".join(f"a {'fine' if i % 2 else 'poor'} film {i},{'good' if i % 2 else 'bad'}\n" for i in range(60)),
    "names.conll": "".join(f"Ada\tB-PER\nis\tO\nin\tO\nTown{i}\tB-LOC\n\n" for i in range(40)),
    "pairs.tsv": "".join(f"one {i} two\teins {i} zwei\n" for i in range(60)),
}
SCORES = {"reviews.csv": "accuracy", "names.conll": "all (micro)", "pairs.tsv": "BLEU"}
ANSWERS = {"classify": "labels", "tag": "texts", "translate": "translations"}


def command(monkeypatch, capfd, line, *more):
    monkeypatch.setattr(sys, "argv", [*shlex.split(line, comments=True), *more])
    with pytest.raises(SystemExit) as stopped:
        main.run()
    out, err = capfd.readouterr()
    assert not stopped.value.code, err
    return out


def test_the_three_tutorials_end_with_a_response(monkeypatch, capfd, tmp_path):
    assert [line.split()[2] for line, *_ in WALKS] == ["classifier", "tagger", "translator"]
    monkeypatch.chdir(tmp_path)
    with ExitStack() as servers:
        prompts = []
        for train, evaluate, serve, curl in WALKS:
            name = train.split()[3]
            (tmp_path / name).write_text(FILES[name], encoding="utf-8")
            next_steps = command(monkeypatch, capfd, train, *SHORT)
            assert "FLOPs: all steps done" in next_steps
            for line in (evaluate, serve):
                assert (
                    f"  {line.split('#')[0].strip()}\n" in next_steps
                )  # the page shows what training suggests
            assert SCORES[name] in command(monkeypatch, capfd, evaluate)
            prompts.append((servers.enter_context(process(shlex.split(serve)[2])), shlex.split(curl)))
        for (_, client), words in prompts:
            route = words[1].rpartition("/")[2]
            assert client.curl.split()[1].endswith(f"/{route}")  # the request that the server suggests
            status, answer = client.post(f"/{route}", json.loads(words[words.index("-d") + 1]))
            assert status == 200 and len(answer[ANSWERS[route]]) == 1, answer
