"""The peers: linear models on n-grams (scikit-learn) and fastText, tuned on the validation set."""

from __future__ import annotations

import os
import tempfile
import time
from importlib.metadata import version
from typing import Any

OURS, TFIDF, HASHING, FASTTEXT = "regard", "TF-IDF", "hashing", "fastText"
# Whose environment a peer lives in.
PLACE = {
    TFIDF: "scikit-learn",
    HASHING: "scikit-learn",
    FASTTEXT: "fasttext",
}
Rows = tuple[list[str], list[str]]  # texts and labels


class Tuned:
    """Train with every setting and keep the best on the validation set; the seconds are those of that one."""

    settings: list[dict[str, Any]]
    package: str
    about: str

    def train(self, train: Rows, valid: Rows) -> dict[str, Any]:
        best: tuple[float, float, dict[str, Any], Any] | None = None
        for setting in self.settings:
            start = time.perf_counter()
            model = self.fitted(*train, **setting)
            seconds = time.perf_counter() - start
            right = sum(a == b for a, b in zip(self.answers(model, valid[0]), valid[1], strict=True)) / len(
                valid[1]
            )
            if best is None or right > best[0]:
                best = right, seconds, setting, model
        assert best is not None
        self.model = best[3]
        shown = ", ".join(f"{key} {value}" for key, value in best[2].items())
        return {
            "seconds": best[1],
            "about": f"{self.about}; {shown}",
            "version": f"{self.package} {version(self.package)}",
        }

    def label(self, texts: list[str]) -> list[str]:
        return self.answers(self.model, texts)

    def fitted(self, texts: list[str], labels: list[str], **setting: Any) -> Any:
        raise NotImplementedError

    def answers(self, model: Any, texts: list[str]) -> list[str]:
        raise NotImplementedError


class TfIdf(Tuned):
    """TF-IDF of unigrams and bigrams with logistic regression."""

    package, about = "scikit-learn", "words and word pairs, sublinear tf, logistic regression"
    settings = [{"C": c} for c in (1.0, 3.0, 10.0, 30.0)]

    def fitted(self, texts: list[str], labels: list[str], **setting: Any) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        return make_pipeline(self.vectorizer(), LogisticRegression(max_iter=1000, **setting)).fit(
            texts, labels
        )

    def vectorizer(self) -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer

        return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\S+")

    def answers(self, model: Any, texts: list[str]) -> list[str]:
        return model.predict(texts).tolist()


class Hashing(TfIdf):
    """The same pairs, hashed to 2¹⁸ places: no vocabulary, and so the least memory."""

    about = "words and word pairs hashed to 2^18, logistic regression"

    def vectorizer(self) -> Any:
        from sklearn.feature_extraction.text import HashingVectorizer

        return HashingVectorizer(
            ngram_range=(1, 2), n_features=2**18, alternate_sign=False, token_pattern=r"\S+"
        )


class FastText(Tuned):
    """Joulin et al. 2017: averaged vectors of words and word pairs, hashed, and a linear softmax; in C++."""

    package, about = "fasttext-wheel", "averaged word and word-pair vectors, softmax"
    settings = [
        {"dim": dim, "epoch": epoch, "lr": lr} for dim in (10, 100) for epoch in (5, 15) for lr in (0.1, 0.5)
    ]

    def fitted(self, texts: list[str], labels: list[str], **setting: Any) -> Any:
        import fasttext

        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt", delete=False) as file:
            file.writelines(f"__label__{label} {text}\n" for text, label in zip(texts, labels, strict=True))
        try:
            return fasttext.train_supervised(
                file.name, wordNgrams=2, bucket=200_000, thread=1, seed=1, verbose=0, **setting
            )
        finally:
            os.unlink(file.name)

    def answers(self, model: Any, texts: list[str]) -> list[str]:
        return [found[0].removeprefix("__label__") for found in model.predict(texts)[0]]


class Regard:
    """A trained model folder of ours; how long it was trained is on its card."""

    def __init__(self, folder: str) -> None:
        # Of the tokenizers, before they wake.
        os.environ["RAYON_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
        import torch

        import regard

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self.model: Any = regard.load(folder)
        self.tokens = 8192

    def train(self, train: Rows, valid: Rows) -> dict[str, Any]:
        """Only search the fastest batch size on this machine."""
        from regard.version import __version__

        times = {}
        for self.tokens in (1024, 2048, 4096, 8192, 32768):
            self.label(valid[0])
            start = time.perf_counter()
            self.label(valid[0])
            times[self.tokens] = time.perf_counter() - start
        self.tokens = min(times, key=times.__getitem__)
        encoder, pooling = self.model.config["encoder"]["kind"], self.model.config["pooling"]["kind"]
        size = sum(p.numel() for p in self.model.parameters())
        about = f"{encoder}, {pooling} pooling, {size / 1e6:.2f} M weights; {self.tokens} tokens together"
        return {"seconds": self.model.card.get("seconds"), "about": about, "version": f"regard {__version__}"}

    def label(self, texts: list[str]) -> list[str]:
        from regard.models.classifier import predict

        return predict(self.model, texts, self.tokens)[0]


def make(name: str, folder: str) -> Tuned | Regard:
    peers = {TFIDF: TfIdf, HASHING: Hashing, FASTTEXT: FastText}
    return peers[name]() if name in peers else Regard(folder)
