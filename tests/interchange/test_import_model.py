"""Tests of import_model.py, import_marian.py, import_gpt2.py, sentencepiece.py and token_mapping.py.

Covers importer.py.
"""

import json
import warnings

import pytest
import torch

from regard.data.tokenizer import BOS, EOS
from regard.errors import FolderError, OptionError
from regard.interchange import import_gpt2, import_marian
from regard.interchange.export import compare as comparing
from regard.interchange.export.export import export
from regard.interchange.export.huggingface import HuggingFace
from regard.interchange.import_model import import_model
from regard.models.folder import load
from tests.interchange.small_models import ENGLISH, GERMAN, LAYER, make

transformers = pytest.importorskip("transformers")
spm = pytest.importorskip("sentencepiece")
TEXTS = [*ENGLISH[:100], *GERMAN[:100], "", " a  b ", "< pad >", "ﬁ ＦＵＬＬ\twidth", "日本 TV", "e\u0301"]


@pytest.fixture(autouse=True)
def few_sentences(monkeypatch):
    monkeypatch.setattr(comparing, "SENTENCES", 4)


def save_marian(folder, **changes):
    """Save a MarianMT with random weights and, as published ones have, two SentencePiece models."""
    vocabulary = {"</s>": 0, "<unk>": 1}
    for side, lines in (("source", ENGLISH), ("target", GERMAN)):
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_prefix=str(folder / side),
            vocab_size=300,
            model_type="unigram",
            minloglevel=2,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        inner = spm.SentencePieceProcessor(str(folder / f"{side}.spm"))
        for i in range(3, inner.get_piece_size()):
            vocabulary.setdefault(inner.id_to_piece(i), len(vocabulary))
    vocabulary["<pad>"] = pad = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    torch.manual_seed(1)
    config = transformers.MarianConfig(**{
        "vocab_size": len(vocabulary), "d_model": 32, "encoder_layers": 2, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 40, "activation_function": "swish", "max_position_embeddings": 64,
        "scale_embedding": True,
        "pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "init_std": 0.3, **changes,
    })  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    return model


def test_an_imported_marian_gives_the_same_scores_and_token_ids(tmp_path):
    theirs = save_marian(tmp_path)
    assert import_model(tmp_path, tmp_path / "out").passed
    ours = load(tmp_path / "out")
    mapping = import_marian.read(tmp_path)[1]["target"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends sacremoses, which is not needed here
        reader = transformers.MarianTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert [*mapping.theirs(ours.source_tokenizer.encode(text)), 0] == reader(text).input_ids, text
    source, target = (
        torch.tensor([[*ours.source_tokenizer.encode(ENGLISH[3]), EOS]]),
        torch.tensor([[BOS, 9, 40, 17]]),
    )
    with torch.inference_mode():
        given = [torch.tensor([mapping.theirs(x[0].tolist())]) for x in (source, target)]
        result = theirs(input_ids=given[0], decoder_input_ids=given[1]).logits
        torch.testing.assert_close(
            ours(source, target)[..., 3:],
            result[..., mapping.theirs(range(3, len(mapping.ids)))],
            rtol=0,
            atol=1e-5,
        )
    tokens = [12, 40, 70, 71, 33]
    assert ours.target_tokenizer.decode(tokens) == reader.decode(mapping.theirs(tokens))


def test_an_imported_gpt2_gives_the_same_scores_and_token_ids(tmp_path):
    import tokenizers

    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(ENGLISH, vocab_size=350, special_tokens=["<|endoftext|>"], show_progress=False)
    bpe.save_model(str(tmp_path))
    reader = transformers.GPT2TokenizerFast.from_pretrained(tmp_path)
    reader.save_pretrained(tmp_path)
    torch.manual_seed(1)
    end = reader.eos_token_id
    config = transformers.GPT2Config(
        vocab_size=len(reader) + 2, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3,
        bos_token_id=end, eos_token_id=end,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path)
    assert import_model(tmp_path, tmp_path / "out").passed
    ours, mapping = load(tmp_path / "out"), import_gpt2.read(tmp_path)[1]
    for text in TEXTS:
        ids = ours.target_tokenizer.encode(text)
        assert mapping.theirs(ids) == reader(text).input_ids, text
        # regard strips a leading space.
        assert ours.target_tokenizer.decode(ids).lstrip() == text.lstrip()
    tokens = torch.tensor([[BOS, 7, 90, 44]])
    with torch.inference_mode():
        result = theirs(input_ids=torch.tensor([mapping.theirs(tokens[0].tolist())])).logits
        torch.testing.assert_close(
            ours(tokens)[..., 3:], result[..., mapping.theirs(range(3, len(mapping.ids)))], rtol=0, atol=1e-5
        )


def test_an_exported_model_is_imported_unchanged(tmp_path):
    model = make(LAYER, LAYER)
    export(model, tmp_path / "there", HuggingFace())
    import_model(tmp_path / "there", tmp_path / "back")
    back = load(tmp_path / "back")
    assert back.source_tokenizer == model.source_tokenizer
    names = dict(back.named_parameters())
    assert all(torch.equal(names[name], p) for name, p in model.named_parameters())


def test_folders_that_cannot_be_imported_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(FolderError, match="there is no folder"):
        import_model(tmp_path / "none", tmp_path / "out")
    with pytest.raises(FolderError, match="has no config.json"):
        import_model(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(FolderError, match='model_type "t5", and regard imports bert, gpt2, marian'):
        import_model(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    with pytest.raises(FolderError, match=r"has no model.safetensors; the folder is incomplete"):
        import_model(tmp_path, tmp_path / "out")
    (tmp_path / "pytorch_model.bin").write_bytes(b"any code")
    with pytest.raises(
        FolderError, match=r"holds its weights as a pickle .* convert it to model.safetensors"
    ):
        import_model(tmp_path, tmp_path / "out")


def test_a_marian_model_with_language_codes_or_without_its_vocabulary_is_refused(tmp_path):
    save_marian(tmp_path)
    names = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    (tmp_path / "vocab.json").write_text(
        json.dumps({(">>fr<<" if i == 9 else piece): i for piece, i in names.items()})
    )
    with pytest.raises(FolderError, match="codes such as >>fr<<"):
        import_model(tmp_path, tmp_path / "out")
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(FolderError, match="has no vocab.json"):
        import_model(tmp_path, tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(OptionError, match="already exists"):
        import_model(tmp_path, tmp_path / "out")
