"""Whether the parts of a recipe fit together: each rule gives a sentence, and the whole list is weighed before any work."""

from __future__ import annotations

import re
from collections.abc import Iterator

from regard.models.schema import (
    AutoregressiveBlock,
    Bahdanau,
    Convolutional,
    EmbeddingOnly,
    Kim,
    Recurrent,
    RecurrentDecoder,
    Stacked,
    Transformer,
)
from regard.models.text_schema import AttentionPooling, Classifier, ConcatPooling, Embedder, Pooling
from regard.recipe.schema import Cosine, InverseSqrt, Recipe
from regard.tasks import task_of

AnyEncoder = Transformer | Recurrent | Convolutional | Stacked | EmbeddingOnly | Kim


def check_recipe(recipe: Recipe) -> list[str]:
    """Everything that cannot work, one sentence each; empty when all is well."""
    return [
        *_task(recipe),
        *_start(recipe),
        *_data(recipe),
        *_words(recipe),
        *_reading(recipe),
        *_writing(recipe),
        *_course(recipe),
    ]


def encoder_width(recipe: Recipe) -> int:
    """Width of the states a decoder attends to."""
    encoder, dim = recipe.model.encoder, recipe.model.dim
    if isinstance(encoder, Kim):
        return encoder.width * len(encoder.kernels)
    return (encoder.width or dim) if isinstance(encoder, Recurrent | Convolutional) else dim


def decoder_width(recipe: Recipe) -> int:
    """Width of the states a decoder attends with and predicts from."""
    assert isinstance(recipe.model, AutoregressiveBlock)
    decoder, dim = recipe.model.decoder, recipe.model.dim
    if isinstance(decoder, Transformer):
        return dim
    if isinstance(decoder, RecurrentDecoder) and decoder.last_width:
        return decoder.last_width
    return decoder.width or dim


def _task(recipe: Recipe) -> Iterator[str]:
    task = task_of(recipe.task)
    if recipe.model.kind != task.model:
        yield f"model.kind is {recipe.model.kind}, and task {recipe.task} trains a model of kind {task.model}; leave model.kind out"
        return
    yield from task.fits(recipe)


def _start(recipe: Recipe) -> Iterator[str]:
    """What is for fine-tuning alone."""
    if recipe.training.start is not None or getattr(recipe.model, "pretrained", None) is not None:
        return
    for key, given in (
        ("tokenizer.kind", recipe.tokenizer.kind == "pretrained"),
        ("optimizer.head_lr", recipe.optimizer.head_lr),
    ):
        if given:
            yield f"{key} is given, and nothing pretrained is fine-tuned; set model.pretrained or training.start, or leave it out"
    if getattr(recipe.model, "subwords", False):
        yield "model.subwords is for taggers on a pretrained encoder; set model.pretrained, or leave it out"


def _data(recipe: Recipe) -> Iterator[str]:
    data = recipe.data
    if data.corpus is None and not data.train:
        yield "data names neither a corpus nor train files; set data.corpus (`regard data` lists them) or data.train"
    if data.corpus is not None and data.train:
        yield f"data.corpus is {data.corpus} and data.train names files; keep one of them"
    if data.corpus is None and data.train and not data.validation and data.hold_out is None:
        yield "data.validation names no files; training files need validation files beside them, or data.hold_out, as 0.1"
    if data.validation and data.hold_out is not None:
        yield "data.hold_out cuts a validation set off the training rows, and data.validation names one; keep one of them"
    if data.test and data.folds is not None:
        yield "data.folds cuts a test set off the training rows, and data.test names one; keep one of them"
    if data.fold is not None and data.folds is not None and data.fold > data.folds:
        yield f"data.fold is {data.fold} and there are {data.folds} folds; take one of 1 to {data.folds}"
    if data.source is not None and data.source == data.target:
        yield f"data.source and data.target are both {data.source!r}; {recipe.task} needs two sides"
    for key in ("source", "target"):
        if re.fullmatch(r"0+|-\d+", getattr(data, key) or ""):
            yield f"data.{key} is {getattr(data, key)}, and columns are counted from 1; take 1 for the first column"
    for key in ("train", "validation", "test"):
        for entry in getattr(data, key):
            if isinstance(entry, list) and len(entry) != (1 if recipe.task == "language" else 2):
                wants = "one file" if recipe.task == "language" else "two files, source and target"
                yield f"data.{key} has an entry of {len(entry)} files, and each entry is {wants}"


def _words(recipe: Recipe) -> Iterator[str]:
    tokenizer, model = recipe.tokenizer, recipe.model
    if (
        isinstance(model, AutoregressiveBlock)
        and model.encoder is not None
        and model.tie == "all"
        and not tokenizer.joint
    ):
        yield (
            "model.tie is all and tokenizer.joint is false: separate vocabularies cannot share a matrix; "
            "set model.tie: target or tokenizer.joint: true"
        )
    if tokenizer.dropout and tokenizer.kind not in ("bpe", "byte-bpe", "pretrained"):
        yield f"tokenizer.dropout leaves out merges, and a {tokenizer.kind} tokenizer has none; set it to 0 or take kind: bpe"
    if tokenizer.min_count > 1 and tokenizer.kind not in ("word", "spelled"):
        yield f"tokenizer.min_count is about whole words, and tokenizer.kind is {tokenizer.kind}; take kind: word, or leave it out"
    if tokenizer.size < 5 and not tokenizer.load:
        yield f"tokenizer.size is {tokenizer.size}, and four tokens are special; take at least 5"
    if tokenizer.kind == "byte-bpe" and tokenizer.size < 260 and not tokenizer.load:
        yield f"tokenizer.size is {tokenizer.size}, smaller than the alphabet: byte-bpe needs 256 bytes and 4 special tokens, 260"


def _reading(recipe: Recipe) -> Iterator[str]:
    model = recipe.model
    if model.encoder is not None:
        yield from _reader(model.encoder, model.dim, "model.encoder")
    if isinstance(model, Classifier | Embedder):
        yield from _pooling(model.pooling, encoder_width(recipe), "model.pooling")


def _pooling(pooling: Pooling, width: int, place: str) -> Iterator[str]:
    if isinstance(pooling, ConcatPooling):
        for at, each in enumerate(pooling.of):
            yield from _pooling(each, width, f"{place}.of[{at}]")
    elif isinstance(pooling, AttentionPooling) and width % pooling.heads:
        yield f"{place}.heads is {pooling.heads}, which does not divide the width {width} of the states; take another number"


def _writing(recipe: Recipe) -> Iterator[str]:
    model = recipe.model
    if not isinstance(model, AutoregressiveBlock):
        return
    encoder, decoder = model.encoder, model.decoder
    if isinstance(decoder, Transformer):
        yield from _transformer(decoder, model.dim, "model.decoder")
    if model.shared_recurrence:
        yield from _shared(encoder, decoder, model.dim)
    if isinstance(decoder, RecurrentDecoder):
        yield from _attention(recipe, decoder)
    if (
        isinstance(decoder, RecurrentDecoder | Bahdanau)
        and decoder.initial_state == "copy"
        and encoder is not None
    ):
        yield from _copied(recipe, decoder)


def _reader(encoder: AnyEncoder, dim: int, place: str) -> Iterator[str]:
    if isinstance(encoder, Transformer):
        yield from _transformer(encoder, dim, place)
    elif isinstance(encoder, Recurrent):
        width = encoder.width or dim
        if encoder.bidirectional and width % 2:
            yield f"{place}.width is {width}, and a bidirectional encoder halves it; take an even one"
    elif isinstance(encoder, Convolutional):
        if encoder.position == "sinusoidal" and dim % 2:
            yield f"{place}.position is sinusoidal, which needs an even width, and model.dim is {dim}; take an even one, or learned"
    elif isinstance(encoder, Stacked):
        yield from _reader(encoder.below, dim, f"{place}.below")
        yield from _transformer(encoder.above, dim, f"{place}.above")


def _transformer(layer: Transformer, dim: int, place: str) -> Iterator[str]:
    if dim % layer.heads:
        near = max(n for n in range(1, layer.heads + 1) if dim % n == 0)
        yield f"{place}.heads is {layer.heads}, which does not divide the width {dim}; take {near} heads, or another width"
    elif layer.position == "rotary" and (dim // layer.heads) % 2:
        yield f"{place}.position is rotary, which turns pairs, and a head is {dim // layer.heads} wide; take fewer or more heads"
    if layer.position == "sinusoidal" and dim % 2:
        yield f"{place}.position is sinusoidal, which needs an even width, and it is {dim}; take an even one, or position: learned"
    if layer.key_heads and layer.heads % layer.key_heads:
        yield f"{place}.key_heads is {layer.key_heads}, which does not divide the {layer.heads} heads; take one that does"
    if layer.sliced and layer.key_heads and layer.key_heads != layer.heads:
        yield f"{place}.sliced gives each head its own slice, so key_heads must be left out"


def _shared(encoder: AnyEncoder | None, decoder: object, dim: int) -> Iterator[str]:
    """D's variant: the recurrence that reads is the one that writes, so the two must be alike."""
    start = "model.shared_recurrence is true"
    if not isinstance(encoder, Recurrent) or not isinstance(decoder, RecurrentDecoder):
        if encoder is not None:
            yield f"{start}, and both encoder and decoder must be of kind recurrent"
        return
    if encoder.bidirectional:
        yield f"{start}, and a decoder writes in one direction only; set model.encoder.bidirectional: false"
    for key in ("cell", "layers"):
        a, b = getattr(encoder, key), getattr(decoder, key)
        if a != b:
            yield f"{start}, and the encoder's {key} is {a} and the decoder's {b}; make them equal"
    if (encoder.width or dim) != (decoder.width or dim) or decoder.last_width:
        yield f"{start}, and encoder and decoder differ in width; give both the same, and no last_width"
    if decoder.input_feeding:
        yield f"{start}, and input feeding widens the decoder's input alone; set model.decoder.input_feeding: false"


def _attention(recipe: Recipe, decoder: RecurrentDecoder) -> Iterator[str]:
    wide, width = encoder_width(recipe), decoder_width(recipe)
    if decoder.attention == "simple" and wide != width:
        yield (
            f"model.decoder.attention is simple, a dot product, and the encoder's states are {wide} wide, the decoder's {width}; "
            "take attention: parameterised, which maps both, or equal widths"
        )
    if decoder.attention == "none" and decoder.input_feeding:
        yield "model.decoder.input_feeding is true and attention is none: there is nothing to feed; choose an attention"
    if decoder.attention_width and decoder.attention != "parameterised":
        yield f"model.decoder.attention_width is for attention: parameterised, and attention is {decoder.attention}; leave it out"
    if decoder.last_width and decoder.layers == 1:
        yield "model.decoder.last_width sets the last of several layers, and there is one; set width instead"


def _copied(recipe: Recipe, decoder: RecurrentDecoder | Bahdanau) -> Iterator[str]:
    """The encoder's final state can be the decoder's first only when the two have the same shape."""
    encoder = recipe.model.encoder
    start = "model.decoder.initial_state is copy"
    if not isinstance(encoder, Recurrent):
        yield f"{start}, and this encoder has no final state to copy; take initial_state: mean or final, which learn a map"
        return
    dim = recipe.model.dim
    widths = (encoder.width or dim), (decoder.width or dim), decoder_width(recipe)
    for key, a, b in (
        ("cell", encoder.cell, decoder.cell),
        ("layers", encoder.layers, decoder.layers),
        ("width", *widths[:2]),
    ):
        if a != b:
            yield f"{start}, and the encoder's {key} is {a} and the decoder's {b}; take initial_state: final, or make them equal"
            return
    if widths[2] != widths[0]:
        yield f"{start}, and the decoder's last layer is {widths[2]} wide, the encoder's {widths[0]}; take initial_state: final"


def _course(recipe: Recipe) -> Iterator[str]:
    training, schedule = recipe.training, recipe.schedule
    if training.agreement and recipe.batch.mode == "stream":
        yield "training.agreement reads every batch twice, and a stream is read in order with one state; set agreement to 0"
    if training.steps is None and training.epochs is None and training.minutes is None:
        yield "training.steps, epochs and minutes are all null, and training would never end; set one"
    if training.steps is not None and schedule.warmup > training.steps:
        yield f"schedule.warmup is {schedule.warmup}, longer than the {training.steps} steps of training; take a shorter one"
    if isinstance(schedule, Cosine) and training.steps is None and training.epochs is None:
        yield "schedule.kind is cosine, which ends with the run, and only minutes say when; set training.steps or training.epochs"
    floor = getattr(schedule, "floor", 0.0)
    if not isinstance(schedule, InverseSqrt) and floor > recipe.optimizer.lr:
        yield f"schedule.floor is {floor:g}, above optimizer.lr {recipe.optimizer.lr:g}; take a lower one"
    if training.average > training.keep:
        yield f"training.average is {training.average} and only training.keep {training.keep} checkpoints are kept; keep as many"
    if (
        recipe.batch.mode in ("crops", "stream")
        and recipe.batch.sentences is None
        and recipe.batch.tokens < recipe.batch.length
    ):
        yield f"batch.tokens {recipe.batch.tokens} is less than one window of batch.length {recipe.batch.length}; make it larger"
