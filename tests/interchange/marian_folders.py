"""MarianMT folders as Hugging Face publishes them (Helsinki-NLP/opus-mt-…): tiny, with random weights."""

import json
import warnings
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tests.interchange.small_models import ENGLISH, GERMAN

LANGUAGES = (">>deu<<", ">>fra<<", ">>zho_Hans<<")
LINES = {"source": ENGLISH, "target": GERMAN}


@cache
def sentencepiece_model(side, **options):
    """Train a SentencePiece model and return the bytes of its file; a tuple stands for a list."""
    import sentencepiece

    options = {name: list(x) if isinstance(x, tuple) else x for name, x in options.items()}
    with TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES[side]),
            model_prefix=f"{folder}/trained",
            minloglevel=2,
            **{"vocab_size": 400, **options},
        )
        return Path(folder, "trained.model").read_bytes()


def save_marian(folder, *, spm=None, separate=False, languages=(), missing=40, **changes):
    """Save a MarianMT with these options of SentencePiece and of MarianConfig; return the model."""
    import sentencepiece
    import transformers

    spm = spm or {}
    files = {"source": "vocab.json", "target": "target_vocab.json" if separate else "vocab.json"}
    vocabularies = {name: {"</s>": 0, "<unk>": 1} for name in files.values()}
    for side, name in files.items():
        (folder / f"{side}.spm").write_bytes(sentencepiece_model(side, **spm))
        model = sentencepiece.SentencePieceProcessor(str(folder / f"{side}.spm"))
        for i in range(3, model.get_piece_size()):
            if not missing or i % missing:  # a few pieces are missing, as in some published vocabularies
                vocabularies[name].setdefault(model.id_to_piece(i), len(vocabularies[name]))
    for code in languages:
        vocabularies["vocab.json"][code] = len(vocabularies["vocab.json"])
    pad = max(map(len, vocabularies.values()))
    for name, vocabulary in vocabularies.items():
        vocabulary["<pad>"] = pad
        (folder / name).write_text(json.dumps(vocabulary), encoding="utf-8")
    settings = {"separate_vocabs": separate, "source_lang": "eng", "target_lang": "deu"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(1)
    config = transformers.MarianConfig(**{
        "vocab_size": pad + 1, "d_model": 32, "encoder_layers": 2, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 40, "activation_function": "swish", "max_position_embeddings": 512,
        "scale_embedding": True, "share_encoder_decoder_embeddings": not separate,
        "pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "init_std": 0.3, **changes,
    })  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    model.final_logits_bias.normal_()
    model.final_logits_bias[0, 0] += 6  # outputs that end
    model.generation_config.update(
        bad_words_ids=[[pad]], num_beams=4, max_length=512, renormalize_logits=True
    )
    model.save_pretrained(folder)
    return model


def marian_tokenizer(folder):
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends sacremoses, which is not needed here
        return transformers.MarianTokenizer.from_pretrained(folder)
