"""A small BERT with random weights, in the folder layout of sentence-transformers."""

import pytest
import torch

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "sat",
    "##s",
    "##ing",
    "a",
    "c",
    "##at",
    ".",
    "heat",
    "flow",
]


def tiny_bert(folder, pieces=(), longest=24):
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed (regard[transformers])"
    )
    vocabulary = {
        piece: i for i, piece in enumerate(dict.fromkeys([PIECES[0], "[unused0]", *PIECES[1:], *pieces]))
    }
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    for name, p in model.named_parameters():
        if "LayerNorm" in name:
            torch.nn.init.normal_(p, 1.0, 0.3)
    model.save_pretrained(folder)
    transformers.BertTokenizerFast(vocab=vocabulary, do_lower_case=True).save_pretrained(folder)
    (folder / "sentence_bert_config.json").write_text(f'{{"max_seq_length": {longest}}}', encoding="utf-8")
    return folder
