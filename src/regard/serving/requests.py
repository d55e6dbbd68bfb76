"""The JSON bodies of requests, and one sentence for a body that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from regard.decoding.sampling import MAX_TEMPERATURE, MIN_TEMPERATURE
from regard.recipe.checks import did_you_mean, show_value
from regard.serving.http_errors import RequestError
from regard.serving.request_limits import RequestLimits

MAX_BEAM = 32
MAX_LENGTH = 1024  # tokens of an answer
TO = "Target language; guessed for a model of several languages if the text is not in English."


class Body(BaseModel):
    """A JSON object with these keys and no others."""

    # Frozen, so hashable: requests with equal options share a batch.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Sampling(Body):
    """Sampling instead of beam search."""

    temperature: float = Field(
        1.0,
        ge=MIN_TEMPERATURE,
        le=MAX_TEMPERATURE,
        description="Softmax temperature.",
    )
    top_k: int = Field(0, ge=0, lt=2**31, description="Sample from the k most likely tokens; 0: all.")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Nucleus sampling: smallest set of tokens whose probability reaches this.",
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Sample from tokens with at least this share of the best token's probability.",
    )
    count: int = Field(1, ge=1, le=MAX_BEAM, description="Number of samples.")
    seed: int | None = Field(
        None, ge=0, lt=2**53, description="Seed; the same seed gives the same text. Default: random."
    )


class ConstraintFields(Body):
    """Constraints on the output."""

    min_length: int = Field(0, ge=0, le=MAX_LENGTH, description="Minimum number of tokens.")
    no_repeat: int = Field(0, ge=0, le=100, description="Never repeat an n-gram of this many tokens; 0: off.")
    forbidden: tuple[str, ...] = Field((), max_length=100, description="Phrases that must not occur.")


class SearchFields(Body):
    """Beam search."""

    beam: int | None = Field(
        None,
        ge=1,
        le=MAX_BEAM,
        description="Beam size; 1 is greedy search. Default: that of the model's card, else 1; a stream: 1.",
    )
    length_penalty: float = Field(
        1.0, ge=0, le=10, description="Exponent a of the length normalisation log p / lengthᵃ."
    )
    max_length: int | None = Field(
        None,
        ge=1,
        le=MAX_LENGTH,
        description="Maximum number of tokens; default: depends on the source length.",
    )


class Texts(Body):
    """One text or several."""

    text: str | None = Field(None, description="One text; or give `texts`.")
    texts: tuple[str, ...] | None = Field(
        None, description="Several texts; the answers are in the same order."
    )

    def all_texts(self) -> list[str]:
        if (self.text is None) == (self.texts is None):
            raise RequestError(422, "give either text, a string, or texts, a list of strings")
        return [self.text] if self.text is not None else list(self.texts or ())


class TranslateRequest(ConstraintFields, SearchFields, Texts):
    """Sentences to translate."""

    nbest: int | None = Field(
        None, ge=1, le=MAX_BEAM, description="Hypotheses per text, best first; at most `beam`."
    )
    sample: Sampling | None = Field(None, description="Sample instead of beam search.")
    coverage_penalty: float = Field(
        0.0, ge=0, le=10, description="Weight of the coverage penalty (Wu et al. 2016)."
    )
    groups: int = Field(1, ge=1, le=MAX_BEAM, description="Groups of diverse beam search.")
    diversity: float = Field(0.5, ge=0, le=100, description="Diversity penalty between groups.")
    required: tuple[str, ...] = Field((), max_length=10, description="Phrases that must occur.")
    prefix: str | None = Field(None, description="Every translation begins with this.")
    to: str | None = Field(None, description=TO)
    stream: bool = Field(
        False,
        description="Send server-sent events: tokens for one text with beam 1, otherwise whole translations.",
    )

    @property
    def by_token(self) -> bool:
        """True if a stream can send tokens: one text, greedy search or one sample."""
        several = (self.beam or 1) > 1 or (self.nbest or 1) > 1 or bool(self.required)
        return self.text is not None and not several and (self.sample is None or self.sample.count == 1)


class ClassifyRequest(Texts):
    """Texts to label."""

    top: int = Field(1, ge=1, le=1000, description="Number of labels with probabilities, most likely first.")
    threshold: float = Field(0.0, ge=0, le=1, description="No label if its probability is below this.")


class TagRequest(Texts):
    """Texts to tag."""

    spaced: bool = Field(False, description="The text is tokenised: split words at spaces only.")
    scheme: Literal["bio", "iobes", "io"] | None = Field(
        None, description="Tag scheme; default: the model's."
    )


class EmbedRequest(Texts):
    """Texts to embed."""


class SearchIndexRequest(Texts):
    """Queries to an index."""

    count: int = Field(10, ge=1, le=1000, description="Documents per query.")
    by: Literal["hybrid", "vectors", "bm25"] = Field(
        "hybrid", description="Search by vectors, by BM25, or by both (hybrid)."
    )
    exact: bool = Field(False, description="Exact search instead of HNSW.")


class Prompt(Body):
    """A prompt."""

    prompt: str = Field("", description="Text to continue.")


class GenerateRequest(ConstraintFields, Prompt):
    """A text to continue."""

    max_length: int = Field(50, ge=1, le=MAX_LENGTH, description="Maximum number of tokens.")
    sample: Sampling = Field(Sampling.model_validate({}), description="Sampling.")
    beam: int | None = Field(
        None, ge=1, le=MAX_BEAM, description="Beam search instead of sampling; 1 is greedy search."
    )
    stream: bool = Field(False, description="Send tokens as server-sent events.")


class SingleText(Body):
    """One text."""

    text: str = Field(description="The input text.")


class SelfAttentionRequest(SingleText):
    """A text; returns the self-attention of a language model."""


class AttentionRequest(SearchFields, SingleText):
    """A text; returns the attention of a translator for its translation."""

    target: str | None = Field(None, description="A given translation instead of the model's.")
    to: str | None = Field(None, description=TO)
    kinds: tuple[Literal["encoder", "decoder", "cross"], ...] = Field(
        ("encoder", "decoder", "cross"),
        description="Encoder and decoder self-attention, and cross-attention.",
    )


def json_schema(kind: type[Body]) -> dict[str, Any]:
    """Return the JSON schema of a request with all references resolved."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(part: Any) -> Any:
        if isinstance(part, list):
            return [resolve(entry) for entry in part]
        if not isinstance(part, dict):
            return part
        target = definitions[part["$ref"].rpartition("/")[2]] if "$ref" in part else {}
        return {**target, **{key: resolve(value) for key, value in part.items() if key != "$ref"}}

    return resolve(schema)


Request = TypeVar("Request", bound=Body)


def parse(kind: type[Request], body: bytes, limits: RequestLimits) -> Request:
    """Parse and check the JSON body of a request."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False)
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        raise RequestError(422, _sentence(kind, details[0]) + more) from None
    _check_sizes(request, limits)
    return request


def _check_sizes(request: Body, limits: RequestLimits) -> None:
    """Raise RequestError above the limits of the server."""
    for name, value in request:
        texts = value if isinstance(value, tuple) else [value]
        if name == "texts" and len(texts) > limits.texts:
            raise RequestError(
                422,
                f"texts has {len(texts):,} entries, and at most {limits.texts:,} are allowed; send several "
                "requests",
            )
        for i, text in enumerate(texts):
            if isinstance(text, str) and len(text) > limits.characters:
                place = f"{name}[{i}]" if isinstance(value, tuple) else name
                raise RequestError(
                    422,
                    f"{place} has {len(text):,} characters, and at most {limits.characters:,} are allowed; "
                    "split it into sentences",
                )


KINDS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "string_unicode": "text in UTF-8",
}
BOUNDS = {
    "greater_than_equal": "at least",
    "greater_than": "more than",
    "less_than_equal": "at most",
    "less_than": "less than",
}


def _sentence(kind: type[Body], detail: ErrorDetails) -> str:
    """Return one sentence with the field, its value and what is allowed."""
    problem, context, loc = detail["type"], detail.get("ctx", {}), detail["loc"]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")
    block = _body_at(kind, loc[:-1])
    names, last = list(block.model_fields), str(loc[-1]) if loc else ""
    if problem == "json_invalid":
        return f"the request is not JSON: {context['error']}"
    if problem in ("model_type", "model_attributes_type"):
        names = ", ".join(_body_at(kind, loc).model_fields)
        return (
            f"{place or 'the request'} is {show_value(detail['input'])}, and must be an object with {names}"
        )
    if problem == "extra_forbidden":
        return f"there is no field {show_value(place)}" + (
            did_you_mean(last, names) or f"; the fields are {', '.join(names)}"
        )
    if problem == "missing":
        return f"the field {place} is missing: {block.model_fields[last].description}"
    several = "; give a list as texts" * (place == "text" and isinstance(detail["input"], list))
    return f"{place} is {show_value(detail['input'])}, and must be {_allowed(problem, context)}{several}"


def _body_at(kind: type[Body], loc: Sequence[int | str]) -> type[Body]:
    """The kind of the object at a place of a request."""
    for part in loc:
        if isinstance(part, str):
            kind = _body_in(kind.model_fields[part].annotation) or kind
    return kind


def _body_in(annotation: Any) -> type[Body] | None:
    """The kind of object that a field holds, alone, in a list or optionally."""
    if isinstance(annotation, type) and issubclass(annotation, Body):
        return annotation
    return next(filter(None, map(_body_in, get_args(annotation))), None)


def _allowed(problem: str, context: dict[str, Any]) -> str:
    if problem in BOUNDS:
        (value,) = (v for k, v in context.items() if k in ("ge", "gt", "le", "lt"))
        return f"{BOUNDS[problem]} {value:g}" if isinstance(value, float) else f"{BOUNDS[problem]} {value}"
    if problem == "too_long":
        return f"a list of at most {context['max_length']}"
    if problem == "literal_error":
        return f"one of {context['expected']}"
    return KINDS.get(problem, problem.replace("_", " "))
