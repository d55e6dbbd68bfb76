"""Hugging Face folders with random weights and trained tokenizers, as save_pretrained writes them."""

import tokenizers as tk
import transformers as hf
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from tests.huggingface.families import FAMILIES
from tests.interchange.marian_folders import save_marian
from tests.interchange.small_models import ENGLISH

KINDS = ("BERT", "GPT-2", "Marian", "Llama")


def save(kind, folder, **changes):
    """Write a folder of one of KINDS; return its path."""
    folder.mkdir(exist_ok=True)
    if kind == "Marian":
        save_marian(folder, decoder_layers=2)
        return folder
    family = next(f for f in FAMILIES if f.name == kind)
    tokenizer = TOKENIZERS[kind]()
    model = family.build(vocab_size=len(tokenizer), **changes)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_as(kind, model_class, folder, **changes):
    """Write a folder of the same family with another head, such as BertForTokenClassification."""
    family = next(f for f in FAMILIES if f.name == kind)
    tokenizer = TOKENIZERS[kind]()
    options = {**family.options, "vocab_size": len(tokenizer), **changes}
    getattr(hf, model_class)(getattr(hf, family.config)(**options)).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def word_pieces():
    tokenizer = tk.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        ENGLISH, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, sep_token="[SEP]", mask_token="[MASK]", model_max_length=64, **names
    )


def byte_level():
    tokenizer = tk.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        ENGLISH,
        trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def metaspace():
    tokenizer = tk.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(
        ENGLISH, trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


TOKENIZERS = {"BERT": word_pieces, "GPT-2": byte_level, "Llama": metaspace}
