"""Our tokenizers as ones that `transformers` loads: the same numbers, the end mark added, the same text back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from regard.data.tokenizer import BOS, EOS, PAD, SPECIALS, UNK, Tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, frame: list[str]) -> None:
    """`frame` is what a text stands in: ["$A", SPECIALS[EOS]] for a source, [SPECIALS[BOS], "$A"] for a text to be continued."""
    from transformers import PreTrainedTokenizerFast

    inner = tokenizers.Tokenizer.from_str(json.dumps(_with_unknown(tokenizer)))
    inner.post_processor = processors.TemplateProcessing(
        single=frame, pair=None, special_tokens=[(SPECIALS[i], i) for i in (BOS, EOS) if SPECIALS[i] in frame]
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
    """UNK is written as regard writes it; registered as a special token it would be left out of the text."""
    found = json.loads(tokenizer.text)
    sign = tokenizer._pieces[UNK]
    replace = {"type": "Replace", "pattern": {"String": SPECIALS[UNK]}, "content": sign}
    rest = [] if found["decoder"] is None else [found["decoder"]]
    if tokenizer.kind == "word":  # without a decoder words are joined by spaces; with one, that must be said
        rest = [{"type": "Replace", "pattern": {"Regex": "^(?=.)"}, "content": " "}, {"type": "Fuse"}]
        rest.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    found["decoder"] = {"type": "Sequence", "decoders": [replace, *rest]}
    return found
