"""A tagger: any encoder over words and their letters, a score for each tag of each word, and paths that are always well formed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.data.conll_reader import one_word
from regard.data.spelled_tokenizer import BYTES
from regard.data.tag_schemes import OUTSIDE, Scheme, Span, scheme_of, spans
from regard.data.tokenizer import EOS, PAD, SPECIALS, UNK
from regard.errors import DataError, OptionError
from regard.files.progress import track
from regard.models.character_features import CharacterFeatures, hide, split
from regard.models.classifier import label_loss
from regard.models.crf import CRF, UNLIKELY, Steps, check_rules, negative_log_likelihood, none, rules, viterbi
from regard.models.embedding import Embedding, prepend_bos
from regard.models.encoder import RecurrentEncoderOptions, max_positions
from regard.models.loss import Loss
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
        default=None, description="features of the characters; needs tokenizer.kind spelled"
    )
    subwords: bool = Field(
        default=False,
        description="read words as sub-word tokens, the first of which gets the tag; a pretrained encoder decides",
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
                f"model.characters.width {self.characters.width} leaves nothing of dim {self.dim} for the word; "
                "make dim larger"
            )
        words = source_vocab // 2 if self.subwords else source_vocab
        source = Embedding.scaled(
            source_vocab - BYTES if self.characters else words, width, self.scale_embeddings
        )
        characters = CharacterFeatures(**self.characters.model_dump()) if self.characters else None
        encoder = build_encoder(self.encoder, self.dim, self.dropout)
        tags = target_vocab - len(SPECIALS)
        output = nn.Linear(encoder.width, tags)
        names = ("word_dropout", "constrain", "recall", "subwords", "prepend_bos")
        options = {name: getattr(self, name) for name in names}
        return Tagger(source, characters, encoder, output, CRF(tags) if self.crf else None, **options)


class Tagger(Model):
    """p(tags | words): of a CRF over whole paths, or of each word's tag by itself.

    Source rows are words, or words spelled out (`data.spelling`) where `characters` read them: each word is then its vector and
    what its letters look like, side by side. In training every word is unknown with probability `word_dropout`. With `constrain` a
    CRF is trained among the well-formed paths alone; decoding never leaves them, with and without a CRF. With `recall` training is
    harder on what was missed: where the gold is not O, the score of O is that much higher (recall-oriented softmax-margin, Mohit et
    al. 2012), so it takes a larger lead of the right tag to be content.

    With `subwords` source rows are sub-word tokens (`data.subword_tokenizer`) and EOS: the encoder reads them all, with BOS in front where
    `prepend_bos` says so, and a word's tag is scored from the state of its first token (Devlin et al. 2019, 5.3).
    """

    kind = "tagger"

    def __init__(
        self,
        source: Embedding,
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
        self.source, self.characters, self.encoder, self.output, self.crf = (
            source,
            characters,
            encoder,
            output,
            crf,
        )
        self.word_dropout, self.constrain, self.recall = word_dropout, constrain, recall
        self.subwords, self.prepend_bos = subwords, prepend_bos
        self._rules: Steps | None = None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, in the order of their scores."""
        return self.target_tokenizer.entries

    @property
    def scheme(self) -> Scheme:
        """How its tags say where a span begins."""
        return scheme_of(self.tags)

    @property
    def rules(self) -> Steps:
        """Which tag may follow which."""
        if self._rules is None:
            found = rules(self.tags)
            check_rules(self.tags, found)
            self._rules = found
        return self._rules

    def forward(self, words: Tensor, letters: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """Scores of the tags: words (batch, W), letters (batch, W, L) → (batch, W, tags). Of sub-words, (batch, S) → the same."""
        if self.subwords:
            return self.output(self._first_states(words))
        if self.training and self.word_dropout:
            words = hide(words, self.word_dropout)
        x = self.source(words)
        if self.characters is not None and letters is not None:
            x = torch.cat([x, self.characters(letters)], -1)
        return self.output(self.encoder(x, lengths).states)

    def _first_states(self, source: Tensor) -> Tensor:
        """Sub-words and EOS (batch, S) → the state of each word's first token, (batch, W, width)."""
        size, first = self.source.vocab, self._begins(source)
        tokens, lengths = source % size, (source != PAD).sum(1)
        if self.training and self.word_dropout:
            tokens = hide(tokens, self.word_dropout)
        if self.prepend_bos:
            tokens, lengths = prepend_bos(tokens, lengths)
        states = self.encoder(self.source(tokens), lengths).states  # (batch, S + prepend_bos, width)
        most = max(1, int(first.sum(1).max()))
        at = (~first).long().argsort(dim=1, stable=True)[
            :, :most
        ] + self.prepend_bos  # (batch, W): first tokens, in order
        return states.gather(1, at[..., None].expand(-1, -1, states.shape[-1]))

    def _begins(self, source: Tensor) -> Tensor:
        """True where a token begins a word."""
        return (source < self.source.vocab) & ((source > EOS) | (source == UNK))

    def read(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Rows as prepared, x1 … xn EOS → words (or sub-words), letters, and how many words each row has."""
        if self.subwords:
            return source, None, self._begins(source).sum(1)
        if self.characters is not None:
            return split(source, self.source.table.num_embeddings)
        return source[:, : max(1, int(lengths.max()) - 1)], None, lengths - 1

    def loss(self, batch: Batch, smoothing: float = 0.0, state: Any = None, agreement: float = 0.0) -> Loss:
        """−log p of the gold tags. A sentence with a tag that was never trained on says nothing and is left out."""
        assert batch.source is not None and batch.source_lengths is not None
        words, letters, lengths = self.read(batch.source, batch.source_lengths)
        if not torch.equal(lengths, batch.target_lengths - 1):
            at = int((lengths != batch.target_lengths - 1).nonzero()[0])
            raise DataError(
                f"row {int(batch.rows[at])} has {int(lengths[at])} words and {int(batch.target_lengths[at]) - 1} tags"
            )
        most = max(1, int(lengths.max()))
        gold = batch.target[:, 1 : 1 + most]
        inside = torch.arange(most, device=words.device) < lengths[:, None]  # (batch, W)
        known = ~((gold == UNK) & inside).any(1)
        tags = (gold - len(SPECIALS)).clamp(min=0)
        if self.crf is None:
            return self._apart(words, letters, lengths, tags, inside & known[:, None], smoothing, agreement)
        if smoothing or agreement:
            raise OptionError(
                "training.smoothing and training.agreement are for taggers without a CRF; set them to 0, or crf: false"
            )
        scores = self._harder(self(words, letters, lengths), tags)
        scores = scores if scores.dtype == torch.float64 else scores.float()
        steps = self.crf.steps
        if self.constrain:
            steps = steps + self.rules.like(scores).at_least(UNLIKELY)
        nll = (negative_log_likelihood(scores, tags, lengths, steps) * known).sum()
        return Loss(nll, nll.detach(), int((lengths * known).sum()))

    def _apart(
        self,
        words: Tensor,
        letters: Tensor | None,
        lengths: Tensor,
        tags: Tensor,
        real: Tensor,
        smoothing: float,
        agreement: float,
    ) -> Loss:
        """Each tag by itself."""
        if agreement:
            words, lengths, letters = (
                words.repeat(2, 1),
                lengths.repeat(2),
                None if letters is None else letters.repeat(2, 1, 1),
            )
        scores = self._harder(self(words, letters, lengths), tags.repeat(2, 1) if agreement else tags)
        return label_loss(scores[real.repeat(2, 1) if agreement else real], tags[real], smoothing, agreement)

    def _harder(self, scores: Tensor, tags: Tensor) -> Tensor:
        """In training, the score of O where it is wrong is raised."""
        if not (self.training and self.recall) or OUTSIDE not in self.tags:
            return scores
        outside = self.tags.index(OUTSIDE)
        raised = torch.zeros_like(scores)
        raised[..., outside] = self.recall * (tags != outside)
        return scores + raised

    def decode(self, scores: Tensor, lengths: Tensor) -> list[list[str]]:
        """The best well-formed tags by scores (batch, W, tags)."""
        scores = scores if scores.dtype == torch.float64 else scores.float()
        learned = none(len(self.tags)) if self.crf is None else self.crf.steps
        best, _ = viterbi(scores, lengths, learned.like(scores) + self.rules.like(scores))
        return [
            [self.tags[i] for i in row[:n]] for row, n in zip(best.tolist(), lengths.tolist(), strict=True)
        ]

    @torch.no_grad()
    def tag(
        self, sentences: Sequence[Sequence[str]], batch_tokens: int = BATCH_TOKENS, *, progress: bool = False
    ) -> list[list[str]]:
        """The tags of each sentence; those of similar length are read together, and every answer stands in its sentence's place."""
        training = self.training
        parts = [
            (at, text)
            for at, words in enumerate(sentences)
            if words
            for text in self._parts(list(map(one_word, words)))
        ]
        texts, found = [text for _, text in parts], [[] for _ in parts]
        self.eval()
        with track(len(texts), "tagging", "sentences") if progress else nullcontext() as bar:
            for rows, tokens, lengths in batches(self, texts, batch_tokens):
                words, letters, counts = self.read(tokens.to(self.device), lengths.to(self.device))
                for row, tags in zip(rows, self.decode(self(words, letters, counts), counts), strict=True):
                    found[row] = tags
                if bar is not None:
                    bar.advance(len(rows))
        self.train(training)
        answers: list[list[str]] = [[] for _ in sentences]
        for (at, _), tags in zip(parts, found, strict=True):
            answers[at] += tags
        return answers

    def _parts(self, words: list[str]) -> Iterator[str]:
        """A sentence as texts that fit the encoder: in one, unless it has more sub-words than a learned position table has rows."""
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
        """Of one sentence; `target_length` counts its tags and the end, `source_length` its words, letters and the end."""
        if self.subwords:
            return super().flops(source_length, target_length)
        return super().flops(max(1, source_length - target_length), max(1, target_length - 1))

    def counted(self, source: Tensor, target: Tensor) -> Tensor:
        """`source` stands for the letters, `target` for the words: all letters in one word cost what they cost in many."""
        if self.subwords:
            return self.output(self.encoder(self.source(source), None).states)
        if self.characters is None:
            return self(target)
        x = torch.cat(
            [self.source(target), self.characters(source[:, None]).expand(-1, target.shape[1], -1)], -1
        )
        return self.output(self.encoder(x, None).states)


def tag_spans(
    model: Tagger, sentences: Sequence[Sequence[str]], batch_tokens: int = BATCH_TOKENS
) -> list[list[Span]]:
    """What was found in each sentence: first word, the word after the last, type."""
    return [spans(tags) for tags in model.tag(sentences, batch_tokens)]
