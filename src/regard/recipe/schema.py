"""What a recipe may say: every key, its kind, its range and its default. `recipe.py` reads one, `checks.py` weighs the parts.

Each class is one block of the YAML file and each field one key of it; the description is what `docs/recipes.md` explains.
Nothing is converted silently: a word where a number belongs is an error, as is a key that is not here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, Tag, ValidationError

from regard.models.autoregressive import AutoregressiveOptions
from regard.models.build import ModelOptions
from regard.models.options import MAX_COUNT, Block, Positive, by_kind

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Amount = Annotated[float, Field(ge=0)]
Files = list[str | list[str]]


def _unquoted(value: object) -> object:
    """A column's number may be written with or without quotes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Side = Annotated[str | None, BeforeValidator(_unquoted)]
RISE = "steps over which the rate rises from 0 in a straight line"


class Data(Block):
    """Which text is read."""

    corpus: str | None = Field(
        default=None, description="a corpus known by name (`regard data` lists them), instead of files"
    )
    source: Side = Field(
        default=None,
        description="what is read: a language, a field of JSON lines, a column by name or number from 1",
    )
    target: Side = Field(
        default=None, description="what is written: the same; a classifier's labels, a tagger's tags"
    )
    train: Files = Field(
        default=[],
        description="training files instead of a corpus: [a.en, a.de] side by side, or one .tsv, .csv or .jsonl",
    )
    validation: Files = Field(default=[], description="validation files, as for train")
    test: Files = Field(default=[], description="test files, as for train")
    version: str | None = Field(
        default=None, description="a version of the corpus, as `tok` for Multi30k's tokenised text"
    )
    max_length: Positive = Field(
        default=256, description="pairs with a side of more tokens are left out and counted"
    )
    max_ratio: Annotated[float, Field(gt=1)] | None = Field(
        default=None, description="pairs whose sides differ in length by more than this factor are left out"
    )
    limit: Positive | None = Field(
        default=None, description="only the first so many pairs or lines of the training text"
    )
    folds: Annotated[int, Field(ge=2, le=MAX_COUNT)] | None = Field(
        default=None,
        description="cross-validation: the training rows are cut into so many folds, each class alike",
    )
    fold: Positive | None = Field(
        default=None, description="which fold, from 1, is the test set; the others are trained on"
    )
    hold_out: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="the share of the training rows to validate on, by a hash of the text; of a text the last lines",
    )
    scheme: Literal["bio", "iobes", "io"] | None = Field(
        default=None, description="how a tagger's spans are written as tags; null: as in the files"
    )
    repair: bool = Field(
        default=False,
        description="tags that break the rules of their scheme are read as conlleval reads them",
    )


class Tokenizer(Block):
    """How text becomes tokens."""

    kind: Literal["bpe", "byte-bpe", "unigram", "word", "character", "spelled", "pretrained"] = Field(
        default="bpe",
        description="what a token is; spelled: a word and its spelling, for taggers; pretrained: as the model that is fine-tuned",
    )
    size: Positive = Field(
        default=8000, description="tokens in the vocabulary, the four special ones included; an upper bound"
    )
    joint: bool = Field(default=True, description="one vocabulary for both sides")
    lowercase: bool = Field(
        default=False, description="the text is lower-cased first, which cannot be undone"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="BPE-dropout: the share of merges left out at random while training"
    )
    variants: Positive = Field(
        default=8, description="with dropout: how many ways of splitting the training text are prepared"
    )
    min_count: Positive = Field(
        default=1, description="whole words seen less often are unknown, in training too"
    )
    load: str | None = Field(
        default=None, description="take the tokenizer from this file or model folder instead of training one"
    )


class Batch(Block):
    """How much is learned from at once."""

    tokens: Positive = Field(
        default=4096, description="rows × longest side of one batch, padding included, on one device"
    )
    multiple: Positive = Field(
        default=1,
        description="the longest side counts rounded up to a multiple of this; 4 gives training.graph few shapes",
    )
    accumulate: Positive = Field(default=1, description="batches whose gradients are added before a step")
    sentences: Positive | None = Field(
        default=None, description="at most so many rows in a batch; for windows the rows of a batch"
    )
    length: Annotated[int, Field(ge=2, le=MAX_COUNT)] = Field(
        default=256, description="language models: tokens in a window"
    )
    mode: Literal["lines", "stream", "crops"] | None = Field(
        default=None,
        description="lines: a row each; crops: windows at random; stream: windows in order, the state kept; null: by the task",
    )


class Optimizer(Block):
    """How a gradient becomes a step."""

    kind: Literal["adam", "adamw"] = Field(
        default="adam", description="Adam, or Adam with decoupled weight decay"
    )
    lr: Annotated[float, Field(gt=0)] = Field(default=0.0007, description="the learning rate at its highest")
    head_lr: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="fine-tuning: the learning rate of weights that are not pretrained, as the head; null: lr",
    )
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] = Field(
        default=[0.9, 0.98], description="how slowly the means of the gradient and of its square forget"
    )
    eps: Annotated[float, Field(gt=0)] = Field(
        default=1e-9, description="added to the root of the second mean"
    )
    weight_decay: Amount = Field(
        default=0.0, description="share of each weight matrix taken away per unit of learning rate"
    )
    clip: Annotated[float, Field(gt=0)] | None = Field(
        default=1.0, description="longest gradient; null does not clip"
    )


class InverseSqrt(Block):
    """lr · √(warmup/step) after the rise: the Transformer's."""

    kind: Literal["inverse-sqrt"] = "inverse-sqrt"
    warmup: Positive = Field(default=4000, description=RISE)


class Cosine(Block):
    """Half a cosine from lr down to floor at the last step."""

    kind: Literal["cosine"] = "cosine"
    warmup: Count = Field(default=0, description=RISE)
    floor: Amount = Field(default=0.0, description="the lowest rate")


class Plateau(Block):
    """lr times factor whenever validation has not improved `patience` times in a row."""

    kind: Literal["plateau"] = "plateau"
    warmup: Count = Field(default=0, description=RISE)
    factor: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.5, description="what the rate is multiplied by"
    )
    patience: Count = Field(default=2, description="validations without improvement that are borne")
    floor: Amount = Field(default=0.0, description="the lowest rate")


class Constant(Block):
    """lr all the way."""

    kind: Literal["constant"] = "constant"
    warmup: Count = Field(default=0, description=RISE)


Schedule = Annotated[
    Annotated[InverseSqrt, Tag("inverse-sqrt")]
    | Annotated[Cosine, Tag("cosine")]
    | Annotated[Plateau, Tag("plateau")]
    | Annotated[Constant, Tag("constant")],
    by_kind("inverse-sqrt"),
]


class Training(Block):
    """How long, how exactly and on what."""

    start: str | None = Field(
        default=None,
        description="fine-tune the model in this folder: its weights, tokenizers and model section",
    )
    steps: Positive | None = Field(
        default=10000, description="steps of the optimizer; null: epochs or minutes decide"
    )
    epochs: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="passes over the data, if that comes first"
    )
    minutes: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="minutes, if that comes first"
    )
    smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.1, description="label smoothing: probability given to all words alike"
    )
    agreement: Amount = Field(
        default=0.0,
        description="R-Drop: each batch is read twice, and how strongly both readings should agree; 0: read once",
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="what matrix products are computed in"
    )
    ema: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="exponential mean of the weights, as 0.999; 0: none"
    )
    validate_every: Positive = Field(default=500, description="steps between validations")
    save_every: Positive = Field(default=500, description="steps between checkpoints")
    log_every: Positive = Field(default=50, description="steps between lines of the log")
    keep: Positive = Field(default=3, description="best checkpoints kept, beside the last")
    average: Positive = Field(
        default=1, description="checkpoints averaged into the finished model; 1: the best alone"
    )
    patience: Positive | None = Field(
        default=None, description="stop after so many validations without improvement"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto takes a GPU when there is one"
    )
    strategy: Literal["ddp", "fsdp"] = Field(
        default="ddp", description="under torchrun: copies of the model, or its parts spread out"
    )
    threads: Positive | None = Field(default=None, description="threads of a CPU; null: torch's own choice")
    graph: bool = Field(
        default=False,
        description="on a GPU: replay the step of each shape of batch as one CUDA graph, for small Transformers",
    )
    tensorboard: bool = Field(
        default=False, description="write a TensorBoard log too (needs the tensorboard extra)"
    )


class Decoding(Block):
    """How translations are searched for, in validation and at the end."""

    beam: Positive = Field(default=5, description="beam of the final evaluation")
    validation_beam: Positive = Field(
        default=1, description="beam of the validations while training; 1 is greedy"
    )
    length_penalty: float = Field(default=1.0, description="scores are divided by length to this power")
    max_length: Positive | None = Field(
        default=None, description="longest translation; null: one and a half times the source and 20 more"
    )


class _Stated(type(BaseModel)):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
    """`Recipe(…)` says in one sentence what is wrong; `Recipe.model_validate` lists every problem, as pydantic does."""

    def __call__(cls, *args: Any, **blocks: Any) -> Any:
        from regard.recipe.problems import sentences, stop  # which describe this schema

        try:
            return super().__call__(*args, **blocks)
        except ValidationError as error:
            stop(sentences(error, blocks))


class Recipe(Block, metaclass=_Stated):
    """A whole recipe, checked and with every default filled in. Read one with `regard.recipe.load_recipe`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] = Field(
        default="recipe", description="name of the run's folder; the file's name when not given"
    )
    about: str | None = Field(
        default=None, description="what it trains and what it reached, for `regard recipes`"
    )
    task: Literal["translate", "language", "classify", "tag", "embed"] = Field(
        default="translate", description="what the model learns to do"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=1, description="seed of everything drawn at random"
    )
    data: Data = Data()
    tokenizer: Tokenizer = Tokenizer()
    model: ModelOptions = Field(
        default=AutoregressiveOptions(), description="What is trained; its kind follows from the task."
    )
    batch: Batch = Batch()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Field(default=InverseSqrt(), description="How the learning rate goes.")
    training: Training = Training()
    decoding: Decoding = Decoding()
