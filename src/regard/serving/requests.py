"""What a request may hold, and in one sentence what is wrong with one that holds something else."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from regard.decoding.sampling import MAX_TEMPERATURE, MIN_TEMPERATURE
from regard.recipe.messages import did_you_mean, show_value
from regard.serving.request_limits import Refusal, RequestLimits

MOST_BEAMS = 32
MOST_WORDS = 1024  # of an answer


class Body(BaseModel):
    """A JSON object with these keys and no others."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False
    )  # frozen: equal ones share a batch


class Draw(Body):
    """Words drawn by their probability rather than the best ones."""

    temperature: float = Field(
        1.0,
        ge=MIN_TEMPERATURE,
        le=MAX_TEMPERATURE,
        description="Below 1 likely words become likelier, above 1 less so.",
    )
    top_k: int = Field(0, ge=0, lt=2**31, description="Draw from so many words; 0 from all.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Draw from the likeliest words that have this probability together."
    )
    min_p: float = Field(
        0.0, ge=0, le=1, description="Draw from words at least this times as likely as the likeliest."
    )
    count: int = Field(1, ge=1, le=MOST_BEAMS, description="Texts to draw.")
    seed: int | None = Field(
        None, ge=0, lt=2**53, description="The same seed gives the same text; one is drawn unless given."
    )


class Ruled(Body):
    """What an answer may not be."""

    min_length: int = Field(0, ge=0, le=MOST_WORDS, description="Fewest tokens of an answer.")
    no_repeat: int = Field(0, ge=0, le=100, description="No so many tokens in a row twice; 0 is off.")
    forbidden: tuple[str, ...] = Field((), max_length=100, description="Words that may not occur.")


class Search(Body):
    """How texts are searched for."""

    beam: int = Field(1, ge=1, le=MOST_BEAMS, description="Texts kept at each step; 1 is greedy.")
    length_penalty: float = Field(
        1.0, ge=0, le=10, description="Texts are ranked by log p / length to this power."
    )
    max_length: int | None = Field(
        None, ge=1, le=MOST_WORDS, description="Most tokens of an answer; else by the length of the source."
    )


class Sentences(Body):
    """One or many."""

    text: str | None = Field(None, description="One sentence; or give `texts`.")
    texts: tuple[str, ...] | None = Field(None, description="Sentences; the answers come in this order.")

    def all_texts(self) -> list[str]:
        if (self.text is None) == (self.texts is None):
            raise Refusal(422, "give either text, one sentence, or texts, a list of sentences")
        return [self.text] if self.text is not None else list(self.texts or ())


class Translate(Ruled, Search, Sentences):
    """Sentences to translate."""

    nbest: int | None = Field(
        None, ge=1, le=MOST_BEAMS, description="Texts to give for each sentence, best first; at most `beam`."
    )
    sample: Draw | None = Field(None, description="Draw words rather than search for the best text.")
    coverage_penalty: float = Field(
        0.0, ge=0, le=10, description="Rank texts down that leave words of the source unattended."
    )
    groups: int = Field(
        1, ge=1, le=MOST_BEAMS, description="Cut the beam into groups that find different texts."
    )
    diversity: float = Field(0.5, ge=0, le=100, description="How much groups keep apart.")
    required: tuple[str, ...] = Field((), max_length=10, description="Words that must occur.")
    prefix: str | None = Field(None, description="How each translation begins.")
    to: str | None = Field(
        None, description="The language to translate into; a model of one direction refuses another."
    )
    stream: bool = Field(
        False,
        description="Send server-sent events: of one text with beam 1 the tokens as they are found, else finished translations.",
    )

    @property
    def by_token(self) -> bool:
        """True if each token is final when it is found, so that a stream can send it: one text, greedy or one sample."""
        several = self.beam > 1 or (self.nbest or 1) > 1 or bool(self.required)
        return self.text is not None and not several and (self.sample is None or self.sample.count == 1)


class Classify(Sentences):
    """Texts to label."""

    top: int = Field(
        1, ge=1, le=1000, description="Labels to give with their probabilities, likeliest first."
    )
    threshold: float = Field(0.0, ge=0, le=1, description="Give no label below this probability.")


class Tag(Sentences):
    """Texts to tag."""

    spaced: bool = Field(
        False, description="Words stand apart by spaces already; else they are split as in training."
    )
    scheme: Literal["bio", "iobes", "io"] | None = Field(
        None, description="Scheme of the tags; else the model's own."
    )


class Embed(Sentences):
    """Texts to embed."""


class Find(Sentences):
    """Questions to an index."""

    count: int = Field(10, ge=1, le=1000, description="Documents to find.")
    by: Literal["hybrid", "vectors", "bm25"] = Field(
        "hybrid", description="Vectors and words, vectors alone, or words alone."
    )
    exact: bool = Field(False, description="Compare with every vector instead of walking through the graph.")


class Prompt(Body):
    """The beginning of a text."""

    prompt: str = Field("", description="The beginning of the text.")


class Generate(Ruled, Prompt):
    """A text to go on with."""

    max_length: int = Field(50, ge=1, le=MOST_WORDS, description="Most tokens to write.")
    sample: Draw = Field(Draw.model_validate({}), description="How words are drawn.")
    beam: int | None = Field(
        None, ge=1, le=MOST_BEAMS, description="Search for the best text rather than draw; 1 is greedy."
    )
    stream: bool = Field(False, description="Send words as they are found, as server-sent events.")


class Read(Body):
    """One text."""

    text: str = Field(description="The text that is read.")


class LookBack(Read):
    """A text within which a language model looks back."""


class Look(Search, Read):
    """A text whose translation is looked at."""

    target: str | None = Field(None, description="A translation to look at, rather than the model's own.")
    kinds: tuple[Literal["encoder", "decoder", "cross"], ...] = Field(
        ("encoder", "decoder", "cross"),
        description="The two self-attentions, and the looks of the decoder at the source.",
    )


def described(kind: type[Body]) -> dict[str, Any]:
    """The JSON schema of a request, with the schemas it refers to put where they are used."""
    schema = kind.model_json_schema()
    inner = schema.pop("$defs", {})

    def put(part: Any) -> Any:
        if isinstance(part, list):
            return [put(each) for each in part]
        if not isinstance(part, dict):
            return part
        found = inner[part["$ref"].rpartition("/")[2]] if "$ref" in part else {}
        return {**found, **{key: put(value) for key, value in part.items() if key != "$ref"}}

    return put(schema)


Asked = TypeVar("Asked", bound=Body)


def read(kind: type[Asked], body: bytes, limits: RequestLimits) -> Asked:
    """The request in some bytes of JSON."""
    try:
        asked = kind.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False)
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        raise Refusal(422, _sentence(kind, details[0]) + more) from None
    _check_sizes(asked, limits)
    return asked


def _check_sizes(asked: Body, limits: RequestLimits) -> None:
    """Bounds that the server's owner sets."""
    for name, value in asked:
        texts = value if isinstance(value, tuple) else [value]
        if name == "texts" and len(texts) > limits.texts:
            raise Refusal(
                422,
                f"texts has {len(texts):,} entries and at most {limits.texts:,} are taken; send several requests",
            )
        for i, text in enumerate(texts):
            if isinstance(text, str) and len(text) > limits.characters:
                place = f"{name}[{i}]" if isinstance(value, tuple) else name
                raise Refusal(
                    422,
                    f"{place} has {len(text):,} characters and at most {limits.characters:,} are taken; split it into sentences",
                )


KINDS = {
    "int_type": "an integer", "int_from_float": "an integer", "float_type": "a number", "finite_number": "a finite number",
    "bool_type": "true or false", "string_type": "text", "tuple_type": "a list", "string_unicode": "text in UTF-8",
}  # fmt: skip
BOUNDS = {
    "greater_than_equal": "at least",
    "greater_than": "more than",
    "less_than_equal": "at most",
    "less_than": "less than",
}


def _sentence(kind: type[Body], detail: ErrorDetails) -> str:
    """The field, its value and what it may be."""
    problem, context, loc = detail["type"], detail.get("ctx", {}), detail["loc"]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")
    block = Draw if len(loc) > 1 and loc[0] == "sample" else kind
    names, last = list(block.model_fields), str(loc[-1]) if loc else ""
    if problem == "json_invalid":
        return f"the request is not JSON: {context['error']}"
    if problem in ("model_type", "model_attributes_type"):
        wanted = Draw if loc else kind
        return f"{place or 'the request'} is {show_value(detail['input'])}, and must be an object with {', '.join(wanted.model_fields)}"
    if problem == "extra_forbidden":
        return f"there is no field {show_value(place)}" + (
            did_you_mean(last, names) or f"; the fields are {', '.join(names)}"
        )
    if problem == "missing":
        return f"the field {place} is missing: {block.model_fields[last].description}"
    return f"{place} is {show_value(detail['input'])}, and must be {_allowed(problem, context)}"


def _allowed(problem: str, context: dict[str, Any]) -> str:
    if problem in BOUNDS:
        (value,) = (v for k, v in context.items() if k in ("ge", "gt", "le", "lt"))
        return f"{BOUNDS[problem]} {value:g}" if isinstance(value, float) else f"{BOUNDS[problem]} {value}"
    if problem == "too_long":
        return f"a list of at most {context['max_length']}"
    if problem == "literal_error":
        return f"one of {context['expected']}"
    return KINDS.get(problem, problem.replace("_", " "))
