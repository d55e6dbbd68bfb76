"""Translation metrics: corpus BLEU, chrF and TER by sacreBLEU, with signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regard.arguments import flag, quoted
from regard.errors import OptionError
from regard.evaluation.bleu import bleu_metric, corpus_bleu, reference_documents
from regard.evaluation.input_checks import input_warnings

__all__ = ["Scores", "corpus_bleu", "translation_scores"]
TER_CHUNK = 50  # lines per progress update; TER takes most of the time


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF (higher is better) and TER (lower is better), in per cent."""

    bleu: float
    chrf: float
    ter: float
    signatures: dict[str, str]
    precisions: tuple[float, float, float, float]  # per cent, of 1- to 4-grams
    brevity: float
    hypothesis_length: int  # tokens of BLEU
    reference_length: int
    lines: int
    references: int
    empty_hypotheses: int
    empty_references: int
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """The three scores, each with its signature."""
        precisions = "/".join(f"{p:.1f}" for p in self.precisions)
        lengths = (
            f"brevity {self.brevity:.3f}, {self.hypothesis_length} tokens against {self.reference_length}"
        )
        references = "1 reference" if self.references == 1 else f"{self.references} references"
        empty = f", {self.empty_hypotheses} empty" if self.empty_hypotheses else ""
        return "\n".join(
            [
                f"BLEU  {self.bleu:6.2f}   {self.signatures['bleu']}",
                f"               {precisions} ({lengths})",
                f"chrF  {self.chrf:6.2f}   {self.signatures['chrf']}",
                f"TER   {self.ter:6.2f}   {self.signatures['ter']}",
                f"{self.lines} lines{empty}, {references}",
            ]
        )


def translation_scores(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    advance: Callable[[int], object] | None = None,
) -> Scores:
    """Score lines against one reference (a list of lines) or several (a list of such lists).

    Suspicious input (see `input_checks`) is reported in `warnings`; input that cannot be scored raises a
    `DataError`. `advance` is called with the number of lines done, for a progress bar. TER always ignores
    case, as in sacreBLEU.
    """
    from sacrebleu.metrics.chrf import CHRF

    lowercase = flag("lowercase", lowercase)
    if advance is not None and not callable(advance):
        raise OptionError(f"advance must be a function of a count of lines or None, got {quoted(advance)}")
    documents = reference_documents(hypotheses, references)
    bleu, chrf = bleu_metric(tokenize, lowercase), CHRF(lowercase=lowercase)
    warnings = input_warnings(hypotheses, documents, tokenize, lowercase)
    by_bleu, by_chrf = (m.corpus_score(hypotheses, documents) for m in (bleu, chrf))
    ter, ter_signature = _ter(hypotheses, documents, advance or (lambda _: None))
    first, second, third, fourth = by_bleu.precisions
    return Scores(
        bleu=float(by_bleu.score),
        chrf=float(by_chrf.score),
        ter=ter,
        signatures={
            "bleu": str(bleu.get_signature()),
            "chrf": str(chrf.get_signature()),
            "ter": ter_signature,
        },
        precisions=(first, second, third, fourth),
        brevity=float(by_bleu.bp),
        hypothesis_length=int(by_bleu.sys_len),
        reference_length=int(by_bleu.ref_len),
        lines=len(hypotheses),
        references=len(documents),
        empty_hypotheses=sum(not line.strip() for line in hypotheses),
        empty_references=sum(not line.strip() for document in documents for line in document),
        warnings=tuple(warnings),
    )


def _ter(
    hypotheses: Sequence[str], documents: list[list[str]], advance: Callable[[int], object]
) -> tuple[float, str]:
    """TER in chunks, to report progress; edits and lengths are summed."""
    from sacrebleu.metrics.ter import TER

    ter, edits, length = TER(), 0, 0.0
    for start in range(0, len(hypotheses), TER_CHUNK):
        part = slice(start, start + TER_CHUNK)
        score = ter.corpus_score(hypotheses[part], [document[part] for document in documents])
        edits, length = edits + score.num_edits, length + score.ref_length
        advance(len(hypotheses[part]))
    share = edits / length if length else float(edits > 0)  # as sacreBLEU: 100% against empty references
    return 100 * share, str(ter.get_signature())
