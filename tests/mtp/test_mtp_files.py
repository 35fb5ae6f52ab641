"""Saving beside the backbone, loading, and how much the modules add."""

from __future__ import annotations

import pytest
import torch
from mtp_models import CONFIGS, SIZES, batch, sequences, stirred, tiny
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from rlvr.mtp import (
    FILE,
    PAPER_MODELS,
    MtpModules,
    load_modules,
    mtp_outputs,
    paper_config,
    save_modules,
    size_by_blocks,
)


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("variant", ["parallel", "chained"])
def test_a_folder_with_modules_loads_in_plain_transformers(tmp_path, name, variant):
    model = tiny(name)
    modules = stirred(model, 3, variant, "trunk")
    model.save_pretrained(tmp_path)
    plain = {path.name for path in tmp_path.iterdir()}
    save_modules(modules, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} - plain == {FILE}

    again, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    given = batch(sequences())
    ids, mask, _ = given
    with torch.no_grad():
        assert torch.equal(again(ids, attention_mask=mask).logits, model(ids, attention_mask=mask).logits)
    loaded = load_modules(again.eval(), tmp_path)
    assert (loaded.blocks, loaded.variant, loaded.hidden) == (3, variant, "trunk")
    with torch.no_grad():
        one, other = (mtp_outputs(m, x, *given) for m, x in ((model, modules), (again, loaded)))
    assert torch.equal(one.mtp_log_prob, other.mtp_log_prob)


def test_files_that_do_not_fit_are_refused(tmp_path):
    model = tiny("llama")
    with pytest.raises(FileNotFoundError, match="written by save_modules"):
        load_modules(model, tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / FILE)
    with pytest.raises(ValueError, match="has no entry 'mtp' in its metadata"):
        load_modules(model, tmp_path)
    save_modules(MtpModules(tiny("qwen3"), 2), tmp_path)
    with pytest.raises(ValueError, match="does not fit this model"):
        load_modules(model, tmp_path)


def test_counts_by_hand():
    """Llama: 16 channels, 24 intermediate, 4 heads of 4, 2 of them for keys, 41 tokens, 3 layers, untied."""
    layer = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24 + 2 * 16
    module = layer + 16 + 41 * 16
    base = 3 * layer + 16 + 2 * 41 * 16
    frame = size_by_blocks(CONFIGS["llama"], (1, 2, 4))
    assert frame.index.tolist() == [1, 2, 4]
    assert frame["backbone"].tolist() == [base] * 3
    assert frame["modules"].tolist() == [0, module, 3 * module]
    assert frame["ratio"].tolist() == pytest.approx([1.0, 1 + module / base, 1 + 3 * module / base])
    assert frame["memory"].tolist() == [16 * n for n in frame["total"]]
    chained = size_by_blocks(CONFIGS["llama"], (2,), "chained", bytes_per_number=2)
    assert chained.loc[2, "modules"] == module + 2 * 16 * 16 + 2 * 16
    assert chained.loc[2, "memory"] == 8 * chained.loc[2, "total"]
    assert SIZES["num_hidden_layers"] == 3


def test_the_paper_s_models():
    """Parameters of the paper's backbones are public; no weights are made here."""
    counts = {name: size_by_blocks(paper_config(name), (1, 3, 5)) for name in PAPER_MODELS}
    backbones = {name: frame.loc[1, "backbone"] for name, frame in counts.items()}
    assert backbones == {
        "Llama-3.2-1B": 1_235_814_400,
        "DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
        "DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    }
    assert counts["Llama-3.2-1B"].loc[5, "ratio"] == pytest.approx(2.047, abs=5e-4)
    assert counts["DeepSeek-R1-Distill-Qwen-7B"].loc[3, "ratio"] == pytest.approx(1.204, abs=5e-4)
    with pytest.raises(ValueError, match="name='Qwen': allowed are"):
        paper_config("Qwen")


def test_a_block_length_that_is_none_is_refused():
    with pytest.raises(ValueError, match="blocks=0"):
        size_by_blocks(CONFIGS["llama"], (0,))
