"""Figures of docs/pictures.md, classifying.md, probing.md, your-own-model.md."""

from __future__ import annotations

import torch
from translator_figures import SENTENCE

import regard
from regard.diagrams import position_similarity
from regard.evaluation import bias_probe
from regard.pictures import HeadGrid, Picture

RECURRENT = {"kind": "recurrent", "width": 512}


def heat_map(small: regard.models.Translator) -> Picture:
    """The cross-attention of a translation as a heat map, the mean of the last layer's heads."""
    return regard.translate(SENTENCE, small, beam=4, attention=True).attention.picture(layer=1)


def lines(small: regard.models.Translator) -> Picture:
    """One head of it as lines."""
    attention = regard.translate(SENTENCE, small, beam=4, attention=True).attention
    layer, head = attention.best_head()
    return attention.picture("lines", layer=layer, head=head)


def grid(small: regard.models.Translator) -> Picture:
    """The cross-attention of every layer and head of a Transformer."""
    return regard.translate(SENTENCE, small, beam=4, attention=True).attention.picture("grid")


def review(sst2_attention: regard.models.Classifier) -> Picture:
    """The words of a film review with the weights of attention pooling."""
    return regard.classify("not a bad film at all", sst2_attention, attention=True).attention.picture()


def minilm() -> Picture:
    """One layer of all-MiniLM-L6-v2 with attn_implementation="regard": every head on one sentence."""
    from transformers import AutoModel, AutoTokenizer

    from regard.models.bert import minilm_folder

    regard.huggingface.register()
    folder = minilm_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="regard").eval()
    inputs = tokenizer("the cat sat on the mat because it was tired", return_tensors="pt")
    with torch.no_grad(), regard.watch(model) as seen:
        model(**inputs)
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    title = "Layer 3 of all-MiniLM-L6-v2: every head"
    return seen["encoder.layer.2.attention.self"].picture("grid", rows=tokens, title=title)


def probe() -> Picture:
    """The attention from a pronoun to two nouns, in every layer and head of a bundled language model."""
    sentence = "The [doctor] called the [nurse] because {she|he} was late."
    return bias_probe("shakespeare-small", [sentence]).sentences[0].picture()


def transformer() -> Picture:
    return regard.draw("transformer-base")


def bahdanau() -> Picture:
    return regard.draw(_translator({"kind": "bahdanau"}))


def no_attention() -> Picture:
    return regard.draw(_translator({"kind": "recurrent", "attention": "none"}))


def _translator(decoder: dict[str, str]) -> regard.models.Translator:
    return regard.build({"dim": 512, "encoder": RECURRENT, "decoder": decoder}, 10, 10)


def dynamic_weights() -> Picture:
    """A fixed matrix that mixes eight positions beside attention, for two inputs."""
    torch.manual_seed(0)
    mixing, attention = torch.nn.Linear(8, 8), regard.MultiHead(16, heads=1).eval()
    rows = {}
    for i in (1, 2):
        with torch.no_grad(), regard.watch(attention) as seen:
            attention(2 * torch.randn(1, 8, 16))
        fixed = mixing.weight.detach().abs()
        rows[f"input {i}"] = torch.stack([fixed / fixed.max(), seen["self"].weights(batch=0, head=0)])
    columns = ["|W| of a layer", "attention"]
    return HeadGrid(rows, title="Fixed and dynamic weights", columns=columns)


def position_schemes() -> Picture:
    return position_similarity(length=18)
