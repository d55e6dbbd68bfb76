"""Tests of import_marian.py and marian_tokenizers.py: kinds of folders, compared with Transformers."""

import json
import pickle
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.data.tokenizer import BOS, EOS
from regard.decoding.engine.cpp_engine import Engine, _why_not_here
from regard.errors import FolderError
from regard.interchange import import_marian
from regard.interchange.export import compare as comparing
from regard.interchange.import_model import import_model
from regard.interchange.token_mapping import MappedRunner
from regard.models.folder import load
from regard.models.target_language import add_target, target_language
from regard.pipelines.align import align_words
from regard.pipelines.translate import translate_tokens
from tests.interchange.marian_folders import LANGUAGES, marian_tokenizer, save_marian
from tests.interchange.small_models import ENGLISH, GERMAN

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")

# Kinds of folders, as in the table of docs/exporting.md, and options of `save_marian` for each.
FOLDERS = {
    "one vocabulary (opus-mt-en-de)": {},
    "separate vocabularies (opus-mt-tc-big-…)": {"separate": True},
    "separate tables for one vocabulary": {"share_encoder_decoder_embeddings": False},
    "separate output table": {"tie_word_embeddings": False},
    "several target languages (`>>fra<<`)": {"languages": LANGUAGES},
    "several target languages, separate vocabularies": {"languages": LANGUAGES, "separate": True},
    "SentencePiece BPE": {"spm": {"model_type": "bpe"}},
    "SentencePiece unigram with byte fallback": {"spm": {"byte_fallback": True}, "separate": True},
    "SentencePiece BPE with byte fallback": {"spm": {"model_type": "bpe", "byte_fallback": True}},
    "user-defined symbols": {"spm": {"user_defined_symbols": ("Tom", "日本")}},
    "other normalization (nfkc_cf)": {"spm": {"normalization_rule_name": "nfkc_cf"}},
    "activation relu": {"activation_function": "relu"},
    "activation gelu": {"activation_function": "gelu"},
    "embeddings that are not scaled": {"scale_embedding": False},
}
UNUSUAL_TEXTS = [
    "", " ", "   two  spaces ", "\ttab\nline", "< pad >", "ﬁ ＦＵＬＬ\u3000width ①", "日本 TV", "日本語",
    "cafe\u0301 n\u0303",
    "e\u0301\u0323", "👩‍👩‍👧 😀!", "zero\u200bwidth\u00ad\ufeff", "x" * 300,
    "Donaudampfschifffahrt" * 30, "!!!!!!!!!!!",
    "각\u1100\u1161\u11a8", "\x00\x07", "▁x ▁▁", "<0x41>", "a >>fra<< b", "½ ™ … “quoted” – dash",
]  # fmt: skip


@pytest.fixture(autouse=True)
def few_sentences(monkeypatch):
    """Overrides that of conftest.py, with fewer sentences: many folders are imported."""
    monkeypatch.setattr(comparing, "SENTENCES", 2)


QUICK = [kind for kind in FOLDERS if re.search(r"tc-big|`>>fra<<`|with byte fallback", kind)]


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in FOLDERS]
)
def test_token_ids_scores_and_translations_equal_those_of_transformers(tmp_path, kind):
    theirs, options = save_marian(tmp_path, **FOLDERS[kind]), FOLDERS[kind]
    assert import_model(tmp_path, tmp_path / "out").passed
    ours, mappings = load(tmp_path / "out"), import_marian.read(tmp_path)[1]
    their_tokenizer, language = marian_tokenizer(tmp_path), "".join(options.get("languages", ())[1:2])
    assert ours.source_tokenizer.languages == tuple(x[2:-2] for x in options.get("languages", ()))
    for text in [*ENGLISH[:40], *GERMAN[:40], *UNUSUAL_TEXTS]:
        for source in {text, f"{language} {text}", language + text} if language else {text}:
            ids = ours.source_tokenizer.encode(source)
            assert [*mappings["source"].theirs(ids), 0] == their_tokenizer(source).input_ids, source
            assert len(ours.source_tokenizer.spans(source)) == len(ids)
        ids = ours.target_tokenizer.encode(text)
        assert [*mappings["target"].theirs(ids), 0] == their_tokenizer(text_target=text).input_ids, text
        if 1 not in ids:  # UNK is � here and <unk> there
            assert ours.target_tokenizer.decode(ids) == their_tokenizer.decode(
                mappings["target"].theirs(ids), use_source_tokenizer=False
            )
    texts = [f"{language} {text}".strip() for text in ENGLISH[:3]]
    _assert_equal_scores(ours, theirs, mappings, texts[0])
    for beam in (1, 4):
        assert _translations(ours, texts, beam) == _generated(
            theirs, their_tokenizer, mappings["target"], texts, beam
        )


def _assert_equal_scores(ours, theirs, mappings, text):
    source = torch.tensor([[*ours.source_tokenizer.encode(text), EOS]])
    target = torch.tensor([[BOS, 9, 40, 17]])
    their_source = torch.tensor([mappings["source"].theirs(source[0].tolist())])
    their_target = torch.tensor([mappings["target"].theirs(target[0].tolist())])
    with torch.inference_mode():
        scores = ours.double()(source, target)[0]
        logits = theirs.double()(input_ids=their_source, decoder_input_ids=their_target).logits[0]
    ours.float()
    theirs.float()
    ids = mappings["target"].ids
    # Their position encodings are float32, also in a model of float64.
    torch.testing.assert_close(scores[:, 3:], logits[:, ids[3:]], rtol=0, atol=1e-6)


def _translations(ours, texts, beam):
    sentences = ours.source_tokenizer.encode_batch(texts)
    results = translate_tokens(
        ours, sentences, strategy=regard.Beam(beam), limits=regard.Limits(max_length=20)
    )
    return [[token for token in hypotheses[0].tokens if token != EOS] for hypotheses in results]


def _generated(theirs, their_tokenizer, mapping, texts, beam):
    """Translate with `generate`, one sentence at a time: padding changes float32 sums."""
    our_id, outputs = MappedRunner(None, mapping, mapping).ours, []
    stop = {"early_stopping": True} if beam > 1 else {}
    for text in texts:
        generated = theirs.generate(
            **their_tokenizer([text], return_tensors="pt"), num_beams=beam, max_new_tokens=20,
            max_length=None, forced_eos_token_id=None, **stop,
        )  # fmt: skip
        outputs.append([our_id[token] for token in generated[0, 1:].tolist() if token != 0])
    return outputs


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_imported_model_translates_without_other_libraries(tmp_path, precision, monkeypatch):
    layer = {
        "encoder_attention_heads": 2,
        "decoder_ffn_dim": 48,
    }  # equal on both sides, as the engine requires
    spm = {"model_type": "bpe", "byte_fallback": True}
    save_marian(tmp_path, languages=LANGUAGES, spm=spm, **layer)
    import_model(tmp_path, tmp_path / "out")
    for library in ("sentencepiece", "transformers"):
        monkeypatch.setitem(sys.modules, library, None)
    model = load(tmp_path / "out")
    assert model.card["decoding"] == {"beam": 4}
    texts = [f">>fra<< {text}" for text in ENGLISH[:20]]
    assert isinstance(regard.fast(model, precision), Engine) or _why_not_here(precision)
    expected = regard.translate(texts, model, beam=4, limits=regard.Limits(max_length=20))
    translations = regard.translate(
        texts, regard.fast(model, precision), beam=4, limits=regard.Limits(max_length=20)
    )
    equal = sum(a == b for a, b in zip(translations, expected, strict=True))
    assert equal == 20 if precision == "float32" else equal >= 12  # rounding to int8 changes near-ties
    plain = [text.removeprefix(">>fra<< ") for text in texts]
    assert regard.translate(plain, model, to="fra", beam=4, limits=regard.Limits(max_length=20)) == expected
    copied = pickle.loads(pickle.dumps(model.source_tokenizer))
    assert copied == model.source_tokenizer and copied.encode(texts[0]) == translations[0].source_tokens
    assert model.source_tokenizer.tokens(translations[0].source_tokens)[:2] == [">>fra<<", "▁"]


def test_words_of_imported_models_are_aligned(tmp_path):
    """Alignment of words needs the character span of each token, on both sides."""
    save_marian(tmp_path, languages=LANGUAGES, spm={"byte_fallback": True})
    model, _ = import_marian.read(tmp_path)
    ((_, alignment),) = align_words([">>fra<< Tom ﬁnds 日本 !"], [" Tom  ist"], model)
    assert alignment.source_words == ["Tom", "ﬁnds", "日本", "!"]
    assert alignment.target_words == ["Tom", "ist"]
    assert alignment.weights.shape == (2, 4) and (alignment.weights.sum(1) <= 1 + 1e-6).all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"normalize_before": True}, "config.json has normalize_before True, and MarianMT in transformers"),
        ({"static_position_embeddings": False}, "has static_position_embeddings False"),
        ({"activation_function": "tanh"}, "config.json has activation_function 'tanh', and regard supports"),
        ({"encoder_layers": 1}, "have an additional model.encoder.layers.1"),
        ({"encoder_layers": 3}, "lack model.encoder.layers.2"),
        ({"d_model": 64}, "have final_logits_bias of shape|have model.* of shape .* instead of"),
        ({"dropout": 1.5}, "config.json: model.dropout: Input should be less than 1, got 1.5"),
        ({"eos_token_id": [0, 5]}, r"has eos_token_id \[0, 5\]"),
        ({"is_encoder_decoder": False}, "transformers cannot run the model that is imported"),
    ],
)
def test_configurations_that_regard_cannot_compute_are_refused(tmp_path, change, reason):
    save_marian(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(FolderError, match=reason):
        import_model(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_generation_settings_of_the_folder(tmp_path):
    save_marian(tmp_path)
    path = tmp_path / "generation_config.json"
    options = json.loads(path.read_text())
    path.write_text(json.dumps(options | {"bad_words_ids": [[options["pad_token_id"]], [7]], "num_beams": 6}))
    model, mappings = import_marian.read(tmp_path)
    assert model.card == {"decoding": {"beam": 6}, "languages": {"source": "eng", "target": "deu"}}
    assert target_language(model) == "deu"
    bias = model.output.projection.bias
    never = [mappings["target"].ids[i] for i in (bias < -1e8).nonzero()[:, 0].tolist()]
    assert never == [None, options["pad_token_id"], 7]  # PAD, BOS and the bad word
    for change, reason in (
        ({"bad_words_ids": [[3, 4]]}, "excludes a sequence of tokens"),
        ({"forced_bos_token_id": 5}, "has forced_bos_token_id"),
    ):
        path.write_text(json.dumps(options | change))
        with pytest.raises(FolderError, match=reason):
            import_marian.read(tmp_path)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def test_search_options_of_the_folder_do_not_change_the_comparison(tmp_path):
    """They change what `generate` returns, and regard's search has options of its own."""
    save_marian(tmp_path)
    changed = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "sequence_bias": [[[5], 3.0]]}
    other = {"num_return_sequences": 2, "return_dict_in_generate": True, "guidance_scale": 1.5}
    edit(tmp_path / "generation_config.json", **changed, **other)
    assert import_model(tmp_path, tmp_path / "out").passed
    assert load(tmp_path / "out").card["generation"] == changed | {"guidance_scale": 1.5}


def test_a_start_token_that_texts_can_have_is_encoded_and_generated_as_in_transformers(tmp_path):
    theirs = save_marian(tmp_path)
    start = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))["▁is"]
    theirs.final_logits_bias[0, start] += 40
    theirs.generation_config.update(decoder_start_token_id=start, pad_token_id=None)
    theirs.save_pretrained(tmp_path)
    (model, mappings), their_tokenizer = import_marian.read(tmp_path), marian_tokenizer(tmp_path)
    ids = mappings["source"].theirs(model.source_tokenizer.encode("He is old."))
    assert start in ids and [*ids, 0] == their_tokenizer("He is old.").input_ids
    (output,) = _translations(model, ENGLISH[:1], 1)
    assert start in mappings["target"].theirs(output)
    assert [output] == _generated(theirs, their_tokenizer, mappings["target"], ENGLISH[:1], 1)


def test_texts_may_be_longer_than_the_positions_of_the_folder(tmp_path):
    save_marian(tmp_path, max_position_embeddings=4)
    assert import_model(tmp_path, tmp_path / "out").passed


def test_stored_positions_must_be_sinusoidal(tmp_path):
    theirs = save_marian(tmp_path)
    positions = theirs.model.encoder.embed_positions.weight.clone()
    weights = load_file(tmp_path / "model.safetensors") | {"model.encoder.embed_positions.weight": positions}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    import_marian.read(tmp_path)
    positions[3, 5] += 0.1
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(FolderError, match="a table of positions that are not sinusoidal"):
        import_marian.read(tmp_path)


def test_language_codes_are_split_off_as_marian_tokenizer_does(tmp_path):
    save_marian(tmp_path, languages=LANGUAGES)
    (model, mappings), theirs = import_marian.read(tmp_path), marian_tokenizer(tmp_path)
    for text in (
        ">>fra<",
        ">>fra",
        ">>fra<<",
        ">>fra<<a",
        " >>fra<< a",
        ">>fra<< >>deu<< a",
        "a >>fra<<",
        "<<",
    ):
        ids = mappings["source"].theirs(model.source_tokenizer.encode(text))
        assert [*ids, 0] == theirs(text).input_ids, text
    assert add_target([">>fra<<Hello", ">>fra<< Hello"], model) == [">>fra<< Hello"] * 2


def test_names_of_the_special_tokens_are_those_of_the_folder(tmp_path):
    save_marian(tmp_path)
    path = tmp_path / "vocab.json"
    text = path.read_text(encoding="utf-8").replace('"</s>"', '"<end>"').replace('"<unk>"', '"[UNK]"')
    path.write_text(text, encoding="utf-8")
    edit(
        tmp_path / "tokenizer_config.json",
        eos_token={"__type": "AddedToken", "content": "<end>"},
        unk_token="[UNK]",
    )
    (model, mappings), theirs = import_marian.read(tmp_path), marian_tokenizer(tmp_path)
    ids = [*model.source_tokenizer.encode("日 Tom"), EOS]
    assert mappings["source"].theirs(ids) == theirs("日 Tom").input_ids


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sp_model_kwargs": {"enable_sampling": True}}, "has sp_model_kwargs {'enable_sampling': True}"),
        ({"added_tokens_decoder": {"9": {"content": "Tom", "special": False}}}, "additional token 'Tom'"),
        ({"separate_vocabs": False}, r"vocab.json has only \d+ of the 397 pieces of target.spm"),
    ],
)
def test_tokenizer_options_that_regard_does_not_have_are_refused(tmp_path, changes, reason):
    save_marian(tmp_path, separate=True)
    edit(tmp_path / "tokenizer_config.json", **changes)
    with pytest.raises(FolderError, match=reason):
        import_marian.read(tmp_path)


def test_two_pieces_with_one_id_are_refused(tmp_path):
    save_marian(tmp_path)
    edit(tmp_path / "vocab.json", **{"▁is": 9, "▁a": 9})
    with pytest.raises(FolderError, match="vocab.json gives both .* the id 9"):
        import_marian.read(tmp_path)


def test_incomplete_or_mixed_folders_are_refused(tmp_path):
    save_marian(tmp_path, separate=True)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    for changed_vocabulary, reason in (
        ({"<unk>": 1}, "vocab.json has no </s>"),
        (vocabulary | {"x": 9999}, "vocab.json gives 'x' the id 9999, but the embeddings of the model have"),
    ):
        (tmp_path / "vocab.json").write_text(json.dumps(changed_vocabulary), encoding="utf-8")
        with pytest.raises(FolderError, match=reason):
            import_model(tmp_path, tmp_path / "out")
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    for name in ("target.spm", "target_vocab.json", "vocab.json"):
        (tmp_path / name).unlink()
        with pytest.raises(FolderError, match=f"has no {name}, which MarianMT's tokenizer needs"):
            import_model(tmp_path, tmp_path / "out")


def test_the_table_in_the_docs_lists_the_tested_folders():
    page = Path(__file__).parents[2] / "docs" / "exporting.md"
    table = re.search(
        r"\| MarianMT folder \|.*?\n\|[-| ]+\n(.*?)\n\n", page.read_text(encoding="utf-8"), re.S
    )[1]
    assert [line.split("|")[1].strip() for line in table.splitlines()] == list(FOLDERS)
