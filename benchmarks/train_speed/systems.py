"""The peers, each built and called as its documentation says. Each class imports its package when created."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from benchmarks.train_speed.task import BOS, EOS, PAD, SPECIALS, UNK, Sizes


class System(Protocol):
    """What a worker needs of a system. `source` is x1 … xn EOS, `target` is BOS y1 … yn EOS, both padded."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def note(self) -> str:
        """How the system differs from the others, where it cannot be the same model."""
        ...

    def loss(self, source: Tensor, target: Tensor) -> Tensor:
        """The label-smoothed loss per target token, to be differentiated."""
        ...

    def clip(self) -> None:
        """Clip the gradients."""
        ...

    def nll(self, source: Tensor, target: Tensor) -> Tensor:
        """−log p summed over the target tokens, without smoothing."""
        ...


def clip_by_norm(model: nn.Module, max_norm: float) -> Callable[[], None]:
    """A function that clips the gradients of a model by their total norm."""
    parameters = list(model.parameters())

    def clip() -> None:
        nn.utils.clip_grad_norm_(parameters, max_norm)

    return clip


def sum_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """−log p summed over the labels that are not padding."""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=PAD, reduction="sum"
    )


class JoeyNMT:
    """Joey NMT: `build_model` from a config; Batch, loss, optimizer and clipper as in TrainManager."""

    note = (
        "also drops attention weights and inner activations (one rate for all); "
        "its trainer keeps to float32 on a CPU"
    )

    def __init__(self, sizes: Sizes) -> None:
        from joeynmt.batch import Batch
        from joeynmt.builders import build_gradient_clipper, build_optimizer
        from joeynmt.model import build_model

        self.Batch = Batch
        vocabulary = self._vocabulary(sizes.vocabulary)
        part = {
            "type": "transformer", "num_layers": sizes.layers, "num_heads": sizes.heads,
            "hidden_size": sizes.dim, "ff_size": sizes.inner, "dropout": sizes.dropout,
            "layer_norm": "post", "activation": "relu",
            "embeddings": {"embedding_dim": sizes.dim, "scale": True, "dropout": sizes.dropout},
        }  # fmt: skip
        config = {
            "encoder": part,
            "decoder": part,
            "tied_embeddings": True,
            "tied_softmax": True,
            "initializer": "xavier_uniform",
        }
        config |= {"embed_initializer": "xavier_uniform", "bias_initializer": "zeros"}
        self.model = build_model(config, vocabulary, vocabulary)
        self.model.loss_function = ("crossentropy", sizes.smoothing)
        training = {
            "optimizer": "adam",
            "learning_rate": sizes.lr,
            "adam_betas": (0.9, 0.98),
            "clip_grad_norm": sizes.clip,
            "clip_grad_val": None,
        }
        self.optimizer = build_optimizer(training, self.model.parameters())
        self.clipper = build_gradient_clipper(training)

    @staticmethod
    def _vocabulary(size: int):
        """Its class requires ⟨unk⟩ 0 and ⟨pad⟩ 1, so those two ids are swapped; all others are the same."""
        from types import SimpleNamespace

        from joeynmt.vocabulary import Vocabulary

        pad, unk, bos, eos = SPECIALS
        special = {
            "pad_token": pad,
            "unk_token": unk,
            "bos_token": bos,
            "eos_token": eos,
            "sep_token": None,
            "lang_tags": [],
        }
        ids = {"unk_id": 0, "pad_id": 1, "bos_id": BOS, "eos_id": EOS, "sep_id": None}
        return Vocabulary([f"t{i}" for i in range(len(SPECIALS), size)], SimpleNamespace(**special, **ids))

    def _batch(self, source: Tensor, target: Tensor):
        swapped = [torch.where(x == PAD, 1, torch.where(x == UNK, 0, x)) for x in (source, target)]
        return self.Batch(
            src=swapped[0], src_length=(source != PAD).sum(1), src_prompt_mask=None, trg=swapped[1],
            trg_prompt_mask=None, indices=torch.arange(len(source)), device=torch.device("cpu"),
            pad_index=1, eos_index=EOS,
        )  # fmt: skip

    def loss(self, source: Tensor, target: Tensor) -> Tensor:
        batch = self._batch(source, target)
        batch.sort_by_src_length()
        total, _, _, correct = self.model(return_type="loss", **vars(batch))
        correct.item()  # its trainer reads this at each step
        return batch.normalize(total, normalization="tokens")

    def clip(self) -> None:
        self.clipper(parameters=self.model.parameters())

    def nll(self, source: Tensor, target: Tensor) -> Tensor:
        batch = self._batch(source, target)
        _, log_probs, _, _ = self.model(return_type="loss", **vars(batch))
        return nn.functional.nll_loss(
            log_probs.flatten(0, 1).float(), batch.trg.flatten(), ignore_index=1, reduction="sum"
        )


class Marian:
    """Hugging Face's MarianMTModel; label smoothing and fused AdamW (without decay) as in its Trainer."""

    note = "sinusoids are halves, not interleaved"

    def __init__(self, sizes: Sizes) -> None:
        from transformers import MarianConfig, MarianMTModel
        from transformers.trainer_pt_utils import LabelSmoother

        config = MarianConfig(
            vocab_size=sizes.vocabulary, d_model=sizes.dim, encoder_layers=sizes.layers,
            decoder_layers=sizes.layers, encoder_attention_heads=sizes.heads,
            decoder_attention_heads=sizes.heads, encoder_ffn_dim=sizes.inner,
            decoder_ffn_dim=sizes.inner, dropout=sizes.dropout, attention_dropout=0.0,
            activation_dropout=0.0, activation_function="relu", scale_embedding=True,
            max_position_embeddings=sizes.longest, pad_token_id=PAD, eos_token_id=EOS,
            forced_eos_token_id=EOS, bos_token_id=BOS, decoder_start_token_id=BOS, use_cache=False,
        )  # fmt: skip
        self.model = MarianMTModel(config)
        self.smoother = LabelSmoother(epsilon=sizes.smoothing)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            parameters, lr=sizes.lr, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True
        )
        self.clip = clip_by_norm(self.model, sizes.clip)

    def _inputs(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        """As DataCollatorForSeq2Seq: labels padded with −100; the model makes decoder inputs from them."""
        labels = target[:, 1:].masked_fill(target[:, 1:] == PAD, -100)
        decoder = self.model.prepare_decoder_input_ids_from_labels(labels=labels)
        return {
            "input_ids": source,
            "attention_mask": (source != PAD).long(),
            "decoder_input_ids": decoder,
            "labels": labels,
        }

    def loss(self, source: Tensor, target: Tensor) -> Tensor:
        inputs = self._inputs(source, target)
        labels = inputs.pop("labels")
        return self.smoother(self.model(**inputs), labels)

    def nll(self, source: Tensor, target: Tensor) -> Tensor:
        inputs = self._inputs(source, target)
        inputs.pop("labels")
        return sum_nll(self.model(**inputs).logits, target[:, 1:])


class XTransformers:
    """x-transformers: Encoder and Decoder in TransformerWrappers that share one embedding, with SDPA.

    Its XTransformer ties the two embeddings but not the output, and its wrapper has no label smoothing. So
    the parts are called as XTransformer calls them, and torch's cross entropy does the smoothing.
    """

    note = "no biases in attention and norms, a learned scale of the positions"

    def __init__(self, sizes: Sizes) -> None:
        from x_transformers import Decoder, Encoder, TransformerWrapper

        part = {
            "dim": sizes.dim, "depth": sizes.layers, "heads": sizes.heads,
            "attn_dim_head": sizes.dim // sizes.heads, "attn_flash": True,
            "ff_mult": sizes.inner // sizes.dim, "ff_custom_activation": nn.ReLU(), "pre_norm": False,
            "attn_sublayer_dropout": sizes.dropout, "ff_sublayer_dropout": sizes.dropout,
        }  # fmt: skip
        around = {"num_tokens": sizes.vocabulary, "max_seq_len": sizes.longest, "emb_dropout": sizes.dropout}
        around |= {"scaled_sinu_pos_emb": True}
        encoder = TransformerWrapper(attn_layers=Encoder(**part), return_only_embed=True, **around)
        decoder = TransformerWrapper(
            attn_layers=Decoder(cross_attend=True, **part),
            token_emb=encoder.token_emb,
            tie_embedding=True,
            **around,
        )
        self.model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
        self.smoothing = sizes.smoothing
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=sizes.lr, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        self.clip = clip_by_norm(self.model, sizes.clip)

    def _logits(self, source: Tensor, target: Tensor) -> Tensor:
        mask = source != PAD
        memory = self.model["encoder"](source, mask=mask, return_embeddings=True)
        return self.model["decoder"](target[:, :-1], context=memory, context_mask=mask)

    def loss(self, source: Tensor, target: Tensor) -> Tensor:
        logits = self._logits(source, target).flatten(0, 1)
        labels = target[:, 1:].flatten()
        return nn.functional.cross_entropy(logits, labels, ignore_index=PAD, label_smoothing=self.smoothing)

    def nll(self, source: Tensor, target: Tensor) -> Tensor:
        return sum_nll(self._logits(source, target), target[:, 1:])
