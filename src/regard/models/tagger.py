"""A sequence tagger: an encoder over words and characters, tag scores, well-formed tag sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.data.conll_reader import one_word
from regard.data.tag_schemes import OUTSIDE, Scheme, Span, scheme_of, spans
from regard.data.tokenizer import EOS, PAD, SPECIALS, UNK
from regard.data.word_character_tokenizer import BYTES
from regard.errors import DataError, OptionError
from regard.files.progress import track
from regard.models.character_features import CharacterFeatures, drop_words, split_characters
from regard.models.chunked_loss import Loss, Objective
from regard.models.classifier import label_loss
from regard.models.crf import (
    CRF,
    FORBIDDEN,
    Transitions,
    check_rules,
    negative_log_likelihood,
    rules,
    viterbi,
    zero_transitions,
)
from regard.models.embedding import Embedding, prepend_bos
from regard.models.encoder import RecurrentEncoderOptions, max_positions
from regard.models.frames import FrameProjection
from regard.models.model import Model
from regard.models.options import MODELS, Block, EncoderOptions, Size, build_encoder
from regard.models.text_model import TextModelOptions, batches

BATCH_TOKENS = 32768  # tokens per batch, characters included


class CharacterOptions(Block):
    """Features of a word's characters: a convolution with max over time."""

    dim: Size = Field(default=32, description="width of a character's embedding")
    width: Size = Field(
        default=64, description="how much of dim is for the characters; the rest is the word's embedding"
    )
    kernel: Size = Field(default=3, description="kernel width, in characters")


@MODELS.add("tagger")
class TaggerOptions(TextModelOptions):
    """A tag for each word."""

    kind: Literal["tagger"] = "tagger"
    encoder: EncoderOptions = Field(default=RecurrentEncoderOptions(cell="lstm"), description="the encoder")
    characters: CharacterOptions | None = Field(
        default=None, description="features of the characters; needs tokenizer.kind word-characters"
    )
    subwords: bool = Field(
        default=False,
        description="read words as sub-word tokens, the first of which gets the tag; "
        "a pretrained encoder decides",
    )
    crf: bool = Field(
        default=True, description="a linear-chain CRF over the tags; else each tag independently"
    )
    constrain: bool = Field(
        default=False, description="train the CRF over well-formed tag sequences only, as it always decodes"
    )
    recall: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="margin that makes training harder on missed spans (softmax-margin, Mohit et al. 2012)",
    )

    def build(self, source_vocab: int | None, target_vocab: int) -> Tagger:
        assert source_vocab is not None
        width = self.dim - (self.characters.width if self.characters else 0)  # of the word embedding
        if self.characters and width < 1:
            raise OptionError(
                f"model.characters.width {self.characters.width} leaves nothing of dim {self.dim} for the "
                "word; make dim larger"
            )
        words = source_vocab // 2 if self.subwords else source_vocab
        source: Any = self.input.build_input(
            source_vocab - BYTES if self.characters else words,
            width,
            scaled=self.scale_embeddings,
            embedding_dropout=0.0,
        )
        characters = CharacterFeatures(**self.characters.model_dump()) if self.characters else None
        encoder = build_encoder(self.encoder, self.dim, self.dropout)
        tags = target_vocab - len(SPECIALS)
        output = nn.Linear(encoder.width, tags)
        names = ("word_dropout", "constrain", "recall", "subwords", "prepend_bos")
        options = {name: getattr(self, name) for name in names}
        return Tagger(source, characters, encoder, output, CRF(tags) if self.crf else None, **options)


class Tagger(Model):
    """p(tags | words), by a CRF over tag sequences or independently for each word.

    Source rows are words, or with `characters` words and their bytes (data/word_character_tokenizer.py): the
    embedding of a word and its character features are concatenated. In training, words are replaced by UNK
    with probability `word_dropout`. With `constrain`, a CRF is trained over well-formed sequences only;
    decoding is always restricted to them, also without a CRF. With `recall`, training raises the score of O
    by this margin where the gold tag is not O (recall-oriented softmax-margin, Mohit et al. 2012).

    With `subwords`, source rows are sub-word tokens (data/subword_tokenizer.py) and EOS, after BOS with
    `prepend_bos`; the tag of a word is scored from the state of its first token (Devlin et al. 2019, 5.3).
    """

    kind = "tagger"

    def __init__(
        self,
        source: Embedding | FrameProjection,
        characters: CharacterFeatures | None,
        encoder: nn.Module,
        output: nn.Linear,
        crf: CRF | None,
        *,
        word_dropout: float = 0.0,
        constrain: bool = False,
        recall: float = 0.0,
        subwords: bool = False,
        prepend_bos: bool = False,
    ) -> None:
        super().__init__()
        self.source: Any = source
        self.characters, self.encoder = characters, encoder
        self.output, self.crf = output, crf
        self.word_dropout, self.constrain, self.recall = word_dropout, constrain, recall
        self.subwords, self.prepend_bos = subwords, prepend_bos
        self._rules: Transitions | None = None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, in the order of their scores."""
        return self.target_tokenizer.entries

    @property
    def scheme(self) -> Scheme:
        """The tagging scheme: BIO, IOBES or IO."""
        return scheme_of(self.tags)

    @property
    def rules(self) -> Transitions:
        """Which tag may follow which, as scores 0 and −∞."""
        if self._rules is None:
            transitions = rules(self.tags)
            check_rules(self.tags, transitions)
            self._rules = transitions
        return self._rules

    def forward(
        self, words: Tensor, characters: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """Scores of the tags: words (batch, W), characters (batch, W, L) → (batch, W, tags).

        With `subwords`, tokens (batch, S) → (batch, W, tags).
        """
        if self.subwords:
            return self.output(self._first_states(words))
        if self.training and self.word_dropout:
            words = drop_words(words, self.word_dropout)
        x = self.source(words)
        if self.characters is not None and characters is not None:
            x = torch.cat([x, self.characters(characters)], -1)
        return self.output(self.encoder(x, lengths).states)

    def _first_states(self, source: Tensor) -> Tensor:
        """Sub-word tokens and EOS (batch, S) → the state of each word's first token, (batch, W, width)."""
        size, first = self.source.vocab, self._first_tokens(source)
        tokens, lengths = source % size, (source != PAD).sum(1)
        if self.training and self.word_dropout:
            tokens = drop_words(tokens, self.word_dropout)
        if self.prepend_bos:
            tokens, lengths = prepend_bos(tokens, lengths)
        states = self.encoder(self.source(tokens), lengths).states  # (batch, S + prepend_bos, width)
        words = max(1, int(first.sum(1).max()))
        order = (~first).long().argsort(dim=1, stable=True)[:, :words]  # (batch, W): first tokens, in order
        index = (order + self.prepend_bos)[..., None].expand(-1, -1, states.shape[-1])
        return states.gather(1, index)

    def _first_tokens(self, source: Tensor) -> Tensor:
        """True where a token is the first of a word."""
        return (source < self.source.vocab) & ((source > EOS) | (source == UNK))

    def read(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Split prepared rows x1 … xn EOS into words (or sub-word tokens), characters, and words per row.

        Frames (batch, T, channels) are returned as they are: each has one tag.
        """
        if isinstance(self.source, FrameProjection):
            return source, None, lengths
        if self.subwords:
            return source, None, self._first_tokens(source).sum(1)
        if self.characters is not None:
            return split_characters(source, self.source.table.num_embeddings)
        return source[:, : max(1, int(lengths.max()) - 1)], None, lengths - 1

    def loss(self, batch: Batch, smoothing: float = 0.0, state: Any = None, agreement: float = 0.0) -> Loss:
        """−log p of the gold tags. Sentences with an unknown tag are skipped."""
        assert batch.source is not None and batch.source_lengths is not None
        words, characters, lengths = self.read(batch.source, batch.source_lengths)
        if not torch.equal(lengths, batch.target_lengths - 1):
            at = int((lengths != batch.target_lengths - 1).nonzero()[0])
            raise DataError(
                f"row {int(batch.rows[at])} has {int(lengths[at])} words and "
                f"{int(batch.target_lengths[at]) - 1} tags"
            )
        most = max(1, int(lengths.max()))
        gold = batch.target[:, 1 : 1 + most]
        inside = torch.arange(most, device=words.device) < lengths[:, None]  # (batch, W)
        known = ~((gold == UNK) & inside).any(1)
        tags = (gold - len(SPECIALS)).clamp(min=0)
        if self.crf is None:
            objective = Objective(smoothing, agreement)
            return self._independent_loss(
                (words, characters, lengths), tags, inside & known[:, None], objective
            )
        if smoothing or agreement:
            raise OptionError(
                "training.smoothing and training.agreement are for taggers without a CRF; "
                "set them to 0, or crf: false"
            )
        scores = self._with_margin(self(words, characters, lengths), tags)
        scores = scores if scores.dtype == torch.float64 else scores.float()
        transitions = self.crf.transitions
        if self.constrain:
            transitions = transitions + self.rules.like(scores).at_least(FORBIDDEN)
        nll = (negative_log_likelihood(scores, tags, lengths, transitions) * known).sum()
        return Loss(nll, nll.detach(), int((lengths * known).sum()))

    def _independent_loss(
        self, inputs: tuple[Tensor | None, ...], tags: Tensor, inside: Tensor, objective: Objective
    ) -> Loss:
        """Cross-entropy of every tag by itself; `inside` (batch, W) is True at words that count."""
        passes = objective.passes

        def repeat(x: Tensor | None) -> Tensor | None:
            return x if x is None or passes == 1 else torch.cat([x] * passes)

        scores = self._with_margin(self(*map(repeat, inputs)), torch.cat([tags] * passes))
        scores = scores[torch.cat([inside] * passes)]
        return label_loss(scores, tags[inside], objective.smoothing, objective.agreement)

    def _with_margin(self, scores: Tensor, tags: Tensor) -> Tensor:
        """In training, raise the score of O where the gold tag is another (`recall`)."""
        if not (self.training and self.recall) or OUTSIDE not in self.tags:
            return scores
        outside = self.tags.index(OUTSIDE)
        raised = torch.zeros_like(scores)
        raised[..., outside] = self.recall * (tags != outside)
        return scores + raised

    def decode(self, scores: Tensor, lengths: Tensor) -> list[list[str]]:
        """The best well-formed tag sequences, from scores (batch, W, tags)."""
        scores = scores if scores.dtype == torch.float64 else scores.float()
        learned = zero_transitions(len(self.tags)) if self.crf is None else self.crf.transitions
        best, _ = viterbi(scores, lengths, learned.like(scores) + self.rules.like(scores))
        return [
            [self.tags[i] for i in row[:n]] for row, n in zip(best.tolist(), lengths.tolist(), strict=True)
        ]

    @torch.no_grad()
    def tag(
        self, sentences: Sequence[Any], batch_tokens: int = BATCH_TOKENS, *, progress: bool = False
    ) -> list[list[str]]:
        """The tags of each sentence, in order; sentences of similar length are batched.

        A sentence is a list of words; for a model of sequences of numbers, a file or an array.
        """
        training = self.training
        if isinstance(self.source, FrameProjection):
            pieces = list(enumerate(sentences))
        else:
            pieces = [
                (number, text)
                for number, words in enumerate(sentences)
                if words
                for text in self.split_words(list(map(one_word, words)))
            ]
        texts, piece_tags = [text for _, text in pieces], [[] for _ in pieces]
        self.eval()
        with track(len(texts), "tagging", "sentences") if progress else nullcontext() as bar:
            for rows, tokens, lengths in batches(self, texts, batch_tokens):
                words, characters, counts = self.read(tokens.to(self.device), lengths.to(self.device))
                decoded = self.decode(self(words, characters, counts), counts)
                for row, tags in zip(rows, decoded, strict=True):
                    piece_tags[row] = tags
                if bar is not None:
                    bar.advance(len(rows))
        self.train(training)
        all_tags: list[list[str]] = [[] for _ in sentences]
        for (number, _), tags in zip(pieces, piece_tags, strict=True):
            all_tags[number] += tags
        return all_tags

    def split_words(self, words: list[str]) -> Iterator[str]:
        """Split a sentence into texts that fit a learned position table; usually it is one."""
        most = max_positions(self.encoder) if self.subwords else None
        room = None if most is None else most - 1 - self.prepend_bos
        if room is None or len(words) + sum(len(word.encode("utf-8", "replace")) for word in words) <= room:
            yield " ".join(words)
            return
        start, used = 0, 0
        for at, ids in enumerate(self.source_tokenizer.encode_batch(words)):
            if used + len(ids) > room and at > start:
                yield " ".join(words[start:at])
                start, used = at, 0
            used += len(ids)
        yield " ".join(words[start:])

    def flops(self, source_length: int, target_length: int) -> int:
        """For one sentence; `target_length` counts tags and EOS, `source_length` also characters."""
        if self.subwords or isinstance(self.source, FrameProjection):
            return super().flops(source_length, target_length)
        return super().flops(max(1, source_length - target_length), max(1, target_length - 1))

    def forward_for_flops(self, source: Tensor, target: Tensor) -> Tensor:
        """`source` are the characters, `target` the words; it does not matter which word has which."""
        if self.subwords or isinstance(self.source, FrameProjection):
            return self.output(self.encoder(self.source(source), None).states)
        if self.characters is None:
            return self(target)
        x = torch.cat(
            [self.source(target), self.characters(source[:, None]).expand(-1, target.shape[1], -1)], -1
        )
        return self.output(self.encoder(x, None).states)


def tag_texts(model: Tagger, texts: Sequence[str], *, progress: bool = False) -> list[list[str]]:
    """The tags of each source text of a dataset: words joined by spaces, or the file of a sequence."""
    frames = isinstance(model.source, FrameProjection)
    return model.tag(texts if frames else [text.split(" ") for text in texts], progress=progress)


def tag_spans(
    model: Tagger, sentences: Sequence[Sequence[str]], batch_tokens: int = BATCH_TOKENS
) -> list[list[Span]]:
    """The spans of each sentence: start, stop and type."""
    return [spans(tags) for tags in model.tag(sentences, batch_tokens)]
