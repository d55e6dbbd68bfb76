"""Tests of import_model.py, import_gpt2.py, importer.py and token_mapping.py."""

import pytest
import torch

from regard.data.tokenizer import BOS
from regard.errors import FolderError, OptionError
from regard.interchange import import_gpt2
from regard.interchange.export.export_model import export_model
from regard.interchange.export.huggingface import HuggingFace
from regard.interchange.import_model import import_model
from regard.models.folder import load
from tests.interchange.marian_folders import save_marian
from tests.interchange.small_models import ENGLISH, GERMAN, LAYER, make

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
TEXTS = [*ENGLISH[:100], *GERMAN[:100], "", " a  b ", "< pad >", "ﬁ ＦＵＬＬ\twidth", "日本 TV", "e\u0301"]


def test_an_imported_gpt2_gives_the_same_scores_and_token_ids(tmp_path):
    import tokenizers

    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(ENGLISH, vocab_size=350, special_tokens=["<|endoftext|>"], show_progress=False)
    bpe.save_model(str(tmp_path))
    their_tokenizer = transformers.GPT2TokenizerFast.from_pretrained(tmp_path)
    their_tokenizer.save_pretrained(tmp_path)
    for name in ("vocab.json", "merges.txt"):  # newer folders have tokenizer.json only
        (tmp_path / name).unlink()
    torch.manual_seed(1)
    end = their_tokenizer.eos_token_id
    config = transformers.GPT2Config(
        vocab_size=len(their_tokenizer) + 2, n_positions=64, n_embd=32, n_layer=2, n_head=4,
        initializer_range=0.3, bos_token_id=end, eos_token_id=end,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path)
    assert import_model(tmp_path, tmp_path / "out").passed
    ours, mapping = load(tmp_path / "out"), import_gpt2.read(tmp_path)[1]
    for text in TEXTS:
        ids = ours.target_tokenizer.encode(text)
        assert mapping.theirs(ids) == their_tokenizer(text).input_ids, text
        # regard strips a leading space.
        assert ours.target_tokenizer.decode(ids).lstrip() == text.lstrip()
    their_tokenizer.add_tokens(["Tom"])
    their_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(FolderError, match="has the additional token 'Tom'"):
        import_gpt2.read(tmp_path)
    tokens = torch.tensor([[BOS, 7, 90, 44]])
    with torch.inference_mode():
        result = theirs(input_ids=torch.tensor([mapping.theirs(tokens[0].tolist())])).logits
        torch.testing.assert_close(
            ours(tokens)[..., 3:], result[..., mapping.theirs(range(3, len(mapping.ids)))], rtol=0, atol=1e-5
        )


def test_an_exported_model_is_imported_unchanged_also_through_links(tmp_path):
    """The hub's cache has links, in a folder named for a commit."""
    model = make(LAYER, LAYER)
    export_model(model, tmp_path / "exported", HuggingFace())
    cache = tmp_path / "models--me--en-de" / "snapshots" / "0a1b"
    cache.mkdir(parents=True)
    for path in (tmp_path / "exported").iterdir():
        (cache / path.name).symlink_to(path)
    import_model(cache, tmp_path / "imported")
    imported = load(tmp_path / "imported")
    assert imported.card["name"] == "en-de"
    assert imported.source_tokenizer == model.source_tokenizer
    parameters = dict(imported.named_parameters())
    assert all(torch.equal(parameters[name], p) for name, p in model.named_parameters())


def test_folders_that_cannot_be_imported_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(FolderError, match="there is no folder"):
        import_model(tmp_path / "none", tmp_path / "out")
    with pytest.raises(FolderError, match="has no config.json"):
        import_model(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(FolderError, match='model_type "t5", and regard imports bert, gpt2, marian'):
        import_model(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    with pytest.raises(
        FolderError, match=r"has no model.safetensors and no pytorch_model.bin; the folder is"
    ):
        import_model(tmp_path, tmp_path / "out")
    (tmp_path / "pytorch_model.bin").write_bytes(b"any code")
    with pytest.raises(FolderError, match=r"pytorch_model.bin is not a file of tensors only"):
        import_model(tmp_path, tmp_path / "out")


def test_a_folder_with_files_of_the_user_is_not_overwritten(tmp_path):
    save_marian(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(OptionError, match="already exists"):
        import_model(tmp_path, tmp_path / "out")
