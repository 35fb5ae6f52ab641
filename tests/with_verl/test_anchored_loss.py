"""The KL penalty with a weight of each row, as verl's worker adds it; through verl's engine:
test_plugin_engine.py."""

import math

import pytest
import torch

# not "verl" alone: without the package, that name finds this folder
pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install -e '.[verl]'")
pytest.importorskip("transfer_queue", reason="TransferQueue is not installed: pip install -e '.[verl]'")

from verl.utils import tensordict_utils as tu

from rlvr.engines.local.update import kl_penalty
from rlvr.engines.verl.self_correcting import KL_COEF, TURN, TURNS, AnchoredLoss
from rlvr.engines.verl.updates import PARTS

pytestmark = pytest.mark.verl

PROMPT, LENGTHS = 3, [4, 1, 5, 2, 3, 2]
TURN_OF, COEF_OF = [1, 1, 2, 2, 0, 1], [0.3, 0.3, 0.1, 0.1, 0.0, 0.3]
ENTERED = 7.0  # of verl's own loss


def jagged(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def drawn(seed=0):
    """Per row: log-probs of the policy over prompt and response, of the base model, and a mask with a hole;
    row 4 only fills up."""
    g = torch.Generator().manual_seed(seed)
    policy = [-2 * torch.rand(PROMPT + n, generator=g, dtype=torch.float64) for n in LENGTHS]
    base = [-2 * torch.rand(n, generator=g, dtype=torch.float64) for n in LENGTHS]
    masks = [torch.ones(n, dtype=torch.int64) for n in LENGTHS]
    masks[2][1] = 0
    masks[4][:] = 0
    return policy, base, masks


def tokens_of(masks, turn):
    return sum(int(m.sum()) for m, t in zip(masks, TURN_OF, strict=True) if t == turn)


def called(rows, policy, base, masks, dp_size=1):
    """(loss, metrics, log-probs) of a micro-batch of these ``rows``; counts are those of all."""
    log_prob = [policy[row].clone().requires_grad_() for row in rows]
    data = tu.get_tensordict(
        {
            "prompts": jagged(torch.zeros(PROMPT, dtype=torch.int64) for _ in rows),
            "responses": jagged(torch.zeros(LENGTHS[row], dtype=torch.int64) for row in rows),
            "response_mask": jagged(masks[row] for row in rows),
            "ref_log_prob": jagged(base[row] for row in rows),
            TURN: torch.tensor([TURN_OF[row] for row in rows]),
            KL_COEF: torch.tensor([COEF_OF[row] for row in rows]),
        },
        non_tensor_dict={
            "dp_size": dp_size,
            "batch_num_tokens": sum(int(mask.sum()) for mask in masks),
            **{count: tokens_of(masks, turn) for turn, (_, count) in TURNS.items()},
        },
    )
    loss = AnchoredLoss(lambda model_output, data, dp_group: (torch.tensor(ENTERED), {"a": 1}))
    found, metrics = loss(model_output={"log_probs": jagged(log_prob)}, data=data, dp_group=None)
    return found, metrics, log_prob


def k3(policy, base, masks, row):
    """A slow loop; the log-prob of a token is that at the place before it."""
    out = []
    for place in range(LENGTHS[row]):
        if masks[row][place]:
            gap = float(base[row][place]) - float(policy[row][PROMPT + place - 1])
            out.append(math.exp(gap) - gap - 1)
    return out


def test_against_a_slow_loop():
    policy, base, masks = drawn()
    found, metrics, _ = called(range(6), policy, base, masks)
    each = [k3(policy, base, masks, row) for row in range(6)]
    total = sum(coef * sum(row) for coef, row in zip(COEF_OF, each, strict=True))
    assert float(found) - ENTERED == pytest.approx(total / sum(map(len, each)), rel=1e-6)
    for turn, (name, _) in TURNS.items():
        values = [v for row, t in zip(each, TURN_OF, strict=True) if t == turn for v in row]
        assert float(metrics[f"actor/{name}"].values[0]) == pytest.approx(sum(values) / len(values))
        count, mean, _ = metrics[PARTS][name]
        assert (count, mean) == (len(values), pytest.approx(sum(values) / len(values)))
    assert metrics["a"] == 1


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def test_it_is_the_local_engine_s_penalty_of_each_turn():
    policy, base, masks = drawn(1)
    found, _, log_prob = called(range(6), policy, base, masks)
    found.backward()
    theirs = [row.grad for row in log_prob]
    ours = [row.clone().requires_grad_() for row in policy]
    tokens = sum(int(mask.sum()) for mask in masks)
    loss = torch.tensor(0.0, dtype=torch.float64)
    for turn, coef in ((1, 0.3), (2, 0.1)):
        rows = [row for row in range(6) if TURN_OF[row] == turn]
        own = [ours[row][PROMPT - 1 : -1] for row in rows]
        parts = (padded(own), padded(base[row] for row in rows), padded(masks[row] for row in rows))
        loss = loss + coef * kl_penalty(*parts, tokens)
    loss.backward()
    assert float(found.detach()) - ENTERED == pytest.approx(float(loss.detach()), rel=1e-6)
    for row in range(6):
        expected = torch.zeros(PROMPT + LENGTHS[row]) if ours[row].grad is None else ours[row].grad
        assert torch.allclose(theirs[row], expected.to(theirs[row].dtype), atol=1e-7)
    assert not theirs[4].any() and theirs[0].any() and not theirs[2][PROMPT].any()  # filler; the hole


@pytest.mark.parametrize("cut", [[[0, 1, 2, 3, 4, 5]], [[0, 3], [1, 2], [4, 5]], [[4], [5, 0, 1], [2, 3]]])
def test_whatever_the_micro_batches(cut):
    policy, base, masks = drawn(2)
    whole, said, _ = called(range(6), policy, base, masks)
    parts = [called(rows, policy, base, masks) for rows in cut]
    assert sum(float(p[0]) - ENTERED for p in parts) == pytest.approx(float(whole) - ENTERED, rel=1e-6)
    for name, _ in TURNS.values():
        split = sum(float(p[1][f"actor/{name}"].values[0]) for p in parts)
        assert split == pytest.approx(float(said[f"actor/{name}"].values[0]))


def test_ranks_are_averaged_by_the_engine():
    policy, base, masks = drawn(3)
    one, two = (float(called(range(6), policy, base, masks, size)[0]) - ENTERED for size in (1, 2))
    assert two == pytest.approx(2 * one, rel=1e-6)


def test_a_job_without_turns_is_verl_s():
    data = tu.get_tensordict({"response_mask": jagged([torch.ones(2, dtype=torch.int64)])})
    said = (torch.tensor(ENTERED), {})
    assert AnchoredLoss(lambda **_: said)(model_output={}, data=data) == said
