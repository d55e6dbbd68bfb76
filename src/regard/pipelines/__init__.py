"""Pipelines: translate, generate, classify, tag, embed and align texts, files and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.pipelines.align import View
    from regard.pipelines.alignment_head import AlignmentHead, HeadTraining, train_alignment_head
    from regard.pipelines.classify import Classification, word_attention
    from regard.pipelines.joint_alignment import JointAlignmentHead, train_joint_head
    from regard.pipelines.translate import Translation, stream
    from regard.pipelines.word_links import pharaoh

__all__ = [
    "AlignmentHead",
    "Classification",
    "HeadTraining",
    "JointAlignmentHead",
    "Translation",
    "View",
    "pharaoh",
    "stream",
    "train_alignment_head",
    "train_joint_head",
    "word_attention",
]
__getattr__ = exported(
    __name__,
    {
        "AlignmentHead": "alignment_head",
        "Classification": "classify",
        "HeadTraining": "alignment_head",
        "JointAlignmentHead": "joint_alignment",
        "Translation": "translate",
        "View": "align",
        "pharaoh": "word_links",
        "stream": "translate",
        "train_alignment_head": "alignment_head",
        "train_joint_head": "joint_alignment",
        "word_attention": "classify",
    },
)
