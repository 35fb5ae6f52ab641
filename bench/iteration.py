"""One RL iteration (1024 responses sampled and graded, 4 updates) against TRL's GRPOTrainer.

Same weights, prompts, response limit, group size, minibatch size, threads, clipped loss and verifier.
The learning rate is so small that responses keep their lengths. TRL runs as its users run it on a CPU:
float32, `generate` from transformers. Its iterations are timed between its own step callbacks, without
start-up.
"""

from __future__ import annotations

import functools
import itertools
import logging
import tempfile
import time
import warnings

import torch
from common import GROUP, MODEL, NEW_TOKENS, PROMPTS, SCALE, compare, header, seconds, setting

from rlvr import objectives
from rlvr.engines.local.rollout import collect
from rlvr.engines.local.update import Updater, minibatches
from rlvr.problems import get_task

ROUNDS, UPDATES, LR = 4, 4, 1e-9


def ours_iteration(policy, codec, problems):
    train = SCALE.train.model_copy(update={"group_size": GROUP, "minibatches": UPDATES})
    loss = functools.partial(objectives.get("grpo"), loss_agg_mode="token-mean")
    updater = Updater(policy.theta, policy.shape, loss, LR, (0.9, 0.999), 0.0, 1.0, 1.0)

    def iteration(seed: int) -> None:
        rollout = collect(policy.with_theta(updater.theta.detach()), codec, problems, train, seed)
        for batch in minibatches(rollout, UPDATES):
            updater.step(batch)

    return iteration


def trl_seconds(problems, iterations: int) -> list[float]:
    """Seconds of each iteration after the first, which warms up."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from transformers.utils import logging as hf_logging
    from trl import GRPOConfig, GRPOTrainer

    hf_logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    golds = {p.prompt: p.answer for p in problems}
    task = get_task(SCALE.problems.task)

    def reward(prompts, completions, **_):
        return task.rewards(completions, [golds[p] for p in prompts])

    begins: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            begins.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            gradient_checkpointing=False,
            shuffle_dataset=False,
            learning_rate=LR,
            per_device_train_batch_size=PROMPTS * GROUP // UPDATES,
            gradient_accumulation_steps=1,
            steps_per_generation=UPDATES,
            num_generations=GROUP,
            num_iterations=1,
            max_steps=UPDATES * (iterations + 1),
            max_completion_length=NEW_TOKENS,
            temperature=1.0,
            top_k=0,
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
        )
        trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(MODEL),
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [p.prompt for p in problems]}),
            processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
            callbacks=[Clock()],
        )
        trainer.train()
    ends = begins[UPDATES - 1 :: UPDATES]
    return [b - a for a, b in itertools.pairwise(ends)]


def main() -> None:
    policy, codec, problems = setting()
    header()
    ours = ours_iteration(policy, codec, problems)
    ours(0)
    before = [seconds(lambda s=s: ours(s)) for s in range(ROUNDS // 2)]
    theirs = trl_seconds(problems, ROUNDS)
    threads = torch.get_num_threads()
    after = [seconds(lambda s=s: ours(s)) for s in range(ROUNDS - ROUNDS // 2)]
    print(f"threads after TRL: {threads}")
    compare("iteration against TRL GRPOTrainer", before + after, theirs, "s", False)


if __name__ == "__main__":
    main()
