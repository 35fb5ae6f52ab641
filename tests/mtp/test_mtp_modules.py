"""MTP modules of Hugging Face models: what they are fed and know, and that the backbone is left alone."""

from __future__ import annotations

import itertools

import pytest
import torch
from mtp_models import CONFIGS, SIZES, VOCABULARY, batch, sequences, stirred, tiny

from rlvr.mtp import (
    MtpModules,
    cross_entropy,
    entry_counts,
    mtp_outputs,
    predicted_rank,
    warm_up,
    warm_up_loss,
)
from rlvr.ratios import block_mask

KINDS = list(itertools.product(("parallel", "chained"), ("last", "trunk")))
NAMES = sorted(CONFIGS)


def slow(model, modules, prompt, response):
    """Log-probs and ranks of one unpadded sequence by (t, k), from the formulas, one module at a time.

    Layers are called by hand with an explicit causal mask and rotary angles, without hooks.
    """
    ids = torch.tensor([prompt + response])
    length, core = ids.shape[1], model.model
    embedded = core.embed_tokens(ids)
    positions = torch.arange(length)[None]
    lowest = torch.finfo(embedded.dtype).min
    mask = torch.full((length, length), lowest, dtype=embedded.dtype).triu(1)[None, None]
    arguments = {"attention_mask": mask, "position_embeddings": core.rotary_emb(embedded, positions)}
    x = embedded
    for layer in core.layers:
        trunk, x = x, layer(x, **arguments)
    own = model.lm_head(core.norm(x))[0]
    state = {"last": x, "trunk": trunk}[modules.hidden]
    first, entries, ranks = state, {}, {}
    for k in range(2, modules.blocks + 1):
        module = modules[str(k)]
        if modules.variant == "chained":
            ahead = torch.zeros_like(embedded)
            ahead[:, : length - k + 1] = embedded[:, k - 1 :]
            join = module.join
            joined = torch.cat([join.norm_hidden(state), join.norm_embed(ahead)], -1)
            state = module.layer(joined @ join.proj.weight.T, **arguments)
        else:
            state = module.layer(first, **arguments)
        logits = module.head(module.norm(state))[0]
        for t in range(len(response) - k + 1):
            here = len(prompt) - 1 + t  # the token before y_t
            entries[t, k] = logits[here].log_softmax(-1)[response[t + k - 1]]
            predicted = int(logits[here].argmax())
            there = own[here + k - 1]  # the backbone, where it predicts y_{t+k-1}
            ranks[t, k] = 1 + int((there > there[predicted]).sum())
    own = [own[len(prompt) - 1 + t].log_softmax(-1)[token] for t, token in enumerate(response)]
    return own, entries, ranks


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("variant", "hidden"), KINDS)
def test_a_padded_batch_is_the_slow_loop_over_its_sequences(name, variant, hidden):
    model = tiny(name, torch.float64)
    modules, pairs = stirred(model, 4, variant, hidden), sequences()
    with torch.no_grad():
        out = mtp_outputs(model, modules, *batch(pairs, 2, 3), rank=True)
    log_prob, entries, rank = (torch.zeros_like(value) for value in out)
    for i, (prompt, response) in enumerate(pairs):
        own, values, ranks = slow(model, modules, prompt, response)
        log_prob[i, : len(response)] = torch.stack(own)
        for (t, k), value in values.items():
            entries[i, t, k - 2], rank[i, t, k - 2] = value, ranks[t, k]
    torch.testing.assert_close(out.log_prob, log_prob, atol=1e-9, rtol=0)
    torch.testing.assert_close(out.mtp_log_prob, entries, atol=1e-9, rtol=0)
    assert torch.equal(out.rank, rank)
    assert (out.mtp_log_prob != 0).sum() == sum(max(0, len(r) - k + 1) for _, r in pairs for k in (2, 3, 4))


@pytest.mark.parametrize(("variant", "hidden"), KINDS)
def test_later_tokens_never_reach_an_entry(variant, hidden):
    """Entry (t, k) is of y_{t+k-1}: nothing after it matters. What lies between y_t and it, a parallel module
    has not seen and a chained one has."""
    model = tiny(dtype=torch.float64)
    modules = stirred(model, 4, variant, hidden)
    ((prompt, response),) = sequences((4,), (8,))

    def entries(tokens):
        with torch.no_grad():
            return mtp_outputs(model, modules, *batch([(prompt, tokens)])).mtp_log_prob[0]

    before = entries(response)
    for changed in range(len(response)):
        other = list(response)
        other[changed] = 2 + (other[changed] + 5) % (VOCABULARY - 2)
        moved = (entries(other) - before).abs() > 1e-12
        for t, k in itertools.product(range(len(response)), (2, 3, 4)):
            target = t + k - 1
            if target >= len(response):
                reached = False
            elif variant == "parallel":
                reached = changed < t or changed == target
            else:
                reached = changed <= target
            assert bool(moved[t, k - 2]) == reached, (changed, t, k)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("variant", "hidden"), KINDS)
def test_padding_permutation_and_splitting_change_nothing(name, variant, hidden):
    model = tiny(name, torch.float64)
    modules, pairs = stirred(model, 3, variant, hidden), sequences()
    with torch.no_grad():
        whole = mtp_outputs(model, modules, *batch(pairs), rank=True)
        ids, mask, response = batch(pairs, 4, 5)
        padded = mtp_outputs(model, modules, ids.masked_fill(mask == 0, 17), mask, response, rank=True)
        order = [2, 0, 3, 1]
        permuted = mtp_outputs(model, modules, *batch([pairs[i] for i in order]), rank=True)
        parts = [mtp_outputs(model, modules, *batch([pair]), rank=True) for pair in pairs]
    for value, wide, other in zip(whole, padded, permuted, strict=True):
        width = value.shape[1]
        torch.testing.assert_close(wide[:, :width], value, atol=1e-9, rtol=0)
        assert not wide[:, width:].any()
        torch.testing.assert_close(other, value[order], atol=1e-9, rtol=0)
    for i, part in enumerate(parts):
        for value, alone in zip(whole, part, strict=True):
            torch.testing.assert_close(value[i, : alone.shape[1]], alone[0], atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_parallel_module_on_the_trunk_starts_as_the_backbone(name):
    """Layer, norm and head are copies: from t every module gives the backbone's distribution of y_t."""
    model, pairs = tiny(name), sequences()
    ids, mask, response = batch(pairs)
    with torch.no_grad():
        out = mtp_outputs(model, MtpModules(model, 3, "parallel", "trunk"), ids, mask, response)
        logits = model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0)).logits
    prompt = ids.shape[1] - response.shape[1]
    for k in (2, 3):
        for i, t in block_mask(response, 3)[..., k - 2].nonzero().tolist():
            expected = logits[i, prompt - 1 + t].log_softmax(-1)[ids[i, prompt + t + k - 1]]
            torch.testing.assert_close(out.mtp_log_prob[i, t, k - 2], expected, atol=1e-5, rtol=0)


def test_a_chained_module_starts_on_the_normed_hidden_state_alone():
    model = tiny(dtype=torch.float64)
    join = MtpModules(model, 2, "chained")["2"].join
    hidden, ahead = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    eps = model.config.rms_norm_eps
    expected = hidden / (hidden.square().mean(-1, keepdim=True) + eps).sqrt()
    # transformers' norm is computed in float32, whatever goes in
    torch.testing.assert_close(join(hidden, ahead), expected, rtol=1e-6, atol=1e-6)
    (grad,) = torch.autograd.grad(join(hidden, ahead).sum(), join.proj.weight)
    assert grad[:, 16:].abs().min() > 0, "the embedding's half is 0 at the start and learns at once"


def test_modules_share_no_memory_with_the_backbone_or_each_other():
    for name in NAMES:
        model = tiny(name)
        modules = MtpModules(model, 4, "chained")
        places = [p.data_ptr() for m in (model, modules) for p in m.parameters()]
        assert len(set(places)) == len(places)
        assert all(p.requires_grad for p in modules.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("variant", "hidden"), KINDS)
def test_the_mtp_loss_gives_the_backbone_no_gradient(name, variant, hidden):
    model, pairs = tiny(name), sequences()
    modules = stirred(model, 3, variant, hidden)
    out = mtp_outputs(model, modules, *batch(pairs))
    loss, _ = cross_entropy(out.mtp_log_prob, batch(pairs)[2])
    reached = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert all(gradient is None or not gradient.any() for gradient in reached)
    grads = torch.autograd.grad(loss, list(modules.parameters()))
    assert all(gradient.any() for gradient in grads)
    through = mtp_outputs(model, modules, *batch(pairs), backbone_gradient=True)
    loss, _ = cross_entropy(through.mtp_log_prob, batch(pairs)[2])
    reached = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert any(gradient is not None and gradient.any() for gradient in reached)
    for one, other in zip(out[:2], through[:2], strict=True):
        assert torch.equal(one, other)


def test_warm_up_trains_the_modules_and_leaves_the_backbone_bit_for_bit():
    model, pairs = tiny("llama"), sequences()
    ids, mask, response = batch(pairs)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        logits = model(ids, attention_mask=mask).logits
    modules = MtpModules(model, 3)
    seen = []
    history = warm_up(
        model, modules, [(ids, mask, response)] * 60, lr=3e-2, on_step=lambda *step: seen.append(step)
    )
    assert history[-1]["loss"] < 0.2 * history[0]["loss"]
    for row in history:
        assert row["loss"] == pytest.approx((row["loss_2"] + row["loss_3"]) / 2, rel=1e-5)
    assert seen == [(row["step"], row["loss"]) for row in history] and seen[-1][0] == 60
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        assert torch.equal(model(ids, attention_mask=mask).logits, logits)


def test_warm_up_loss_is_the_cross_entropy_of_the_log_probs():
    model, pairs = tiny(), sequences()
    modules = stirred(model, 4, "chained")
    given = batch(pairs)
    loss, each = warm_up_loss(model, modules, *given)
    expected, of_each = cross_entropy(mtp_outputs(model, modules, *given).mtp_log_prob, given[2])
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(each, of_each)


@pytest.mark.parametrize("variant", ["parallel", "chained"])
def test_gradient_of_the_warm_up_loss_by_finite_differences(variant):
    model = tiny(dtype=torch.float64)
    modules, given = stirred(model, 3, variant), batch(sequences())
    loss, _ = warm_up_loss(model, modules, *given)
    loss.backward()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in modules.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        values, start = [], parameter.detach().clone()
        for step in (1e-3, -1e-3):  # transformers' norms are float32 whatever the model
            with torch.no_grad():
                parameter.copy_(start + step * direction)
                values.append(float(warm_up_loss(model, modules, *given)[0]))
        with torch.no_grad():
            parameter.copy_(start)
        slope = (values[0] - values[1]) / 2e-3
        expected = float((parameter.grad * direction).sum())
        assert abs(expected) > 1e-3 and slope == pytest.approx(expected, rel=2e-3, abs=1e-4), name


def test_temperature_divides_the_logits():
    model, given = tiny(), batch(sequences())
    modules = stirred(model, 2)
    hot = mtp_outputs(model, modules, *given, temperature=3.0)
    with torch.no_grad():
        for head in (model.lm_head, modules["2"].head):
            if head is not model.lm_head:
                head.weight.div_(3.0)
    cold = mtp_outputs(model, modules, *given)
    torch.testing.assert_close(hot.mtp_log_prob, cold.mtp_log_prob, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="temperature=0"):
        mtp_outputs(model, modules, *given, temperature=0)


def test_half_precision_is_summed_in_float32():
    model = tiny(dtype=torch.bfloat16)
    out = mtp_outputs(model, stirred(model, 3), *batch(sequences()))
    assert out.log_prob.dtype == out.mtp_log_prob.dtype == torch.float32
    assert out.mtp_log_prob.max() <= 0


def test_cross_entropy_typed_in():
    """Two responses of 3 and 1 tokens: module 2 has targets at t = 0, 1 of the first, module 3 at t = 0."""
    log_prob = torch.full((2, 3, 2), -99.0)
    log_prob[0, :, 0] = torch.tensor([-1.0, -3.0, -50.0])
    log_prob[0, :, 1] = torch.tensor([-5.0, -50.0, -50.0])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    loss, each = cross_entropy(log_prob, mask)
    assert each.tolist() == [2.0, 5.0] and loss.item() == 3.5
    loss, each = cross_entropy(log_prob[:, :2], mask[:, :2])  # no response of three tokens: no module 3
    assert each.tolist() == [1.0, 0.0] and loss.item() == 1.0
    loss, _ = cross_entropy(log_prob[1:], mask[1:])
    assert loss.item() == 0.0
    with pytest.raises(
        ValueError, match=r"mtp_log_prob is .*allowed is \[B, T, K-1\] with \[B, T\] = \[2, 2\]"
    ):
        cross_entropy(log_prob, mask[:, :2])


@pytest.mark.parametrize("split", [[0, 1], [0], [3], [1, 2, 3]])
def test_cross_entropies_of_micro_batches_add_up(split):
    """Losses and gradients, with the counts of the whole batch."""
    model, (ids, mask, response) = tiny(), batch(sequences())
    modules = stirred(model, 4)
    parameters = list(modules.parameters())

    def of(rows, counts=None):
        out = mtp_outputs(model, modules, ids[rows], mask[rows], response[rows])
        loss, each = cross_entropy(out.mtp_log_prob, response[rows], counts)
        return loss.detach(), each, torch.autograd.grad(loss, parameters)

    loss, each, gradient = of(list(range(4)))
    counts = entry_counts(response, 4)
    assert counts.tolist() == [5 + 0 + 3 + 7, 4 + 0 + 2 + 6, 3 + 0 + 1 + 5]
    parts = [of(rows, counts) for rows in (split, [i for i in range(4) if i not in split])]
    torch.testing.assert_close(parts[0][0] + parts[1][0], loss)
    torch.testing.assert_close(parts[0][1] + parts[1][1], each)
    for whole, *pieces in zip(gradient, parts[0][2], parts[1][2], strict=True):
        torch.testing.assert_close(pieces[0] + pieces[1], whole, atol=1e-6, rtol=1e-4)
    with pytest.raises(ValueError, match=r"counts=\[1, 1, 1\]: allowed are 3 numbers"):
        of([0, 3], torch.ones(3, dtype=torch.long))


def test_predicted_rank_typed_in():
    module = torch.tensor([[0.0, 9.0, 1.0], [5.0, 0.0, 1.0], [0.0, 1.0, 2.0]])
    backbone = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [2.0, 2.0, 2.0]])
    assert predicted_rank(module, backbone).tolist() == [3, 1, 1]
    with pytest.raises(ValueError, match="backbone_logits"):
        predicted_rank(module, backbone[:2])


def test_what_has_other_parts_is_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11))
    with pytest.raises(ValueError, match="model is 'gpt2': allowed are causal LMs with a list `layers`"):
        MtpModules(other, 2)
    model = tiny()
    for given, message in (
        (dict(blocks=1), "blocks=1: allowed are integers >= 2"),
        (dict(blocks=2, variant="serial"), "variant='serial'"),
        (dict(blocks=2, hidden="first"), "hidden='first'"),
    ):
        with pytest.raises(ValueError, match=message):
            MtpModules(model, **given)
    ids, mask, response = batch(sequences())
    modules = MtpModules(model, 2)
    with pytest.raises(ValueError, match="P >= 1"):
        mtp_outputs(model, modules, ids, mask, mask.float())
    with pytest.raises(ValueError, match="attention_mask"):
        warm_up_loss(model, modules, ids, mask[:, 1:], response)


def test_sizes_of_the_fixture():
    assert SIZES["num_hidden_layers"] > 2  # so that trunk, last and the first layer's input differ
