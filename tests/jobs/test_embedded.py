"""An arm of a scale file as a verl job, and the notebook's way to either engine."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from job_fixtures import save_checkpoint

from rlvr.config import Recipe, load_scale
from rlvr.engines.jobs.changed import check_unchanged
from rlvr.engines.jobs.command import data_files, environment_of, overrides
from rlvr.engines.jobs.cpu import MODE, OF_OWN_RAY, RAY, job_settings
from rlvr.engines.jobs.embedded import clear_if_other, experiment_of, prepare, settings, with_modules
from rlvr.engines.jobs.jobs import Job
from rlvr.engines.local.mtp import MtpModules
from rlvr.engines.local.policy import Policy, new_policy
from rlvr.engines.local.rollout import derive_seed, training_problems, validation_problems
from rlvr.engines.local.training import _PROBLEMS
from rlvr.engines.training import LocalTraining, VerlTraining, training_of
from rlvr.mtp import FILE as MODULES
from rlvr.problems import get_task
from rlvr.problems.benchmarks.catalogue import project_root
from rlvr.problems.tokenizer import Codec, build_tokenizer
from rlvr.recipes import check_recipes

SCALES = project_root() / "pipelines" / "scales"
FILE = SCALES / "cluster" / "params.yaml"


@pytest.fixture(scope="module")
def scale():
    return load_scale(FILE)


def changed(scale, **train):
    return scale.model_copy(update={"train": scale.train.model_copy(update=train)})


def words_of(experiment, **more):
    return dict(word.lstrip("+").split("=", 1) for word in overrides(experiment, 0, **more))


def test_the_same_sizes_and_objective(scale):
    experiment = experiment_of(scale, "nfpo", 1)
    words = words_of(experiment)
    assert words["data.train_batch_size"] == "16"
    assert words["actor_rollout_ref.rollout.n"] == "8"
    assert words["actor_rollout_ref.actor.ppo_mini_batch_size"] == "4"  # of 16 prompts: four updates
    assert words["trainer.total_training_steps"] == str(scale.train.steps)
    assert words["actor_rollout_ref.actor.policy_loss.loss_mode"] == "rlvr.nfpo"
    assert words["actor_rollout_ref.actor.policy_loss.trace_clip"] == "[0.8,1.4]"
    assert words["actor_rollout_ref.actor.optim.lr"] == str(scale.train.lr)
    assert words["actor_rollout_ref.actor.loss_agg_mode"] == scale.train.loss_agg_mode
    assert words["algorithm.norm_adv_by_std_in_grpo"] == "True"
    assert words["algorithm.rollout_correction.bypass_mode"] == "True"  # old log-probs are the sampler's


def test_a_method_s_own_settings_hold_here_too(scale):
    recipes = scale.recipes | {"dr_grpo": type(scale.recipes["grpo"])(objective="dr_grpo")}
    words = words_of(experiment_of(scale.model_copy(update={"recipes": recipes}), "dr_grpo", 0))
    assert words["algorithm.norm_adv_by_std_in_grpo"] == "False"
    assert words["actor_rollout_ref.actor.loss_agg_mode"] == "seq-mean-token-sum-norm"
    assert words["actor_rollout_ref.actor.loss_scale_factor"] == str(scale.train.max_new_tokens)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lags": (0, 2)}, r"train.lags=\[0, 2\]: engine verl samples from the present policy"),
        ({"advantage_std": "biased"}, "train.advantage_std='biased'"),
        ({"budget": 1e9}, r"train.budget=1e\+09: a verl job ends after train.steps"),
    ],
)
def test_what_verl_has_no_equal_of_is_refused(scale, change, message):
    with pytest.raises(ValueError, match=message):
        experiment_of(changed(scale, **change), "nfpo", 0)
    with pytest.raises(ValueError, match=message):  # and before the first stage
        check_recipes(changed(scale, **change))


MPO = {
    "objective": "mpo",
    "mtp_weight": 0.3,
    "mtp": {
        "blocks": 3,
        "variant": "chained",
        "lr": 1e-3,
        "warmup": {
            "seed": 0,
            "steps": 2,
            "lr": 1e-3,
            "betas": [0.9, 0.98],
            "batch_size": 4,
            "check_every": 2,
        },
    },
    "critic": {"lr": 2e-3, "value_clip": 0.25, "lam": 0.9},
}


def with_mpo(scale, mtp=None, critic=None):
    recipe = MPO | {"mtp": MPO["mtp"] | (mtp or {}), "critic": MPO["critic"] | (critic or {})}
    return scale.model_copy(update={"recipes": scale.recipes | {"mpo": Recipe.model_validate(recipe)}})


def test_modules_and_critic(scale, tmp_path):
    """The recipe's settings, and modules that start as those of the local engine's run: warmed up."""
    scale = with_mpo(scale)
    experiment, base = experiment_of(scale, "mpo", 0), tmp_path / "base"
    codec = Codec(build_tokenizer(get_task("word").words))
    policy = new_policy(scale.model, len(codec), codec.eos_id, codec.pad_id, seed=0)
    policy.save_pretrained(base)
    codec.save(base)
    model = prepare(scale, experiment, 0, base, tmp_path)
    found = with_modules(scale, experiment, model, tmp_path)
    start = Path(found.mtp.start)
    modules = MtpModules.load(start, Policy.from_pretrained(model).shape)
    assert (modules.shape.blocks, modules.shape.variant) == (3, "chained")
    before = (start / MODULES).stat().st_mtime_ns
    assert with_modules(scale, experiment, model, tmp_path) == found  # once
    assert (start / MODULES).stat().st_mtime_ns == before
    other = with_mpo(scale, {"warmup": MPO["mtp"]["warmup"] | {"steps": 3}})
    assert with_modules(other, experiment_of(other, "mpo", 0), model, tmp_path).mtp.start != str(start)

    words = words_of(found)
    loss = "actor_rollout_ref.actor.policy_loss"
    assert words[f"{loss}.loss_mode"] == "rlvr.mpo" and words[f"{loss}.mtp_weight"] == "0.3"
    assert f"{loss}.mtp_gradient" not in words
    assert words[f"{loss}.mtp"].startswith("{blocks:3,variant:chained,hidden:last,policy_gradient:stop,")
    assert f"start:{start}" in words[f"{loss}.mtp"] and "warmup" not in words[f"{loss}.mtp"]
    assert words["actor_rollout_ref.actor.strategy"] == words["critic.strategy"] == "fsdp2"
    assert words["algorithm.adv_estimator"] == "gae" and words["algorithm.lam"] == "0.9"
    assert words["critic.optim.lr"] == "0.002" and words["critic.cliprange_value"] == "0.25"
    assert words["critic.optim.weight_decay"] == "0.0"
    assert with_modules(scale, experiment_of(scale, "nfpo", 0), model, tmp_path).mtp is None


@pytest.mark.parametrize(
    ("mtp", "critic", "message"),
    [
        ({"policy_gradient": "full"}, None, r"mpo: mtp.policy_gradient='full': .* allowed .* stop, modules"),
        (None, {"network": "shared"}, r"mpo: critic.network='shared': .* allowed .* 'separate'"),
        (None, {"blocks": 2}, r"mpo: critic.blocks=2: .* is 1"),
        (None, {"whiten": False}, r"mpo: critic.whiten=False: .* is True"),
        (None, {"warmup_steps": 3}, r"mpo: critic.warmup_steps=3: .* is 0"),
        (None, {"value_clip": None}, r"mpo: critic.value_clip=None: .* a number"),
    ],
)
def test_modules_and_critics_that_verl_has_no_equal_of_are_refused(scale, mtp, critic, message):
    with pytest.raises(ValueError, match=message):
        experiment_of(with_mpo(scale, mtp, critic), "mpo", 0)


def test_unknown_arm(scale):
    with pytest.raises(ValueError, match="arm='nfpoo' has no recipe"):
        experiment_of(scale, "nfpoo", 0)


def test_both_engines_train_on_the_same_problems_in_the_same_order(scale, tmp_path):
    experiment = experiment_of(scale, "nfpo", 1)
    base = tmp_path / "base"
    codec = Codec(build_tokenizer(get_task("word").words))
    policy = new_policy(scale.model, len(codec), codec.eos_id, codec.pad_id, seed=0)
    policy.save_pretrained(base)
    codec.save(base)
    model = prepare(scale, experiment, 1, base, tmp_path)
    assert (model / "config.json").is_file()
    train, (validation,) = data_files(experiment, str(tmp_path))
    rows = pq.read_table(train).to_pylist()
    asked = [row["prompt"][0]["content"] for row in rows]
    count = scale.train.prompts_per_step
    assert len(asked) == count * scale.train.steps
    for step in (0, scale.train.steps - 1):
        problems = training_problems(scale.problems, count, derive_seed(_PROBLEMS, 1), step)
        assert asked[step * count : (step + 1) * count] == [problem.prompt for problem in problems]
    assert [row["extra_info"]["split"] for row in rows] == ["train"] * len(rows)
    held = validation_problems(scale.problems, scale.train.eval_problems)
    assert [r["prompt"][0]["content"] for r in pq.read_table(validation).to_pylist()] == [
        p.prompt for p in held
    ]
    # no prompt is longer than verl is told
    longest = max(len(codec.encode(text)) for text in asked)
    assert longest <= experiment.data.max_prompt_length


def embedded_job(scale, root, base, seed=0):
    experiment = experiment_of(scale, "nfpo", seed)
    model = prepare(scale, experiment, seed, base, root)
    words, environment, _ = job_settings(experiment, root, settings(experiment))
    job = Job(experiment, seed, root, str(model), words, environment)
    clear_if_other(job, base)
    return job


def test_a_job_of_other_settings_or_another_start_is_cleared_away(scale, tmp_path):
    base = tmp_path / "base"
    codec = Codec(build_tokenizer(get_task("word").words))

    def save(seed):
        new_policy(scale.model, len(codec), codec.eos_id, codec.pad_id, seed=seed).save_pretrained(base)
        codec.save(base)

    save(0)
    job = embedded_job(scale, tmp_path, base)
    job.state.new_attempt(str(job.folder))
    save_checkpoint(job, scale.train.steps)
    assert embedded_job(scale, tmp_path, base).state.done  # nothing changed
    other = embedded_job(changed(scale, lr=1e-5), tmp_path, base)
    assert not other.state.done and not other.state.attempts
    check_unchanged(other)
    save_checkpoint(other, scale.train.steps)
    save(1)  # the same settings, from another base model
    assert not embedded_job(changed(scale, lr=1e-5), tmp_path, base).state.done


def test_seeds_have_files_of_their_own(scale):
    files = [data_files(experiment_of(scale, "nfpo", seed))[0] for seed in (0, 1)]
    assert files[0] != files[1]


def test_on_a_ray_that_runs_nothing_is_said_about_its_own(scale, tmp_path):
    experiment = experiment_of(scale, "nfpo", 0)
    words, environment, ray = job_settings(experiment, tmp_path, settings(experiment))
    names = [word.lstrip("+").split("=")[0] for word in words]
    assert not set(names) & set(OF_OWN_RAY) and OF_OWN_RAY
    assert not any("ray_init" in name for name in names)
    assert (ray["cpus"], ray["gpus"]) == (RAY["cpus"], RAY["gpus"])
    assert environment["VERL_USE_EXTERNAL_MODULES"] == "rlvr.engines.verl.cpu.plugin"
    kept = next(word for word in words if word.startswith(f"+trainer.v1.{MODE}="))
    assert f"records_per_step:{scale.train.records_per_step}" in kept
    assert "/jobs/nfpo-s0/records" in kept


def test_engine_is_the_only_difference():
    file = str(SCALES / "cluster" / "params.yaml")
    verl, local = training_of(file, "nfpo", 0), training_of(file, "nfpo", 0, engine="local")
    assert isinstance(verl, VerlTraining) and isinstance(local, LocalTraining)
    assert {**verl.settings, "engine": ""} == {**local.settings, "engine": ""}
    assert verl.steps == local.steps
    assert verl.runs("out") == local.runs("out") == {(0, 0): Path("out/lag0")}
    every = training_of(file, "nfpo").runs("out")
    assert every == {(0, 0): Path("out/seed0/lag0"), (1, 0): Path("out/seed1/lag0")}
    assert every == training_of(file, "nfpo", engine="local").runs("out")


def test_an_experiment_is_a_verl_job():
    file = str(SCALES / "one_gpu" / "experiments.yaml")
    training = training_of(file, "nfpo-0.6b-nfpo", 0)
    assert training.engine == "verl" and training.steps == 200
    second, score = (
        training_of(file, "ibpo-0.6b-ibpo").settings,
        training_of(file, "ibpo-0.6b-score").settings,
    )
    assert second["counterfactual"]["corrections"] == 4 and "self_correction" not in second
    assert score["self_correction"]["bonus"] == 2.0 and "counterfactual" not in score
    assert training_of(file, "mpo-0.6b-mpo").settings["mtp"]["blocks"] == 5
    with pytest.raises(ValueError, match=r"engine='local': it trains embedded policies, nfpo-0\.6b-nfpo"):
        training_of(file, "nfpo-0.6b-nfpo", 0, engine="local")
    with pytest.raises(ValueError, match="cannot be run by verl yet; it needs"):
        training_of(file, "nfpo-0.6b-nfpo_recompute_trace", 0)
    with pytest.raises(ValueError, match="experiment="):
        training_of(file, "nfpo", 0)


def test_unknown_engine():
    with pytest.raises(ValueError, match="engine='ray': allowed are local, verl and None"):
        training_of(str(FILE), "nfpo", 0, engine="ray")


def with_ibpo(scale, **settings):
    recipe = type(scale.recipes["grpo"])(objective="gspo", counterfactual=settings)
    return scale.model_copy(update={"recipes": scale.recipes | {"ibpo": recipe}})


def test_an_arm_with_corrections(scale, tmp_path):
    experiment = experiment_of(with_ibpo(scale, references=2, corrections=3), "ibpo", 0)
    words = words_of(experiment)
    longest, written = experiment.data.max_prompt_length, scale.train.max_new_tokens
    # the problem, three responses with a token after each, and the end of the prompt
    assert words["actor_rollout_ref.rollout.prompt_length"] == str(longest + 3 * (written + 1) + 1)
    assert words["actor_rollout_ref.rollout.max_model_len"] == str(longest + 3 * (written + 1) + 1 + written)
    assert words["trainer.v1.trainer_mode"] == "rlvr_ibpo"
    assert "counterfactual:{references:2,corrections:3,targets:null," in words["trainer.v1.rlvr_ibpo"]
    assert words["actor_rollout_ref.actor.shuffle"] == "False"
    assert words["actor_rollout_ref.actor.policy_loss.loss_mode"] == "rlvr.gspo"
    own, environment, _ = job_settings(experiment, tmp_path, settings(experiment))
    given = dict(word.lstrip("+").split("=", 1) for word in own)
    assert given["trainer.v1.trainer_mode"] == "ibpo_cpu"
    assert "corrections:3" in given["trainer.v1.ibpo_cpu"]
    assert "records_per_step" in given["trainer.v1.ibpo_cpu"]
    assert (
        given["actor_rollout_ref.rollout.max_model_len"] == words["actor_rollout_ref.rollout.max_model_len"]
    )
    assert environment["VERL_USE_EXTERNAL_MODULES"] == "rlvr.engines.verl.cpu.plugin"
    plain = experiment_of(scale, "grpo", 0)
    assert environment_of(experiment) != environment_of(plain)
    assert "trainer.v1.rlvr_ibpo" not in words_of(plain)
    check_recipes(with_ibpo(scale))


def test_an_arm_of_two_turns(scale, tmp_path):
    recipe = type(scale.recipes["grpo"])(objective="gspo", self_correction={"bonus": 3.0})
    scale = scale.model_copy(update={"recipes": scale.recipes | {"score": recipe}})
    experiment = experiment_of(scale, "score", 0)
    words, mode = words_of(experiment), "rlvr_self_correction"
    longest, written = experiment.data.max_prompt_length, scale.train.max_new_tokens
    # the problem, the response with a token after it, and the end of the prompt
    assert words["actor_rollout_ref.rollout.prompt_length"] == str(longest + written + 2)
    assert words["actor_rollout_ref.rollout.max_model_len"] == str(longest + 2 * written + 2)
    assert words["trainer.v1.trainer_mode"] == mode
    block = "self_correction:{stage1_share:0.5,first_turn_kl:0.1,kl:0.01,bonus:3.0,"
    assert block in words[f"trainer.v1.{mode}"]
    actor = {key.rpartition(".")[2]: value for key, value in words.items() if ".actor." in key}
    assert (actor["use_kl_loss"], actor["kl_loss_coef"], actor["shuffle"]) == ("True", "0.0", "False")
    own, _, _ = job_settings(experiment, tmp_path, settings(experiment))
    given = dict(word.lstrip("+").split("=", 1) for word in own)
    assert given["trainer.v1.trainer_mode"] == "self_correction_cpu"
    assert "bonus:3.0" in given["trainer.v1.self_correction_cpu"]
    assert environment_of(experiment)["VERL_USE_EXTERNAL_MODULES"] == "rlvr.engines.verl.self_correcting"
    check_recipes(scale)
    free = type(recipe)(objective="gspo", self_correction={"first_turn_kl": 0.0, "kl": 0.0})
    scale = scale.model_copy(update={"recipes": scale.recipes | {"score": free}})
    words = words_of(experiment_of(scale, "score", 0))
    assert words["actor_rollout_ref.actor.use_kl_loss"] == "False"
    assert "actor_rollout_ref.actor.kl_loss_coef" not in words


def test_a_mask_needs_its_loss(scale):
    with pytest.raises(ValueError, match=r"counterfactual\.variant='mask' with objective='gspo'"):
        experiment_of(with_ibpo(scale, variant="mask"), "ibpo", 0)
