"""The JSON bodies of responses, for /openapi.json."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Problem(BaseModel):
    """A refused request."""

    error: str = Field(description="One sentence: the reason and the fix.")


class Health(BaseModel):
    """State of the server."""

    status: str = Field(description="ready or draining")
    model: str | None = Field(None, description="Only for authenticated clients, as kind and version.")
    kind: str | None = None
    version: str | None = None


class Hypothesis(BaseModel):
    """A generated text."""

    text: str
    score: float = Field(description="Score of the ranking.")
    log_p: float = Field(description="Log-probability in nats.")
    tokens: int = Field(description="Number of tokens.")
    ended: bool = Field(description="False if it was cut off at max_length.")


class Translation(Hypothesis):
    """The best translation; for an empty source it is empty and has no score."""

    score: float | None  # type: ignore[assignment]
    log_p: float | None  # type: ignore[assignment]
    parts: int | None = Field(None, description="Number of parts in which a long text was translated.")
    hypotheses: list[Hypothesis] | None = Field(
        None, description="All hypotheses, if there are several; this one first."
    )


class Translations(BaseModel):
    """One per text, in order."""

    translations: list[Translation]


class Generated(BaseModel):
    """Continuations, without the prompt."""

    texts: list[Hypothesis]


class Label(BaseModel):
    """The label of a text; null for a blank text, or below the threshold."""

    label: str | None
    probability: float | None = Field(description="Of the most likely label.")
    probabilities: dict[str, float] = Field(description="Of the `top` most likely labels.")


class Labels(BaseModel):
    """One per text, in order."""

    labels: list[Label]


class Span(BaseModel):
    """An entity of a text."""

    start: int = Field(description="First character.")
    end: int = Field(description="After the last character.")
    type: str
    text: str


class Tagged(BaseModel):
    """Words, tags and spans of a text."""

    words: list[str]
    tags: list[str]
    spans: list[Span]


class Tags(BaseModel):
    """One per text, in order."""

    texts: list[Tagged]


class Embeddings(BaseModel):
    """One vector of length 1 per text, in order."""

    embeddings: list[list[float]]


class Document(BaseModel):
    """A document."""

    id: str
    text: str
    score: float = Field(
        description="Score of the search method; scores of different methods do not compare."
    )


class QueryResult(BaseModel):
    """The documents for a query, best first."""

    query: str
    documents: list[Document]


class Results(BaseModel):
    """One per query, in order."""

    results: list[QueryResult]


class Matrix(BaseModel):
    """The weights of one attention layer."""

    name: str = Field(description="Name of the module, such as decoder.layers.0.cross.")
    kind: str = Field(description="encoder, decoder or cross")
    rows: list[str] = Field(description="Tokens of the queries.")
    columns: list[str] = Field(description="Tokens of the keys.")
    weights: list[list[list[float]]] = Field(
        description="By head, row and column; each row sums to 1 under softmax."
    )


class TextAttention(BaseModel):
    """A text and the attention with which it was generated or read."""

    text: str
    score: float | None
    attention: list[Matrix]
