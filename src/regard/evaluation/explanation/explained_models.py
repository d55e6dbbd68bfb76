"""What each kind of model explains: how it reads a text, which output is explained by which attention.

An explanation ranks the tokens of the text (features); special tokens are not ranked. It explains one output
distribution: of a classifier the labels, of a tagger the tags of one word, of a translator one target token,
of a language model the next token. A model of sequences of numbers reads frames in place of tokens: its text
is a sequence (a file or an array), its features are the frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import arguments
from regard.data.conll_reader import one_word
from regard.data.frame_encoder import FrameEncoder
from regard.data.padding import pad_sources
from regard.data.tokenizer import BOS
from regard.decoding.attention_weights import kind_of
from regard.decoding.limits import Limits
from regard.errors import DataError, OptionError
from regard.models.classifier import Classifier
from regard.models.encoder import max_positions
from regard.models.tagger import Tagger
from regard.pipelines.classify import truncate
from regard.pipelines.tag import word_splitter
from regard.pipelines.text_form import as_read
from regard.pipelines.translate import translate
from regard.registry import Registry

MAX_TOKENS = 1000  # tokens of a text, or frames of a sequence; what follows is cut off
MAX_TARGET = 100  # tokens of a translation


class Units(NamedTuple):
    """What a feature and an input are called in sentences."""

    feature: str
    input: str


TOKENS, FRAMES = Units("token", "text"), Units("frame", "sequence")


@dataclass(frozen=True)
class ExplainedInput:
    """One text as a model reads it, and the output that is explained.

    Attributes:
        inputs: what the model reads: token ids with special tokens, (S,), or frames, (S, channels).
        tokens: the text of each feature; of a frame its number.
        features: the index of each feature in `inputs`.
        keys: the index of each feature among the keys of attention.
        row: the query whose attention explains the output, −1 for the last; None: the mean of all queries.
        output: the word whose tag is explained, in taggers.
        prefix: the target tokens that a translator has generated before.
    """

    inputs: Sequence[Any]
    tokens: list[str]
    features: list[int]
    keys: list[int]
    row: int | None = None
    output: int = 0
    prefix: list[int] = field(default_factory=list)


class ExplainedModel:
    """A model with what explanations need to know about it. A subclass serves one kind of model."""

    deletes = True  # a token is removed by deleting it; False: by a zero vector, where positions must stay
    needs = (  # the error for a model without recorded attention
        "use one with attention pooling, a Transformer encoder or cross-attention, such as that of the "
        "recipe sst2-attention"
    )

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def units(self) -> Units:
        """TOKENS, or FRAMES of a model that reads sequences of numbers."""
        is_frames = isinstance(getattr(self.model, "source_tokenizer", None), FrameEncoder)
        return FRAMES if is_frames else TOKENS

    def as_list(self, texts: Any) -> list[Any]:
        """One text or several as a list; of a model that reads frames, files and arrays."""
        if self.units == FRAMES:
            return self.model.source_tokenizer.inputs(texts)[0]
        return arguments.one_or_more("texts", texts)[0]

    def content(self, text: Any) -> bytes:
        """What random choices depend on beside the seed: the text or the frames, not the name of a file."""
        if self.units == FRAMES:
            return self.model.source_tokenizer.encode(text).tobytes()
        return text.encode("utf-8", "surrogatepass")

    def read(self, text: Any, rng: torch.Generator) -> ExplainedInput:
        """Encode a text or a sequence; `rng` chooses the explained output where there are several."""
        raise NotImplementedError

    def scores(self, given: ExplainedInput, inputs: Tensor) -> Tensor:
        """Scores of the explained output, (rows, classes), for inputs of equal length: token ids (rows, S) or
        frames (rows, S, channels).
        """
        raise NotImplementedError

    def class_name(self, index: int) -> str:
        """The label, tag or token of a class."""
        return self.model.target_tokenizer.entries[index]

    def choose_attention(self, names: Sequence[str]) -> list[str]:
        """The attention that explains the output by default, of the names that `watch` recorded."""
        encoder = [name for name in names if name.startswith("encoder")]
        return encoder[-1:]

    def self_attention(self, names: Sequence[str]) -> list[str]:
        """The self-attention layers between the tokens and the explaining attention, lowest first."""
        return [name for name in names if name.startswith("encoder")]

    def pools(self, name: str) -> bool:
        """True for attention over the states of the last layer, such as pooling and cross-attention."""
        return not name.startswith("encoder")

    def can_explain(self, name: str) -> bool:
        """True if the attention reads the tokens of the text and belongs to the explained output."""
        return True

    @contextmanager
    def vectors(self, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Inside the block the encoder reads change(x) in place of its input vectors x, (rows, S, width)."""

        def replace(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (change(args[0]), *args[1:])

        handle = self.encoder.register_forward_pre_hook(replace)
        try:
            yield
        finally:
            handle.remove()

    @property
    def encoder(self) -> nn.Module:
        """The module whose first argument are the vectors of the tokens."""
        return self.model.encoder

    def explaining_row(self, given: ExplainedInput, weights: Tensor) -> int | None:
        """The query that explains the output, given the weights of the attention, (heads, Tq, Tk)."""
        return given.row


def require_tokens(ids: Any, text: Any) -> Any:
    """The token ids or frames of a text; an error if there are none."""
    if len(ids):
        return ids
    raise DataError(f"the text {text[:40]!r} has no tokens, so there is nothing to explain; leave it out")


def with_eos(ids: Sequence[Any]) -> Sequence[Any]:
    """Token ids x1 … xn EOS (S,); frames (S, channels) have no EOS."""
    return pad_sources([ids])[0][0]


def _max_length(encoder: nn.Module) -> int:
    return min(MAX_TOKENS, max_positions(encoder) or MAX_TOKENS)


EXPLAINED: Registry[type[ExplainedModel]] = Registry("kind of model")  # by `model.kind`


@EXPLAINED.add("classifier")
class ExplainedClassifier(ExplainedModel):
    """The label of a text: by attention pooling, otherwise by the last attention of the encoder."""

    model: Classifier

    def read(self, text: Any, rng: torch.Generator) -> ExplainedInput:
        tokenizer, most = self.model.source_tokenizer, _max_length(self.model.encoder)
        ids = require_tokens(tokenizer.encode(truncate(self.model, [text])[0])[:most], text)
        features = list(range(len(ids)))
        keys = [at + self.model.prepend_bos for at in features]
        return ExplainedInput(with_eos(ids), tokenizer.tokens(ids), features, keys)

    def scores(self, given: ExplainedInput, inputs: Tensor) -> Tensor:
        return self.model(inputs)

    def choose_attention(self, names: Sequence[str]) -> list[str]:
        pooling = [name for name in names if name.startswith("pooling")]
        return pooling or super().choose_attention(names)


@EXPLAINED.add("tagger")
class ExplainedTagger(ExplainedModel):
    """The tag of one word, from its tag scores before a CRF: by the attention of the word in the last layer.

    The word, or frame, is drawn from those with another tag than O, if there are any.
    """

    model: Tagger
    deletes = False

    def read(self, text: Any, rng: torch.Generator) -> ExplainedInput:
        model = self.model
        ids, pieces = self._encode(text)
        inputs = with_eos(ids)
        tensor, lengths = torch.as_tensor(inputs)[None], torch.tensor([len(inputs)])
        tokens, _, counts = model.read(tensor, lengths)
        first = list(range(int(counts[0])))  # the position that scores each word or frame
        pieces = pieces[: len(first)]
        if model.subwords:
            first = model._first_tokens(tokens)[0].nonzero().flatten().tolist()
            pieces = model.source_tokenizer.tokens(ids)
        output = self._draw_word(tensor.to(model.device), lengths, len(first), rng)
        offset, features = int(model.subwords and model.prepend_bos), list(range(len(pieces)))
        keys = [at + offset for at in features]
        return ExplainedInput(inputs, pieces, features, keys, row=first[output] + offset, output=output)

    def scores(self, given: ExplainedInput, inputs: Tensor) -> Tensor:
        return self._tag_scores(inputs, torch.full((len(inputs),), inputs.shape[1]))[:, given.output]

    def class_name(self, index: int) -> str:
        return self.model.tags[index]

    def _encode(self, text: Any) -> tuple[Sequence[Any], list[str]]:
        """The token ids of a text and its words, or the frames of a sequence and their numbers."""
        model, most = self.model, _max_length(self.model.encoder)
        tokenizer = model.source_tokenizer
        if self.units == FRAMES:
            frames = tokenizer.encode(text)[:most]
            return frames, tokenizer.tokens(frames)
        words = [one_word(word.text) for word in word_splitter(model)(text)][:most]
        line = next(model.split_words(words)) if words else ""
        return require_tokens(tokenizer.encode(line), text), tokenizer.split_words(line)

    def _tag_scores(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        words, characters, counts = self.model.read(inputs, lengths.to(inputs.device))
        return self.model(words, characters, counts)

    @torch.no_grad()
    def _draw_word(self, inputs: Tensor, lengths: Tensor, words: int, rng: torch.Generator) -> int:
        tags = self._tag_scores(inputs, lengths)[0, :words].argmax(-1).tolist()
        entities = [at for at, tag in enumerate(tags) if self.model.tags[tag] != "O"] or list(range(words))
        return entities[int(torch.randint(len(entities), (), generator=rng))]


@EXPLAINED.add("translator")
class ExplainedTranslator(ExplainedModel):
    """One token of the greedy translation, given those before: by its cross-attention in the last layer."""

    def read(self, text: Any, rng: torch.Generator) -> ExplainedInput:
        model = self.model
        most = (max_positions(model.encoder) or MAX_TOKENS) - 1
        (text,), _ = as_read([text], model)  # as `translate` reads it
        ids = require_tokens(model.source_tokenizer.encode(text)[:most], text)
        tokens = model.source_tokenizer.tokens(ids)
        output = model.target_tokenizer.encode(
            translate(text, model, beam=1, limits=Limits(max_length=MAX_TARGET))
        )
        step = int(torch.randint(len(output) + 1, (), generator=rng))  # one more: the end of the sentence
        features = list(range(len(ids)))
        prefix = [BOS, *output[:step]]
        return ExplainedInput(with_eos(ids), tokens, features, features, row=-1, prefix=prefix)

    def scores(self, given: ExplainedInput, inputs: Tensor) -> Tensor:
        target = torch.tensor([given.prefix], device=inputs.device).expand(len(inputs), -1)
        return self.model(inputs, target)[:, -1]

    def class_name(self, index: int) -> str:
        return self.model.target_tokenizer.tokens([index])[0]

    def can_explain(self, name: str) -> bool:
        return kind_of(name) == "cross"

    def choose_attention(self, names: Sequence[str]) -> list[str]:
        return list(names)[-1:]


@EXPLAINED.add("language-model")
class ExplainedLanguageModel(ExplainedModel):
    """The token after a text: by the last row of the last self-attention."""

    def read(self, text: Any, rng: torch.Generator) -> ExplainedInput:
        most = (max_positions(self.model.decoder) or MAX_TOKENS) - 1
        ids = require_tokens(self.model.target_tokenizer.encode(text)[-most:], text)
        tokens = self.model.target_tokenizer.tokens(ids)
        features = [at + 1 for at in range(len(ids))]
        return ExplainedInput([BOS, *ids], tokens, features, features, row=-1)

    def scores(self, given: ExplainedInput, inputs: Tensor) -> Tensor:
        return self.model(inputs)[:, -1]

    def class_name(self, index: int) -> str:
        return self.model.target_tokenizer.tokens([index])[0]

    def choose_attention(self, names: Sequence[str]) -> list[str]:
        return list(names)[-1:]

    def self_attention(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def pools(self, name: str) -> bool:
        return False

    @property
    def encoder(self) -> nn.Module:
        return self.model.decoder


class ExplainedTransformers(ExplainedModel):
    """A model of Hugging Face Transformers with its tokenizer.

    Sequence classification: the label, by the first query of the last layer (causal models: the last query).
    Token classification and masked language models: one token's output, by its query. Causal language models:
    the next token, by the last query. Encoder-decoders: one generated token, by its cross-attention.
    """

    needs = 'load it with attn_implementation="regard" or "sdpa", which regard.watch can see'
    CROSS = ("encoder_attn", "EncDecAttention", "crossattention", "cross_attn")

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__(model)
        self.tokenizer, name = tokenizer, type(model).__name__
        self.by_token = "TokenClassification" in name or "MaskedLM" in name
        generates = "Conditional" in name or name.endswith("MTModel")  # MarianMTModel
        self.translates = bool(getattr(model.config, "is_encoder_decoder", False)) and generates
        self.deletes = not self.by_token

    def read(self, text: Any, rng: torch.Generator) -> ExplainedInput:
        most = min(getattr(self.model.config, "max_position_embeddings", None) or MAX_TOKENS, MAX_TOKENS)
        ids = list(self.tokenizer(text, truncation=True, max_length=most)["input_ids"])
        special = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        features = [at for at, token in enumerate(ids) if token not in special]
        feature_ids = require_tokens([ids[at] for at in features], text)
        tokens = [str(token) for token in self.tokenizer.convert_ids_to_tokens(feature_ids)]
        if self.translates:
            prefix = self._draw_prefix(ids, rng)
            return ExplainedInput(ids, tokens, features, features, row=-1, prefix=prefix)
        row = features[int(torch.randint(len(features), (), generator=rng))] if self.by_token else None
        return ExplainedInput(ids, tokens, features, features, row=row)

    def scores(self, given: ExplainedInput, inputs: Tensor) -> Tensor:
        named = {"input_ids": inputs, "attention_mask": torch.ones_like(inputs)}
        if self.translates:
            prefix = torch.tensor([given.prefix], device=inputs.device)
            named["decoder_input_ids"] = prefix.expand(len(inputs), -1)
        logits = self.model(**named).logits
        if logits.ndim == 2:
            return logits
        return logits[:, given.row if self.by_token and given.row is not None else -1]

    def class_name(self, index: int) -> str:
        labels = getattr(self.model.config, "id2label", None) or {}
        if "Classification" in type(self.model).__name__ and index in labels:
            return str(labels[index])
        return str(self.tokenizer.convert_ids_to_tokens(index))

    def choose_attention(self, names: Sequence[str]) -> list[str]:
        return list(names)[-1:]

    def can_explain(self, name: str) -> bool:
        return self.pools(name) or not self.translates

    def self_attention(self, names: Sequence[str]) -> list[str]:
        own = [name for name in names if not self.pools(name)]
        return [name for name in own if "encoder" in name.split(".")] if self.translates else own

    def pools(self, name: str) -> bool:
        return any(part in name for part in self.CROSS)

    @contextmanager
    def vectors(self, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        calls = 0  # an encoder-decoder may share the table: only the encoder's vectors are changed

        def replace(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            nonlocal calls
            calls += 1
            return change(output) if calls == 1 else None

        reader = self.model.get_encoder() if self.translates else self.model
        handle = reader.get_input_embeddings().register_forward_hook(replace)
        try:
            yield
        finally:
            handle.remove()

    def explaining_row(self, given: ExplainedInput, weights: Tensor) -> int | None:
        if given.row is not None:
            return given.row
        is_causal = bool((weights.triu(1) == 0).all())
        return -1 if is_causal else 0

    @torch.no_grad()
    def _draw_prefix(self, ids: list[int], rng: torch.Generator) -> list[int]:
        source = torch.tensor([ids], device=next(self.model.parameters()).device)
        output = self.model.generate(source, max_new_tokens=MAX_TARGET, num_beams=1, do_sample=False)[
            0
        ].tolist()
        return output[: 1 + int(torch.randint(max(1, len(output) - 1), (), generator=rng))]


def explained_model(model: Any, tokenizer: Any = None) -> ExplainedModel:
    """The model with what explanations need to know about it; `tokenizer` is for Hugging Face models."""
    if isinstance(model, ExplainedModel):
        return model
    kind = getattr(model, "kind", None)
    if isinstance(kind, str) and kind in EXPLAINED:
        if getattr(model, "target_tokenizer", None) is None:
            raise OptionError("faithfulness takes a model with its tokenizers, as regard.load returns it")
        return EXPLAINED[kind](model)
    if isinstance(kind, str) and isinstance(getattr(model, "what", None), str):
        raise OptionError(f"faithfulness is for {', '.join(EXPLAINED)} models, and this is {model.what}")
    if isinstance(model, nn.Module) and hasattr(model, "get_input_embeddings"):
        if tokenizer is None or not callable(tokenizer):
            raise OptionError(
                "a Hugging Face model needs its tokenizer: faithfulness(model, texts, tokenizer=…)"
            )
        return ExplainedTransformers(model, tokenizer)
    raise OptionError(
        "faithfulness takes a classifier, tagger, translator or language model of regard, a folder of one, "
        f"or a Hugging Face model, got {type(model).__name__}"
    )
