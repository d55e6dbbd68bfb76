"""Tests of schema.py: the tables of keys, which `docs/recipes.md` contains."""

from pathlib import Path

from regard.recipe.schema import all_keys, key_sections, keys_as_markdown

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_documentation_has_the_current_tables():
    # To update the page, replace the tables by the output of keys_as_markdown().
    assert keys_as_markdown().strip() in PAGE.read_text(encoding="utf-8")


def test_every_key_is_described_in_a_table():
    described = {key.name for section in key_sections() for key in section.keys}
    used = {key.rpartition(".")[2] for key in all_keys()}
    assert used - described == set()
    assert all(key.meaning for section in key_sections() for key in section.keys)


def test_a_key_has_its_default_and_allowed_values():
    rows = {(section.heading, key.name): key for section in key_sections() for key in section.keys}
    heads = rows["model.encoder, model.decoder: {kind: transformer}", "heads"]
    assert (heads.default, heads.allowed) == ("8", "integer ≥ 1")
    assert rows["data", "max_ratio"].allowed == "number > 1 or null"
    assert rows["training", "device"].allowed == "auto, cpu, cuda"
    assert rows["optimizer: {kind: adam}", "lr"].default == "0.0007"
    assert rows["tokenizer", "kind"].allowed.endswith("pretrained")
    assert rows["model.encoder.above: {kind: transformer}", "position"].default == "none"
    assert ("schedule: {kind: cosine}", "kind") not in rows
