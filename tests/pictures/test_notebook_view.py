"""Tests of the view in notebooks, without a browser; tests/explorer/test_notebook_page.py opens it in one."""

import re

import pytest
import torch

from regard.errors import OptionError
from regard.pictures.notebook_view import MAX_BYTES, AttentionView, script
from regard.pictures.shown_layers import ShownLayer


def test_the_view_needs_no_other_file_and_text_is_escaped(tmp_path):
    layer = ShownLayer("a", torch.eye(2)[None], ["</script><b>", "x"], ["a", "b"])
    view = AttentionView([layer], title="<i>title</i>")
    page = view.save(tmp_path / "view.html").read_text(encoding="utf-8")
    assert "</script><b>" not in page and "<i>title" not in page
    assert not re.search(r'(src|href)="|^import |url\(', page, re.MULTILINE)
    assert "export " not in script()


def test_a_view_that_is_too_large_or_is_not_saved_as_html_is_refused(tmp_path):
    layer = ShownLayer("a", torch.zeros(1, 1, 1).expand(1, MAX_BYTES // 4, 2), [], [])
    with pytest.raises(
        OptionError, match="the weights take 32 MiB, and a view holds at most 16; choose fewer"
    ):
        AttentionView([layer])
    with pytest.raises(OptionError, match=r"ends in .html, got 'view.svg'"):
        AttentionView([]).save(tmp_path / "view.svg")
