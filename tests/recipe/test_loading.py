"""Tests of loading.py: files, names, overrides, defaults and dumps of recipes."""

import os

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RecipeError
from regard.recipe import loading
from regard.recipe.loading import difference, dump_recipe, dump_yaml, load_recipe, parse_yaml
from regard.recipe.schema import Recipe, all_keys
from tests.recipe.messages import BASE, message_of, write


def file_error(folder, text):
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(folder, text))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_short_recipe_gets_all_defaults():
    recipe = load_recipe(BASE)
    assert recipe.data.corpus == "multi30k"
    assert recipe.model.encoder is not None
    assert recipe.model.encoder.kind == recipe.model.decoder.kind == "transformer"
    assert (recipe.model.dim, recipe.batch.mode, recipe.optimizer.betas) == (512, "lines", [0.9, 0.98])
    language = load_recipe({"task": "language", "data": "tiny-shakespeare"})
    assert language.model.encoder is None
    assert language.batch.mode == "crops"
    recurrent = load_recipe(
        {"task": "language", "data": "wikitext-2", "model": {"decoder": {"kind": "recurrent"}}}
    )
    assert recurrent.batch.mode == "stream"


# Their start is made from another model (benchmarks/translator/README.md); the bundled one is as large.
START = {f"tatoeba-en-de-fr-{part}": ["training.start=tatoeba-en-de-fr"] for part in ("continued", "sampled")}


@pytest.mark.parametrize("path", loading.recipe_files().values(), ids=lambda p: p.stem)
def test_every_included_recipe_is_valid_has_a_description_and_is_unchanged_by_dumping(path, tmp_path):
    recipe = load_recipe(path, START.get(path.stem, ()))
    assert recipe.name == path.stem
    assert recipe.about
    assert load_recipe(write(tmp_path, dump_recipe(recipe))) == recipe
    assert load_recipe(recipe) == recipe


def test_the_default_name_of_a_recipe_is_its_file_name(tmp_path):
    assert load_recipe(write(tmp_path, "data: multi30k", "my run.yaml")).name == "my-run"
    assert load_recipe(write(tmp_path, "data: multi30k\nname: other")).name == "other"
    assert load_recipe(write(tmp_path, "data: multi30k"), ["name=third"]).name == "third"


def test_overrides_are_yaml():
    recipe = load_recipe(
        BASE,
        [
            "optimizer.lr=1e-3",
            "model.encoder.layers=2",
            "data.source=no",
            "optimizer.betas=[0.9, 0.95]",
            "training.epochs=2",
        ],
    )
    assert recipe.optimizer.lr == 0.001
    assert recipe.model.encoder.layers == 2
    assert recipe.model.decoder.layers == 6
    assert recipe.data.source == "no"  # Norwegian, not false
    assert recipe.optimizer.betas == [0.9, 0.95]
    assert load_recipe(BASE, ["model.decoder={kind: bahdanau, cell: lstm}"]).model.decoder.cell == "lstm"
    assert load_recipe(BASE, ["training.steps=null", "training.minutes=5"]).training.steps is None


def test_overrides_do_not_change_the_given_mapping():
    recipe = {"data": {"corpus": "multi30k"}, "model": {"dim": 64}}
    load_recipe(recipe, ["model.dim=128", "data.limit=5"])
    assert recipe == {"data": {"corpus": "multi30k"}, "model": {"dim": 64}}


@pytest.mark.parametrize("text", ["x", "=3", "a..b=3", ".a=3", "training.steps"])
def test_an_invalid_override_shows_an_example(text):
    assert "training.steps=200" in message_of(text)


def test_an_override_cannot_replace_a_value_by_a_block():
    assert "model.dim is 64" in message_of("model.dim.x=3", base={**BASE, "model": {"dim": 64}})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("empty",)),
        ("# only a comment\n", ("empty",)),
        ("- a\n- b\n", ("a list", "mapping")),
        ("just words", ("'just words'", "mapping")),
        ("data: multi30k\nmodel: {dim: 4\n", ("line 3", "not YAML")),
        ("data: multi30k\n\tmodel: 3\n", ("line 2", "not YAML")),
        ("seed: 1\ndata: multi30k\nseed: 2\n", ("line 3", "'seed' is given twice")),
        ("data: multi30k\nmodel:\n  dim: 4\n  dim: 8\n", ("line 4", "'dim' is given twice")),
        ("data: !!python/object/apply:os.getcwd []\n", ("line 1", "no tag")),
        ("data: &a multi30k\nname: *a\n", ("line 1", "no anchor")),
        ("3: x\n", ("line 1", "a key is a string")),
        (b"name: caf\xe9\n", ("not UTF-8", "byte 9")),
        (b"name: a\x00b\n", ("not YAML",)),
        ("seed: 1\n---\nseed: 2\n", ("not YAML",)),
        ("data: " + "[" * 1_000, ("nested too deeply",)),
        ("#" * (1 << 18), ("bytes long",)),
    ],
)
def test_an_invalid_file_is_named_with_the_line(text, parts, tmp_path):
    message = file_error(tmp_path, text)
    assert "mine.yaml" in message
    assert all(part in message for part in parts), message[-300:]


def test_a_missing_file_or_unknown_name_is_an_error_with_a_hint(tmp_path):
    for name, parts in (
        ("smal", ("did you mean small",)),
        ("zzzz", ("known are",)),
        (tmp_path / "none.yaml", ("no recipe file", "none.yaml")),
        (tmp_path, ("is a folder",)),
        ("x" * 5000, ("not the name of a recipe",)),
        (3, ("got int",)),
    ):
        with pytest.raises(RecipeError) as caught:
            load_recipe(name)
        assert all(part in str(caught.value) for part in parts)


def test_paths_are_relative_to_the_recipe_and_those_of_overrides_to_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = write(
        tmp_path, "data: {train: [[a.en, a.de]], validation: [v.tsv]}\ntokenizer: {load: words.json}\n"
    )
    recipe = load_recipe(path, ["data.test=[t.tsv]"])
    assert recipe.data.train == [[str(tmp_path / "a.en"), str(tmp_path / "a.de")]]
    assert recipe.data.validation == [str(tmp_path / "v.tsv")]
    assert recipe.tokenizer.load == str(tmp_path / "words.json")
    assert recipe.data.test == [str(tmp_path / "here" / "t.tsv")]


def test_the_difference_of_two_recipes_is_their_dotted_keys():
    a = load_recipe(BASE)
    assert difference(a, a) == []
    assert difference(a, load_recipe(BASE, ["model.encoder.layers=2", "seed=5"])) == [
        "seed",
        "model.encoder.layers",
    ]
    changed = difference(a, load_recipe(BASE, ["schedule={kind: cosine}"]))
    assert {"schedule.kind", "schedule.warmup", "schedule.floor"} == set(changed)


def test_a_dump_has_the_order_of_the_schema_and_is_standard_yaml():
    recipe = load_recipe(BASE, ["optimizer.eps=1e-9", "about=äöü 日本"])
    assert yaml.safe_load(dump_recipe(recipe)) == recipe.model_dump()
    assert list(yaml.safe_load(dump_recipe(recipe))) == list(Recipe.model_fields)


@given(
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers()
    | st.booleans()
    | st.none()
    | st.text(max_size=20)
)
def test_yaml_round_trip_of_plain_values(value):
    parsed = parse_yaml(dump_yaml({"a": value}))["a"]
    assert parsed == value
    assert isinstance(parsed, bool) == isinstance(value, bool)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("010", 10),
        ("1_000", 1000),
        ("~", None),
        (".5", 0.5),
        ("-3", -3),
    ],
)
def test_plain_values_are_those_of_yaml_1_2(text, value):
    assert parse_yaml(text) == value
    assert type(parse_yaml(text)) is type(value)


def test_all_keys_has_nested_keys_once():
    result = all_keys()
    assert len(result) == len(set(result))
    assert {
        "model.encoder.below.kernel",
        "model.decoder.attention",
        "schedule.warmup",
        "model.encoder.mask.of",
    } <= set(result)


def test_a_column_is_a_number_with_or_without_quotes_and_0_is_refused(tmp_path):
    recipe = load_recipe({"data": {"train": ["a.tsv"], "hold_out": 0.1, "source": 1, "target": "2"}})
    assert (recipe.data.source, recipe.data.target) == ("1", "2")
    path = write(tmp_path, "data: {train: [a.tsv], hold_out: 0.1, source: 2, target: '1'}\n")
    assert load_recipe(path).data.source == "2"
    overrides = ["data={train: [a.tsv], hold_out: 0.1}", "data.source=1", "data.target='2'"]
    assert load_recipe("small", overrides).data.target == "2"
    for zero in (0, "0"):
        with pytest.raises(
            RecipeError, match="data.source is 0, and columns are counted from 1; use 1 for the first column"
        ):
            load_recipe({"data": {"train": ["a.tsv"], "hold_out": 0.1, "source": zero, "target": 1}})


def test_a_recipe_made_in_python_raises_a_recipe_error():
    with pytest.raises(RecipeError, match="training is 'long', and must be a block of keys"):
        Recipe(training="long")


def test_recipes_of_a_registered_folder_are_known_by_name(tmp_path, monkeypatch):
    write(tmp_path, "data: multi30k\nseed: 5", "mine.yaml")
    monkeypatch.setattr(loading, "_folders", [])
    with pytest.raises(RecipeError, match="there is no recipe 'mine'"):
        load_recipe("mine")
    loading.add_folder(tmp_path)
    assert load_recipe("mine").seed == 5 and "small" in loading.recipe_files()
    with pytest.raises(RecipeError, match="there is no folder"):
        loading.add_folder(tmp_path / "missing")


def test_folders_of_the_environment_variable_replace_included_recipes(tmp_path, monkeypatch):
    write(tmp_path, "data: multi30k\nseed: 6", "small.yaml")
    monkeypatch.setenv("REGARD_RECIPES", f"{tmp_path}{os.pathsep}{tmp_path / 'missing'}")
    assert load_recipe("small").seed == 6 and loading.find_recipe("small") == tmp_path / "small.yaml"


def test_a_recipe_can_be_given_by_its_path(tmp_path, monkeypatch):
    path = write(tmp_path, "data: multi30k\nseed: 7", "mine.yaml")
    monkeypatch.chdir(tmp_path)
    assert load_recipe(str(path)).seed == load_recipe("mine.yaml").seed == load_recipe(path).seed == 7
