"""Tiny models of every kind, with given or random weights."""

import json

import numpy as np
import torch

import regard
from regard.data.frame_encoder import FrameEncoder
from regard.data.tokenizer import EOS, Tokenizer
from regard.models.build import build

WORDS = "one two three four five six seven eight".split()
POOLING = {"kind": "attention"}
BILSTM = {"kind": "recurrent", "cell": "lstm", "width": 8}
TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 16}


def word_tokenizer():
    return Tokenizer.train([" ".join(WORDS)] * 2, "word", 20)


def classifier(encoder="embedding", pooling=POOLING, *, labels=("no", "yes"), dim=8, seed=0):
    """A classifier with random weights."""
    source, target = word_tokenizer(), Tokenizer.labels(list(labels))
    encoder = {"kind": encoder} if isinstance(encoder, str) else encoder
    config = {"kind": "classifier", "dim": dim, "dropout": 0.0, "encoder": encoder, "pooling": pooling}
    return _with_tokenizers(config, source, target, seed)


def exposed_classifier(eos_value=0.0):
    """A classifier whose attention is the explanation.

    The vector of a word is (its strength, 1), of EOS (0, eos_value). The query reads the strength, the head
    reads the attended second component: p(yes) grows with the attention to words. With eos_value 1 the output
    does not depend on attention.
    """
    model = classifier(dim=2)
    with torch.no_grad():
        table = model.source.table.weight
        table.zero_()
        for at, word in enumerate(WORDS):
            table[model.source_tokenizer.encode(word)[0]] = torch.tensor([0.2 * (at + 1), 1.0])
        table[EOS] = torch.tensor([0.0, eos_value])
        model.pooling.query.copy_(torch.tensor([[2.0, 0.0]]))
        for name in ("Wq", "Wk", "Wv"):
            projection = getattr(model.pooling.attention, name)
            projection.weight.copy_(torch.eye(2))
            projection.bias.zero_()
        model.head.labels.weight.copy_(torch.tensor([[0.0, -1.0], [0.0, 2.0]]))
        model.head.labels.bias.zero_()
    return model


def tagger(**options):
    tags = Tokenizer.labels(["O", "B-X", "I-X"])
    config = {"kind": "tagger", "dim": 8, "dropout": 0.0, "encoder": TRANSFORMER, "crf": False, **options}
    return _with_tokenizers(config, word_tokenizer(), tags, 1)


def translator(decoder, encoder=TRANSFORMER):
    tokenizer = word_tokenizer()
    config = {"kind": "autoregressive", "dim": 8, "dropout": 0.0, "encoder": encoder, "decoder": decoder}
    return _with_tokenizers(config, tokenizer, tokenizer, 3)


def language_model():
    config = {"kind": "autoregressive", "dim": 8, "dropout": 0.0, "decoder": TRANSFORMER}
    return _with_tokenizers(config, None, word_tokenizer(), 4)


def frames(count, seed=0):
    """A sequence of `count` frames with 3 channels."""
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def frame_encoder():
    return FrameEncoder(json.dumps({"frames": {"mean": [0.1, 0.0, -0.2], "deviation": [1.0, 2.0, 0.5]}}))


def frame_classifier(encoder="embedding", pooling=POOLING, *, labels=("no", "yes"), seed=0):
    encoder = {"kind": encoder} if isinstance(encoder, str) else encoder
    config = {"kind": "classifier", "dim": 8, "dropout": 0.0, "encoder": encoder, "pooling": pooling}
    target = Tokenizer.labels(list(labels))
    return _with_tokenizers({**config, "input": "frames"}, frame_encoder(), target, seed)


def frame_tagger():
    config = {"kind": "tagger", "dim": 8, "dropout": 0.0, "encoder": TRANSFORMER, "input": "frames"}
    return _with_tokenizers(config, frame_encoder(), Tokenizer.labels(["O", "B-X", "I-X"]), 1)


def frame_translator(decoder=TRANSFORMER):
    config = {"kind": "autoregressive", "dim": 8, "dropout": 0.0, "encoder": TRANSFORMER, "decoder": decoder}
    config |= {"input": "frames", "tie": "target"}
    return _with_tokenizers(config, frame_encoder(), word_tokenizer(), 3)


def _with_tokenizers(config, source, target, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(config, None if source is None else len(source), len(target)).eval()
        for p in model.parameters():
            if p.ndim > 1:
                p.data.mul_(2)  # attention that is not uniform, outputs that are not certain
    model.source_tokenizer, model.target_tokenizer, model.card = source, target, {}
    return model


def weights_of(model, name, *inputs):
    with torch.no_grad(), regard.watch(model) as seen:
        model(*inputs)
    return seen[name].weights(batch=0)


def huggingface_tokenizer():
    """[CLS] words [SEP], as BERT's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    inner = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)
