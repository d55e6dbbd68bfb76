"""Hugging Face models on regard's operator: `register()`, then `attn_implementation="regard"` with any model.

`import regard.huggingface` needs torch alone; `register` needs transformers.
"""

from regard.huggingface.variants import register

__all__ = ["register"]
