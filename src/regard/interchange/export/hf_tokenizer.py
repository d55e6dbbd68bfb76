"""Save our tokenizers for transformers: same ids, special tokens added, same decoded text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS, UNK, Tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, template: list[str]) -> None:
    """Write the files of a `PreTrainedTokenizerFast`.

    `template` adds special tokens to a text "$A": ["$A", SPECIALS[EOS]] for a source,
    [SPECIALS[BOS], "$A"] for a prompt.
    """
    from transformers import PreTrainedTokenizerFast

    inner = tokenizers.Tokenizer.from_str(json.dumps(_with_unknown(tokenizer)))
    inner.post_processor = processors.TemplateProcessing(
        single=template,
        pair=None,
        special_tokens=[(SPECIALS[i], i) for i in (BOS, EOS) if SPECIALS[i] in template],
    )
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=SPECIALS[PAD],
        bos_token=SPECIALS[BOS],
        eos_token=SPECIALS[EOS],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # a text that spells a special token is text
        model_input_names=["input_ids", "attention_mask"],
    )
    theirs.save_pretrained(str(folder))


def _with_unknown(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokenizer's JSON with a decoder that writes UNK as regard does.

    As a special token UNK would be skipped.
    """
    definition = json.loads(tokenizer.text)
    unknown = tokenizer._pieces[UNK]
    replace = {"type": "Replace", "pattern": {"String": SPECIALS[UNK]}, "content": unknown}
    rest = [] if definition["decoder"] is None else [definition["decoder"]]
    if tokenizer.kind == "word":  # the default decoder joins words with spaces; a Sequence must do it itself
        rest = [{"type": "Replace", "pattern": {"Regex": "^(?=.)"}, "content": " "}, {"type": "Fuse"}]
        rest.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    definition["decoder"] = {"type": "Sequence", "decoders": [replace, *rest]}
    return definition
