"""What the server answers, for the description that other programs read (/openapi.json)."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Problem(BaseModel):
    """Why a request was not served."""

    error: str = Field(description="One sentence: what is wrong and what to do.")


class Health(BaseModel):
    """Whether requests are taken, and by what."""

    status: str = Field(description="ready or draining")
    model: str | None = Field(None, description="Told to those who have the token.")
    kind: str | None = None
    version: str | None = None


class Hypothesis(BaseModel):
    """A text that was found."""

    text: str
    score: float = Field(description="What it was ranked by.")
    log_p: float = Field(description="Its log-probability in nats.")
    tokens: int = Field(description="How many tokens it has.")
    ended: bool = Field(description="False where the longest length cut it off.")


class Translation(Hypothesis):
    """The best text; for an empty source it is empty, without a score."""

    score: float | None  # type: ignore[assignment]
    log_p: float | None  # type: ignore[assignment]
    parts: int | None = Field(None, description="Of a long text: how many parts it was translated in.")
    hypotheses: list[Hypothesis] | None = Field(
        None, description="Where there are several: all of them, this first."
    )


class Translations(BaseModel):
    """One for each sentence, in order."""

    translations: list[Translation]


class Generated(BaseModel):
    """Texts that go on with the prompt, which they do not repeat."""

    texts: list[Hypothesis]


class Label(BaseModel):
    """The label of a text; null for a blank text, and below the threshold."""

    label: str | None
    probability: float | None = Field(description="Of the likeliest label.")
    probabilities: dict[str, float] = Field(description="Of the `top` likeliest labels.")


class Labels(BaseModel):
    """One for each text, in order."""

    labels: list[Label]


class Span(BaseModel):
    """An entity of a text."""

    start: int = Field(description="First character.")
    end: int = Field(description="Behind the last character.")
    type: str
    text: str


class Tagged(BaseModel):
    """The words of a text, a tag for each, and the spans they make."""

    words: list[str]
    tags: list[str]
    spans: list[Span]


class Tags(BaseModel):
    """One for each text, in order."""

    texts: list[Tagged]


class Embeddings(BaseModel):
    """One vector of length 1 for each text, in order."""

    embeddings: list[list[float]]


class Document(BaseModel):
    """A document that was found."""

    id: str
    text: str
    score: float = Field(description="How well it fits; scores of two ways to search do not compare.")


class Found(BaseModel):
    """The documents that fit a question, best first."""

    query: str
    found: list[Document]


class Results(BaseModel):
    """One for each question, in order."""

    results: list[Found]


class Matrix(BaseModel):
    """One attention of the model."""

    name: str = Field(description="The module that computed it, as decoder.layers.0.cross.")
    kind: str = Field(description="encoder, decoder or cross")
    rows: list[str] = Field(description="The pieces of text that look.")
    columns: list[str] = Field(description="The pieces of text that are looked at.")
    weights: list[list[list[float]]] = Field(
        description="By head, row and column; each row sums to 1 under softmax."
    )


class Looked(BaseModel):
    """A text and where the model looked while it wrote it."""

    text: str
    score: float | None
    attention: list[Matrix]
