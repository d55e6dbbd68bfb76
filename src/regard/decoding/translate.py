"""Text in, text out."""

from __future__ import annotations

import torch

from regard.data.progress import track
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decoding.search import Beam, Hypothesis, search
from regard.errors import OptionError
from regard.models.translator import Translator

BATCH_TOKENS = {"cpu": 4096, "cuda": 1 << 16}  # a GPU takes about as long for many sentences as for few


def translate(
    model: Translator,
    texts: list[str],
    *,
    beam: int = 1,
    length_penalty: float = 1.0,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    progress: bool = False,
) -> list[str]:
    """Translate sentences, in order. An empty line stays empty."""
    if isinstance(texts, str):
        raise OptionError("translate takes a list of sentences, got one string; write [text]")
    encoded = model.source_tokenizer.encode_batch(texts)  # type: ignore[operator, union-attr]
    found = translate_tokens(
        model, encoded, beam=Beam(beam, length_penalty), max_length=max_length, batch_tokens=batch_tokens, progress=progress
    )
    return [model.target_tokenizer.decode(h[0].tokens) if h else "" for h in found]  # type: ignore[operator, union-attr]


def translate_tokens(
    model: Translator,
    sentences: list[list[int]],
    *,
    beam: Beam,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    progress: bool = False,
) -> list[list[Hypothesis]]:
    """The best texts of each sentence of token ids. Sentences of like length share a batch."""
    if max_length is not None and max_length < 1:
        raise OptionError(f"max_length must be at least 1, got {max_length}")
    found: list[list[Hypothesis]] = [[] for _ in sentences]
    device = next(model.parameters()).device
    batch_tokens = batch_tokens or BATCH_TOKENS.get(device.type, 4096)
    training = model.training
    model.eval()
    with track(len(sentences) if progress else 0, "translate", "sentences") as bar:
        for rows in _batches([len(s) for s in sentences], batch_tokens // beam.size):
            ids = [[*sentences[i], EOS] for i in rows]
            longest = max(map(len, ids))
            source = torch.tensor([s + [PAD] * (longest - len(s)) for s in ids], device=device)
            lengths = torch.tensor([len(s) for s in ids], device=device)
            limits = [max_length or len(s) * 3 // 2 + 20 for s in ids]
            with torch.inference_mode():
                memory = model.encode(source, lengths)
            texts = search(model, memory, source.new_full((len(rows),), BOS), limits, beam)
            for i, text in zip(rows, texts, strict=True):
                found[i] = text
            bar.advance(len(rows))
    model.train(training)
    return found


def _batches(lengths: list[int], tokens: int) -> list[list[int]]:
    """Rows sorted by length, longest first so that memory runs out at once if at all; empty ones are left out."""
    order = sorted((i for i, n in enumerate(lengths) if n), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    for i in order:
        if not batches or (len(batches[-1]) + 1) * (lengths[batches[-1][0]] + 1) > tokens:
            batches.append([])
        batches[-1].append(i)
    return batches
