"""The peers: linear models on n-grams (scikit-learn) and fastText, tuned on the validation set."""

from __future__ import annotations

import os
import tempfile
import time
from importlib.metadata import version
from typing import Any

OURS, TFIDF, HASHING, FASTTEXT = "regard", "TF-IDF", "hashing", "fastText"
# Peer → its environment in benchmarks/peers/environments.py.
ENVIRONMENTS = {
    TFIDF: "scikit-learn",
    HASHING: "scikit-learn",
    FASTTEXT: "fasttext",
}
Rows = tuple[list[str], list[str]]  # texts and labels


class TunedClassifier:
    """A peer that is trained with every setting; the most accurate on the validation set is kept."""

    settings: list[dict[str, Any]]
    package: str
    about: str

    def train(self, train: Rows, valid: Rows) -> dict[str, Any]:
        """Tune on the validation set; "seconds" is the training time of the best setting alone."""
        best: tuple[float, float, dict[str, Any], Any] | None = None
        for setting in self.settings:
            start = time.perf_counter()
            model = self.fit(*train, **setting)
            seconds = time.perf_counter() - start
            predictions = self.predict(model, valid[0])
            accuracy = sum(a == b for a, b in zip(predictions, valid[1], strict=True)) / len(valid[1])
            if best is None or accuracy > best[0]:
                best = accuracy, seconds, setting, model
        assert best is not None
        _, seconds, setting, self.model = best
        setting_text = ", ".join(f"{key} {value}" for key, value in setting.items())
        return {
            "seconds": seconds,
            "about": f"{self.about}; {setting_text}",
            "version": f"{self.package} {version(self.package)}",
        }

    def classify(self, texts: list[str]) -> list[str]:
        return self.predict(self.model, texts)

    def fit(self, texts: list[str], labels: list[str], **setting: Any) -> Any:
        """Train a model with one setting."""
        raise NotImplementedError

    def predict(self, model: Any, texts: list[str]) -> list[str]:
        """The labels of texts by a model of `fit`."""
        raise NotImplementedError


class TfIdf(TunedClassifier):
    """TF-IDF of unigrams and bigrams with logistic regression."""

    package, about = "scikit-learn", "words and word pairs, sublinear tf, logistic regression"
    settings = [{"C": c} for c in (1.0, 3.0, 10.0, 30.0)]

    def fit(self, texts: list[str], labels: list[str], **setting: Any) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        return make_pipeline(self.vectorizer(), LogisticRegression(max_iter=1000, **setting)).fit(
            texts, labels
        )

    def vectorizer(self) -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer

        return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\S+")

    def predict(self, model: Any, texts: list[str]) -> list[str]:
        return model.predict(texts).tolist()


class Hashing(TfIdf):
    """The same n-grams hashed to 2^18 features: without a vocabulary it needs the least memory."""

    about = "words and word pairs hashed to 2^18, logistic regression"

    def vectorizer(self) -> Any:
        from sklearn.feature_extraction.text import HashingVectorizer

        return HashingVectorizer(
            ngram_range=(1, 2), n_features=2**18, alternate_sign=False, token_pattern=r"\S+"
        )


class FastText(TunedClassifier):
    """fastText (Joulin et al. 2017, C++): mean embedding of words and hashed bigrams, linear softmax."""

    package, about = "fasttext-wheel", "averaged word and word-pair vectors, softmax"
    settings = [
        {"dim": dim, "epoch": epoch, "lr": lr} for dim in (10, 100) for epoch in (5, 15) for lr in (0.1, 0.5)
    ]

    def fit(self, texts: list[str], labels: list[str], **setting: Any) -> Any:
        import fasttext

        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt", delete=False) as file:
            file.writelines(f"__label__{label} {text}\n" for text, label in zip(texts, labels, strict=True))
        try:
            return fasttext.train_supervised(
                file.name, wordNgrams=2, bucket=200_000, thread=1, seed=1, verbose=0, **setting
            )
        finally:
            os.unlink(file.name)

    def predict(self, model: Any, texts: list[str]) -> list[str]:
        return [labels[0].removeprefix("__label__") for labels in model.predict(texts)[0]]


class Regard:
    """A model folder that `regard train` wrote; its card has the training time."""

    def __init__(self, folder: str) -> None:
        # The tokenizers library reads this when it is first used.
        os.environ["RAYON_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
        import torch

        import regard

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self.model: Any = regard.load(folder)
        self.tokens = 8192

    def train(self, train: Rows, valid: Rows) -> dict[str, Any]:
        """Choose the fastest batch size on this machine; the model is trained already."""
        from regard.version import __version__

        times = {}
        for self.tokens in (1024, 2048, 4096, 8192, 32768):
            self.classify(valid[0])
            start = time.perf_counter()
            self.classify(valid[0])
            times[self.tokens] = time.perf_counter() - start
        self.tokens = min(times, key=times.__getitem__)
        encoder, pooling = self.model.config["encoder"]["kind"], self.model.config["pooling"]["kind"]
        size = sum(p.numel() for p in self.model.parameters())
        about = f"{encoder}, {pooling} pooling, {size / 1e6:.2f} M weights; {self.tokens} tokens together"
        return {"seconds": self.model.card.get("seconds"), "about": about, "version": f"regard {__version__}"}

    def classify(self, texts: list[str]) -> list[str]:
        from regard.models.classifier import predict

        return predict(self.model, texts, self.tokens)[0]


def create_system(name: str, folder: str) -> TunedClassifier | Regard:
    """The peer of that name, otherwise regard with the model in `folder`."""
    peers = {TFIDF: TfIdf, HASHING: Hashing, FASTTEXT: FastText}
    return peers[name]() if name in peers else Regard(folder)
