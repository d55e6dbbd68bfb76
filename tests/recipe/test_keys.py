"""The tables of keys say what the schema says, and the page of the documentation holds them."""

from pathlib import Path

from regard.recipe.keys import everywhere, markdown, sections

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_page_holds_the_tables_of_the_schema_as_they_are_now():
    # After a change of the schema: python -c "from regard.recipe.keys import markdown; print(markdown())" gives the tables.
    assert markdown().strip() in PAGE.read_text(encoding="utf-8")


def test_every_key_of_the_schema_is_explained_in_some_table():
    explained = {key.name for section in sections() for key in section.keys}
    used = {place.rpartition(".")[2] for place in everywhere()}
    assert used - explained == set()
    assert all(key.meaning for section in sections() for key in section.keys)


def test_a_key_says_its_default_and_its_range():
    rows = {(section.title, key.name): key for section in sections() for key in section.keys}
    heads = rows["model.encoder, model.decoder: {kind: transformer}", "heads"]
    assert (heads.default, heads.allowed) == ("8", "whole number ≥ 1")
    assert rows["data", "max_ratio"].allowed == "number > 1 or null"
    assert rows["training", "device"].allowed == "auto, cpu, cuda"
    assert rows["optimizer", "kind"].default == "adam"
    assert rows["model.encoder.above: {kind: transformer}", "position"].default == "none"
    assert ("schedule: {kind: cosine}", "kind") not in rows
