"""How good a model is on a text it did not learn from: loss always, BLEU of real translations for translators."""

from __future__ import annotations

import json
from typing import Any

from regard.decoding.score import negative_log_likelihood
from regard.decoding.translate import translate
from regard.evaluation.language import LanguageScores, measure, perplexity
from regard.evaluation.suspicion import tokenised
from regard.evaluation.text import corpus_bleu
from regard.training.distributed import World
from regard.training.material import Material
from regard.training.schema import Recipe


def validate(
    model: Any, material: Material, split: str, recipe: Recipe, world: World, beam: int, progress: bool = False
) -> dict[str, Any]:
    """Loss (nats per token), perplexity and, for translators, BLEU on a split; the processes share the work and all get the result.

    `model` is whole on every process and has its tokenizers on it.
    """
    part = json.dumps(_part(model, material, split, recipe, world, beam, progress)).encode()
    parts = world.gather(part)
    return world.together(lambda: _scores([json.loads(p) for p in parts], material, split))


def _part(model: Any, material: Material, split: str, recipe: Recipe, world: World, beam: int, progress: bool) -> dict[str, Any]:
    """This process's share: sums, and every size-th line translated."""
    nll, tokens = negative_log_likelihood(model, material.batches(split, recipe, world))
    if recipe.task != "translate":
        return {"nll": nll, "tokens": tokens}
    sources, _ = material.texts(split)
    options = recipe.decoding
    texts = translate(
        model, sources[world.rank :: world.size], beam=beam, length_penalty=options.length_penalty, max_length=options.max_length,
        progress=progress and world.first,
    )  # fmt: skip
    return {"nll": nll, "tokens": tokens, "texts": texts}


def _scores(parts: list[dict[str, Any]], material: Material, split: str) -> dict[str, Any]:
    nll, tokens = sum(p["nll"] for p in parts), sum(p["tokens"] for p in parts)
    scores: dict[str, Any] = {"loss": nll / tokens, "perplexity": perplexity(nll, tokens)}
    if "texts" not in parts[0]:
        lines = material.texts(split)[1]
        text = LanguageScores(nll, tokens, measure(lines))
        scores |= {"word_perplexity": text.word_perplexity, "bits_per_character": text.bits_per_character}
    else:
        _, references = material.texts(split)
        found = [""] * len(references)
        for rank, part in enumerate(parts):
            found[rank :: len(parts)] = part["texts"]
        scores["bleu"] = corpus_bleu(found, references)
        if tokenised(references):  # published scores of such text are on its own tokens
            scores["tokenised_bleu"] = corpus_bleu(found, references, tokenize="none")
        scores["sample"] = found[0] if found else ""
    return scores
