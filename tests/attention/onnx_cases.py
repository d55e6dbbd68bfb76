"""ONNX's own test cases for attention: their names, their sources, and a reader.

A case is a folder as ONNX stores it: model.onnx, test_data_set_0/{input,output}_i.pb and, here, data.json
with its tolerances. As a script, `python onnx_cases.py Attention folder` writes the cases that the installed
onnx generates.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import onnx
from filelock import FileLock  # comes with torch
from onnx import numpy_helper

WHEEL = "onnx==1.22.0"
WHEELS = Path(".cache/onnx-1.22.0")
COMMAND = f"pip download --no-deps -d {WHEELS} {WHEEL}"
DATA = "onnx/backend/test/data/node/"

# Without their prefix test_attention_ or test_flexattention_; "plain" is the case whose name is the prefix.
STORED = """
3d 3d_attn_mask 3d_causal 3d_diff_heads_sizes 3d_diff_heads_sizes_attn_mask 3d_diff_heads_sizes_causal
3d_diff_heads_sizes_scaled 3d_diff_heads_sizes_softcap 3d_diff_heads_with_past_and_present 3d_gqa
3d_gqa_attn_mask 3d_gqa_causal 3d_gqa_scaled 3d_gqa_softcap 3d_gqa_with_past_and_present 3d_scaled
3d_softcap 3d_transpose_verification 3d_with_past_and_present 3d_with_past_and_present_qk_matmul
3d_with_past_and_present_qk_matmul_bias 3d_with_past_and_present_qk_matmul_softcap
3d_with_past_and_present_qk_matmul_softmax 4d 4d_attn_mask 4d_attn_mask_3d 4d_attn_mask_3d_causal
4d_attn_mask_4d 4d_attn_mask_4d_causal 4d_attn_mask_bool 4d_attn_mask_bool_4d 4d_causal
4d_diff_heads_mask4d_padded_kv 4d_diff_heads_sizes 4d_diff_heads_sizes_attn_mask 4d_diff_heads_sizes_causal
4d_diff_heads_sizes_scaled 4d_diff_heads_sizes_softcap 4d_diff_heads_with_past_and_present
4d_diff_heads_with_past_and_present_mask3d 4d_diff_heads_with_past_and_present_mask4d 4d_fp16 4d_gqa
4d_gqa_attn_mask 4d_gqa_causal 4d_gqa_scaled 4d_gqa_softcap 4d_gqa_with_past_and_present
4d_gqa_with_past_and_present_fp16 4d_scaled 4d_softcap 4d_softcap_neginf_mask 4d_softcap_neginf_mask_poison
4d_with_past_and_present 4d_with_past_and_present_qk_matmul 4d_with_past_and_present_qk_matmul_bias
4d_with_past_and_present_qk_matmul_bias_3d_mask 4d_with_past_and_present_qk_matmul_bias_3d_mask_causal
4d_with_past_and_present_qk_matmul_bias_4d_mask 4d_with_past_and_present_qk_matmul_bias_4d_mask_causal
4d_with_qk_matmul 4d_with_qk_matmul_bias 4d_with_qk_matmul_softcap 4d_with_qk_matmul_softmax
""".split()
SINCE_STORED = """
23_boolmask_fullymasked_row_nan_robustness 23_fullymasked_qk_matmul_output_mode3_zero
24_fullymasked_qk_matmul_output_mode3_zero 24_qk_matmul_output_mode3_softmax_precision 3d_causal_bf16
3d_local_window 4d_attn_mask_causal_bf16 4d_causal_bf16 4d_causal_fp16
4d_causal_nonpad_attn_mask_composition 4d_causal_nonpad_batch_prefill 4d_causal_nonpad_continued_prefill
4d_causal_nonpad_negative_offset_structural_empty 4d_causal_padded_kv_bf16 4d_causal_with_past_and_present
4d_gqa_causal_nonpad_decode 4d_gqa_causal_nonpad_decode_fp16 4d_padded_kv_bf16 bidirectional_window
causal_boolmask_nan_robustness local_window local_window_default local_window_ext_cache_float16_mask
local_window_ext_cache_rank2_mask local_window_ext_cache_rank3_head_mask
local_window_ext_cache_rank4_batch_mask local_window_gqa_rank4_mask local_window_rank1_boolean_mask
local_window_with_past
""".split()
GENERATED = STORED + SINCE_STORED
FLEX = """
plain causal_mask diff_head_sizes double fp16 gqa prob_mod relative_positional scaled score_mod soft_cap
""".split()

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


@dataclass
class Case:
    """One node with its inputs and expected outputs as numpy arrays, by the operator's own names for them."""

    op: str
    attributes: dict
    inputs: dict
    outputs: dict
    opsets: dict[str, int]
    rtol: float
    atol: float


def folder_of(op: str, name: str) -> str:
    return f"test_{op.lower()}" if name == "plain" else f"test_{op.lower()}_{name}"


def stored() -> zipfile.Path | None:
    """The folder of cases inside the downloaded wheel, or None."""
    root = Path(__file__).resolve().parents[2]
    wheels = sorted((root / WHEELS).glob("onnx-1.22.0-*.whl"))
    return zipfile.Path(wheels[0], DATA) if wheels else None


def generated(op: str, shared: Path) -> Path:
    """The folder of cases that the installed onnx generates; the first test process creates it."""
    folder = shared / f"onnx-{op}"
    with FileLock(shared / f"onnx-{op}.lock"):
        if not (folder / "done").exists():
            # collect_testcases leaves global state behind, so each operator gets a process of its own.
            subprocess.run([sys.executable, "-W", "ignore", __file__, op, str(folder)], check=True)
            (folder / "done").touch()
    return folder


def names(folder: Path | zipfile.Path, prefix: str) -> set[str]:
    """The folders of cases that begin with `prefix`, except those of expanded operators."""
    return {x.name for x in folder.iterdir() if x.name.startswith(prefix) and "_expanded" not in x.name}


def read(folder: Path | zipfile.Path) -> Case:
    model = onnx.load_from_string((folder / "model.onnx").read_bytes())
    (node,) = model.graph.node
    data = folder / "data.json"
    tolerance = (
        json.loads(data.read_text()) if data.exists() else {"rtol": 1e-3, "atol": 1e-7}
    )  # onnx's default
    return Case(
        op=node.op_type,
        attributes={x.name: onnx.helper.get_attribute_value(x) for x in node.attribute},
        inputs=_arrays(folder, "input", INPUTS, node.input),
        outputs=_arrays(folder, "output", OUTPUTS, node.output),
        opsets={x.domain: x.version for x in model.opset_import},
        **tolerance,
    )


def _arrays(folder: Path | zipfile.Path, kind: str, parameters: tuple[str, ...], used: list[str]) -> dict:
    """Arrays by name. Files are numbered without the optional inputs that a node omits by an empty name."""
    present = [name for name, argument in zip(parameters, used, strict=False) if argument]
    files = [folder / "test_data_set_0" / f"{kind}_{i}.pb" for i in range(len(present))]
    protos = [onnx.TensorProto.FromString(file.read_bytes()) for file in files]
    return {name: numpy_helper.to_array(proto) for name, proto in zip(present, protos, strict=True)}


def write(op: str, folder: Path) -> None:
    """Write every generated case of one operator; only in a fresh process."""
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(op):
        if "_expanded" in case.name:
            continue
        ((inputs, outputs),) = case.data_sets
        data = folder / case.name / "test_data_set_0"
        data.mkdir(parents=True)
        (folder / case.name / "model.onnx").write_bytes(case.model.SerializeToString())
        (folder / case.name / "data.json").write_text(json.dumps({"rtol": case.rtol, "atol": case.atol}))
        for kind, arrays in (("input", inputs), ("output", outputs)):
            for i, x in enumerate(arrays):
                (data / f"{kind}_{i}.pb").write_bytes(numpy_helper.from_array(x).SerializeToString())


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
