"""The explorer without a server, in Chromium: does its engine translate as PyTorch does, and how fast?"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tests.explorer.toy import files_served

from benchmarks.peers import machine
from regard.data import corpora
from regard.decoding.batching import evaluation_mode
from regard.decoding.beam import GREEDY
from regard.errors import OptionError
from regard.explorer.static_site import write_site
from regard.models.autoregressive import log_probabilities
from regard.models.folder import load
from regard.models.target_language import add_target, language_of
from regard.pipelines.translate import translate_tokens

NEAR = 1e-4  # of log p: tokens this close are equally good
ABOUT = """\
Writes the site of each translator, opens it in Chromium and translates sentences of the Tatoeba sample there,
greedily, with all attention weights. The tokens are compared with those of PyTorch for the same int8 weights;
a difference at a step where the two best tokens of PyTorch are within 1e-4 is counted as a near tie. Tokens
per second include encoding."""
TRANSLATE = """async ([address, texts]) => {
  const api = await import(`${address}api.js`);
  const started = performance.now();
  await api.describeModel();
  const results = [], loaded = performance.now() - started;
  for (const text of texts) {
    const before = performance.now(), { output, sides } = await api.run({ text });
    results.push([output.text, sides.target.tokens, performance.now() - before]);
  }
  return { results, loaded };
}"""


def in_chromium(site: Path, texts: list[str]) -> dict[str, Any]:
    """Translate with the engine of a site."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise OptionError("there is no Chromium on this machine; install it with apt-get install chromium")
    with sync_playwright() as session, files_served(site) as address:
        browser = session.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(f"{address}mechanism.html")  # a page of the site that runs nothing by itself
        translated = page.evaluate(TRANSLATE, [address, texts])
        return translated | {"version": browser.version}


@torch.no_grad()
def is_near_tie(model: Any, ids: list[int], common: list[int]) -> bool:
    """True if the two best tokens after a common beginning of two outputs are within NEAR."""
    with evaluation_mode(model):
        scores = model(torch.tensor([ids]), torch.tensor([[2, *common]]), torch.tensor([len(ids)]))[0, -1]
    first, second = log_probabilities(scores.double()).topk(2).values.tolist()
    return first - second < NEAR


def compare(folder: Path, texts: list[str]) -> dict[str, Any]:
    """Compare the engine of the page with PyTorch on texts; return counts and speeds."""
    with tempfile.TemporaryDirectory() as temporary:
        site = Path(temporary) / "site"
        write_site(site, load(folder), folder.name)
        model = load(site / "model")  # the same int8 weights
        translated = in_chromium(site, texts)
    sources = [model.source_tokenizer.encode(text) for text in texts]
    started = time.perf_counter()
    outputs = [translate_tokens(model, [ids], strategy=GREEDY)[0][0].all_tokens for ids in sources]
    seconds = time.perf_counter() - started
    counts = {"equal": 0, "near ties": 0, "different": 0}
    for ids, output, (_, tokens, _) in zip(sources, outputs, translated["results"], strict=True):
        expected = model.target_tokenizer.tokens(output)
        at = next(
            (i for i, (a, b) in enumerate(zip(expected, tokens, strict=False)) if a != b), len(expected)
        )
        if expected == tokens:
            counts["equal"] += 1
        elif is_near_tie(model, [*ids, 3], output[:at]):
            counts["near ties"] += 1
        else:
            counts["different"] += 1
    total = sum(len(tokens) for _, tokens, _ in translated["results"])
    return {
        "model": folder.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "sentences": len(texts),
        **counts,
        "tokens": total,
        "tokens/s in Chromium": total / sum(ms for *_, ms in translated["results"]) * 1000,
        "tokens/s in PyTorch": sum(map(len, outputs)) / seconds,
        "seconds to load": translated["loaded"] / 1000,
        "chromium": translated["version"],
    }


def main(arguments: list[str]) -> int:
    """Print a line per model; exit code 1 if an output differs without a near tie."""
    parser = argparse.ArgumentParser("benchmarks.explorer_static", description=ABOUT)
    parser.add_argument("models", nargs="+", type=Path, help="model folders of translators")
    parser.add_argument("--sentences", type=int, default=200, help="sentences to translate")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    rows, load_average = [], machine.load_average()
    for folder in options.models:
        source, target = "en", "de"
        if language_of(load(folder).card, "source") == "de":
            source, target = target, source
        rows_of_test = corpora.find("tatoeba-sample").rows("test", source, target)
        texts = [text for text, _ in islice(rows_of_test, options.sentences)]
        texts = add_target(texts, load(folder), target)  # of a model of several languages
        row = compare(folder, texts)
        rows.append(row)
        print(
            f"{row['model']} ({row['parameters']:,} parameters): of {row['sentences']} sentences "
            f"{row['equal']} equal, {row['near ties']} near ties, {row['different']} different; "
            f"{row['tokens/s in Chromium']:.0f} tokens/s in Chromium {row['chromium']}, "
            f"{row['tokens/s in PyTorch']:.0f} in PyTorch; "
            f"loaded in {row['seconds to load']:.2f} s"
        )
    print(machine.stamp(machine.cpu_text(machine.cpu_facts(load_average))))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return int(any(row["different"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
