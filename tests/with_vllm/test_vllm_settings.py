"""Configuration, prompts, the folder of a run: all that needs no vLLM."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from local_fixtures import codec, random_policy, random_prompts
from vllm_fixtures import PROMPTS, config, policy, save

from rlvr.engines.local.packing import pack
from rlvr.engines.local.sampling import sample as local_sample
from rlvr.engines.local.update import response_log_prob
from rlvr.engines.vllm import SamplingConfig, read_samples, request_seed, sample, widen_heads
from rlvr.engines.vllm import __main__ as command
from rlvr.engines.vllm import prompts as prompting
from rlvr.engines.vllm.engine import Completion, import_vllm
from rlvr.engines.vllm.model import check_model, end_token_ids, model_digest
from rlvr.engines.vllm.sampling import text_of
from rlvr.engines.vllm.store import Store, differences, frame
from rlvr.problems.benchmarks import BenchmarkProblem

CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}"
    "<|assistant|>{% endif %}{% if flag is defined %}flag={{ flag }}{% endif %}"
)


class Letters:
    """A tokenizer of single characters; ``<s>`` (id 1) in front where special tokens are asked for."""

    chat_template = CHATML

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [1] * add_special_tokens + [ord(c) for c in text]}

    def apply_chat_template(self, messages, chat_template, tokenize, add_generation_prompt, **kwargs):
        import jinja2

        assert not tokenize
        if any(m["role"] == "system" for m in messages) and "no system" in chat_template:
            raise jinja2.TemplateError("System role not supported")
        template = jinja2.Environment().from_string(chat_template)
        return template.render(messages=messages, add_generation_prompt=add_generation_prompt, **kwargs)


# --- configuration ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", True),
        ("samples", 2.0),
        ("seeds", ()),
        ("seeds", (1, 1)),
        ("seeds", (-1,)),
        ("seeds", (2**63,)),
        ("seeds", 3),
        ("temperature", -0.1),
        ("temperature", 0.001),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("temperature", "1"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("stop", "\n"),
        ("stop", ("",)),
        ("stop_token_ids", (1.5,)),
        ("log_probs", 1),
        ("skip_special_tokens", None),
        ("chat_template", ""),
        ("chat_template_kwargs", [1]),
        ("system_prompt", 3),
        ("prompt_style", 3),
        ("dtype", "fp32"),
        ("dtype", ["auto"]),
        ("tensor_parallel_size", 0),
        ("data_parallel_size", 0),
        ("gpu_memory_utilization", 1.01),
        ("kv_cache_gib", 0),
        ("max_model_len", 1),
        ("max_num_seqs", 0),
        ("enforce_eager", "yes"),
        ("batch_invariant", 0),
        ("chunk_size", 0),
    ],
)
def test_a_wrong_value_is_named(field, value):
    with pytest.raises(ValueError) as error:
        SamplingConfig(**({"max_tokens": 8} | {field: value}))
    assert str(error.value).startswith(f"{field}={value!r}: allowed are ")


def test_every_field_has_a_rule():
    assert set(SamplingConfig.__dataclass_fields__) == set(sys.modules["rlvr.engines.config"]._RULES)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 0, "samples": 4}, "samples=4 and seeds=(0,) at temperature=0"),
        ({"temperature": 0.0, "seeds": [0, 1]}, "samples=1 and seeds=(0, 1) at temperature=0"),
        ({"system_prompt": "Be brief."}, "system_prompt='Be brief.' with chat_template=None"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs={'a': 1} with chat_template=None"),
        ({"max_model_len": 8}, "max_model_len=8: allowed are numbers above max_tokens=8"),
        ({"temprature": 1}, "SamplingConfig has no field 'temprature': did you mean 'temperature'"),
    ],
)
def test_values_that_do_not_go_together(values, message):
    with pytest.raises(ValueError) as error:
        SamplingConfig.from_dict({"max_tokens": 8} | values)
    assert message in str(error.value)


def test_the_config_survives_json():
    one = SamplingConfig(
        max_tokens=8, seeds=[3, 4], stop=["\n"], chat_template="model", chat_template_kwargs={"a": 1}
    )
    assert one.seeds == (3, 4) and one.stop == ("\n",)
    assert SamplingConfig.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    with pytest.raises(ValueError, match="max_tokens is missing"):
        SamplingConfig.from_dict({})


def test_words_of_the_command_override_the_file(tmp_path):
    path = tmp_path / "eval.yaml"
    path.write_text("max_tokens: 8\ntop_p: 0.9\nseeds: [1, 2]\n")
    read = command.read_config(
        str(path), ["top_p=0.5", "stop=['a', 'b=']", "system_prompt=x", "chat_template=model"]
    )
    assert (read.max_tokens, read.top_p, read.seeds) == (8, 0.5, (1, 2))
    assert read.stop == ("a", "b=") and read.chat_template == "model"
    for words, message in ((["top_p"], "'top_p': allowed are words"), (["stop=[1"], "no YAML")):
        with pytest.raises(ValueError, match=message):
            command.read_config(str(path), words)
    path.write_text("- 1\n")
    with pytest.raises(ValueError, match="holds no mapping"):
        command.read_config(str(path), [])


def test_problems_of_a_file(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "prompt": "x"}\nnonsense\n')
    with pytest.raises(ValueError, match=r"p\.jsonl:2 is no JSON"):
        command.read_problems(str(path))
    path.write_text('{"id": "a", "prompt": "x"}\n')
    assert command.read_problems(str(path)) == [{"id": "a", "prompt": "x"}]


# --- without vLLM -------------------------------------------------------------------------------------


def test_the_package_does_not_import_vllm():
    code = (
        "import sys, rlvr.engines.vllm as v; v.SamplingConfig(max_tokens=1); assert 'vllm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_vllm_is_said_and_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"needs vLLM, which is not installed here: `make env-vllm`"):
        sample(save(policy(), tmp_path), PROMPTS, config(), progress=False)


def test_a_torchvision_that_does_not_fit_is_explained(monkeypatch, tmp_path):
    (tmp_path / "vllm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(ImportError, match="pip uninstall -y torchvision"):
        import_vllm()


# --- prompts ------------------------------------------------------------------------------------------


def test_prompts_as_they_are():
    plain = prompting.read_prompts(["ab", {"id": "x", "prompt": "c"}], Letters(), config())
    assert [p.ids for p in plain] == [[1, 97, 98], [1, 99]]  # with the tokenizer's begin token
    assert plain[0].problem == prompting.digest("prompt", "ab") and plain[1].problem == "x"


def test_prompts_through_a_template(tmp_path):
    (prompt,) = prompting.read_prompts(["ab"], Letters(), config(chat_template="model"))
    assert prompt.text == "<|user|>ab<|assistant|>" and prompt.ids == [ord(c) for c in prompt.text]
    settings = config(chat_template="model", system_prompt="S", chat_template_kwargs={"flag": False})
    (prompt,) = prompting.read_prompts(["ab"], Letters(), settings)
    assert prompt.text == "<|system|>S<|user|>ab<|assistant|>flag=False"
    path = tmp_path / "own.jinja"
    path.write_text("no system {{ messages[0]['content'] }}")
    (prompt,) = prompting.read_prompts(["ab"], Letters(), config(chat_template=str(path)))
    assert prompt.text == "no system ab"
    with pytest.raises(ValueError, match="fails: System role not supported"):
        prompting.read_prompts(["ab"], Letters(), config(chat_template=str(path), system_prompt="S"))
    with pytest.raises(ValueError, match="no such file"):
        prompting.read_prompts(["ab"], Letters(), config(chat_template=str(tmp_path / "none.jinja")))
    with pytest.raises(ValueError, match="the tokenizer has no single chat template"):
        prompting.read_prompts(["ab"], codec().tokenizer, config(chat_template="model"))


def test_a_benchmark_problem_is_worded():
    problem = BenchmarkProblem(id="1", benchmark="aime24", prompt="What is 1 + 1?", answer="2")
    (own,) = prompting.read_prompts([problem], Letters(), config())
    (bare,) = prompting.read_prompts([problem], Letters(), config(prompt_style="plain"))
    assert bare.text == "What is 1 + 1?" and own.text.startswith(bare.text) and own.text != bare.text
    assert (own.benchmark, own.problem) == ("aime24", "1")


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        ("What?", r"problems='What\?': allowed is a list"),
        ([], "problems is empty"),
        ([{"id": "a", "prompt": "x"}] * 2, r"problems\[1\]: id 'a' occurs twice"),
        (["x", "x"], r"problems\[1\]: id '\w+' occurs twice"),
        ([{"id": 3, "prompt": "x"}], r"problems\[0\] is a dict with id=3"),
        ([{"id": "a"}], "prompt of type NoneType"),
        ([7], r"problems\[0\] is a int"),
    ],
)
def test_wrong_problems(problems, message):
    with pytest.raises(ValueError, match=message):
        prompting.read_prompts(problems, Letters(), config())


def test_the_same_id_in_two_benchmarks_is_two_problems():
    two = [{"id": "1", "prompt": "x", "benchmark": b} for b in ("a", "b")]
    prompts = prompting.read_prompts(two, Letters(), config())
    seeds = {r.engine_seed for r in prompting.requests_of(prompts, config(samples=3, seeds=(0, 1)))}
    assert len(prompts) == 2 and len(seeds) == 12


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="its prompt has no token"):
        prompting.read_prompts([" "], codec().tokenizer, config())
    with pytest.raises(ValueError, match=r"problems\[1\] \(id '\w+'\) cannot be tokenised"):
        prompting.read_prompts(["Dan", "unheard"], codec().tokenizer, config())


def test_every_response_has_all_its_room():
    prompts = prompting.read_prompts(["ab", "abcde"], Letters(), config())  # 3 and 6 tokens
    assert prompting.model_len(prompts, config(max_tokens=10)) == 16
    assert prompting.model_len(prompts, config(max_tokens=10, max_model_len=99)) == 99
    with pytest.raises(ValueError) as error:
        prompting.model_len(prompts, config(max_tokens=10, max_model_len=15))
    assert "max_model_len=15 leaves 5 tokens" in str(error.value)
    assert "1 of 2 prompts are longer" in str(error.value) and ">= 16" in str(error.value)


def test_requests_and_their_seeds():
    prompts = prompting.read_prompts(["a", "b"], Letters(), config())
    requests = prompting.requests_of(prompts, config(samples=2, seeds=(5, 0)))
    order = [(r.seed, r.prompt.text, r.sample) for r in requests]
    assert order == [(s, p, i) for s in (5, 0) for p in "ab" for i in (0, 1)]
    # a constant: another value would silently change every published sample
    assert request_seed("aime24", "7", 3, 0) == 6083531112515800948
    many = {request_seed("b", str(p), i, s) for p in range(50) for i in range(20) for s in range(5)}
    assert len(many) == 5000 and all(0 <= seed < 2**63 for seed in many)


# --- what ends a response -----------------------------------------------------------------------------


# huggingface/trl PR#7039: a chat model ends its turns with an id that is not the tokenizer's
@pytest.mark.fault("one-of-several-end-tokens")
def test_every_end_token_of_the_generation_config_counts(tmp_path):
    tokenizer = codec().tokenizer  # <eos> is 1
    folder = save(policy(), tmp_path)
    assert end_token_ids(folder, tokenizer) == [1]
    path = folder / "generation_config.json"
    generation = json.loads(path.read_text())
    path.write_text(json.dumps(generation | {"eos_token_id": [30, 40]}))
    assert end_token_ids(folder, tokenizer) == [1, 30, 40]
    path.write_text(json.dumps(generation | {"eos_token_id": 30}))
    assert end_token_ids(folder, tokenizer) == [1, 30]
    path.unlink()
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"eos_token_id": 50}))
    assert end_token_ids(folder, tokenizer) == [1, 50]


def test_the_text_ends_before_what_ended_it():
    words = codec()
    ids = words.encode("Dan has 3 pens.")

    def text(extra, reason, by, own=""):
        return text_of(Completion(ids + extra, reason, by, own, None), words.tokenizer, False)

    assert text([], "length", None) == "Dan has 3 pens."
    assert text([words.eos_id], "stop", None) == "Dan has 3 pens."
    assert text(words.encode("4"), "stop", words.encode("4")[0]) == "Dan has 3 pens."
    assert text(words.encode("4 pens"), "stop", "4") == "Dan has 3 pens."
    assert text([], "stop", "pens") == "Dan has 3 "
    assert text([], "stop", "not there", "vLLM's") == "vLLM's"
    # a pad token that was sampled stays visible unless special tokens are to be left out
    padded = Completion([*words.encode("3"), words.pad_id, *words.encode("4")], "length", None, "", None)
    assert "<pad>" in text_of(padded, words.tokenizer, False)
    assert "<pad>" not in text_of(padded, words.tokenizer, True)


def test_a_missing_model_is_said(tmp_path):
    for model in ("Qwen/Qwen3-1.7B", tmp_path):
        with pytest.raises(FileNotFoundError, match="hf download"):
            check_model(model)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="no weights"):
        check_model(tmp_path)


def test_the_models_hash_is_of_its_contents(tmp_path):
    first, second = save(policy(), tmp_path / "a"), save(policy(), tmp_path / "b")
    assert model_digest(first) == model_digest(second)
    save(policy(seed=1), second)
    assert model_digest(first) != model_digest(second)
    save(policy(), second)
    (second / "README.md").write_text("not part of the model")
    assert model_digest(first) == model_digest(second)
    (second / "chat_template.jinja").write_text("x")
    assert model_digest(first) != model_digest(second)


# --- the folder of a run ------------------------------------------------------------------------------


def rows_of(requests):
    empty = {"finished": True, "correct": None, "extracted": None, "reason": None, "grader": None}
    return frame(
        [
            {"problem": r.prompt.problem, "sample": r.sample, "seed": r.seed, "tokens": 1, "prompt_tokens": 1}
            | {"benchmark": r.prompt.benchmark}
            | empty
            for r in requests
        ]
    )


def chunks_of(count=3):
    prompts = prompting.read_prompts(["a", "b", "c"], Letters(), config())
    requests = prompting.requests_of(prompts, config(samples=count))
    return [requests[i : i + 4] for i in range(0, len(requests), 4)]


def test_parts_become_one_file(tmp_path):
    chunks = chunks_of()
    store = Store(tmp_path / "run", {"a": 1}, chunks)
    with pytest.raises(FileNotFoundError, match="no finished run"):
        read_samples(tmp_path / "run")
    store.write(2, rows_of(chunks[2]))
    store.write(0, rows_of(chunks[0]))
    again = Store(tmp_path / "run", {"a": 1}, chunks)
    assert [again.done(i) for i in range(3)] == [True, False, True] and not again.complete
    with pytest.raises(FileNotFoundError, match="2 parts"):
        read_samples(tmp_path / "run")
    again.write(1, rows_of(chunks[1]))
    again.finish()
    assert again.complete and not (tmp_path / "run" / "parts").exists()
    read = read_samples(tmp_path / "run")
    pd.testing.assert_frame_equal(read, rows_of([r for chunk in chunks for r in chunk]))
    assert str(read["correct"].dtype) == "boolean"


def test_a_part_with_other_rows_is_refused(tmp_path):
    chunks = chunks_of()
    store = Store(tmp_path, {}, chunks)
    store.write(0, rows_of(chunks[1]))
    with pytest.raises(ValueError, match=r"00000\.parquet does not hold the requests"):
        store.read(0)


def test_another_run_is_refused_with_what_differs(tmp_path):
    run = {"config": {"top_p": 0.9, "seeds": [0]}, "device": "x"}
    Store(tmp_path, run, chunks_of())
    Store(tmp_path, json.loads(json.dumps(run)), chunks_of())
    with pytest.raises(ValueError) as error:
        Store(tmp_path, {"config": {"top_p": 0.95, "seeds": [0], "new": 1}}, chunks_of())
    assert "config.top_p: 0.9 there, 0.95 now" in str(error.value)
    assert "config.new: only now" in str(error.value) and "device: only there" in str(error.value)
    assert "seeds" not in str(error.value)
    assert differences(run, run) == []


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / ".partial-run.json-x").write_text("")  # of a run killed in its first moment
    Store(tmp_path, {}, chunks_of())
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("")
    for folder in (other, other / "thesis.txt"):
        with pytest.raises(ValueError, match="is not empty and holds no run"):
            Store(folder, {}, chunks_of())


# --- wider heads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [8, 16, 32, 64])
def test_wider_heads_are_the_same_policy(head_dim, tmp_path):
    narrow = random_policy()  # heads of 8
    wide = widen_heads(narrow, head_dim)
    assert wide.shape.head_dim == head_dim
    prompts = random_prompts(6)
    ours = local_sample(narrow, prompts, 2, 30, seed=1)
    packed = pack(prompts, ours.tokens, ours.lengths, 2)
    log_prob, _ = response_log_prob(wide.theta, wide.shape, packed, 1.0)
    torch.testing.assert_close(log_prob, ours.log_prob, atol=1e-5, rtol=0)
    wide.save_pretrained(tmp_path)
    torch.testing.assert_close(type(wide).from_pretrained(tmp_path).theta, wide.theta, atol=0, rtol=0)
    logits = wide.to_hf()(torch.tensor([prompts[0]])).logits
    torch.testing.assert_close(
        logits, narrow.to_hf()(torch.tensor([prompts[0]])).logits, atol=1e-4, rtol=1e-4
    )


def test_heads_that_do_not_fit_are_refused():
    for head_dim in (4, 12):
        with pytest.raises(ValueError, match=f"head_dim={head_dim}: allowed are multiples"):
            widen_heads(random_policy(), head_dim)


def test_every_field_is_documented():
    text = (Path(__file__).parents[2] / "docs/vllm.md").read_text()
    for field in SamplingConfig.__dataclass_fields__:
        assert f"`{field}`" in text, field
