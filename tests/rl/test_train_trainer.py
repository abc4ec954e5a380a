"""Real updates of a tiny model: it learns what is rewarded, and only that."""

import math
import random

import pytest

torch = pytest.importorskip("torch", reason="needs the training requirements")

from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM  # noqa: E402

from venusrl.policy.model import MAX_PARAMETERS, new_policy, policy_config  # noqa: E402
from venusrl.policy.tokenizer import build_tokenizer  # noqa: E402
from venusrl.tasks import FIXED_FRAGMENTS  # noqa: E402
from venusrl.train.checkpoint import save_checkpoint  # noqa: E402
from venusrl.train.publish import WeightPublisher  # noqa: E402
from venusrl.train.sample import Sample  # noqa: E402
from venusrl.train.trainer import GrpoConfig, Trainer  # noqa: E402

PROMPT = [256, 97, 98, 257]
GOOD, BAD = 120, 121


def tiny_model(tied=False):
    tokenizer = build_tokenizer(["go"])
    config = policy_config(tokenizer)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 32, 64, 2
    config.num_attention_heads = config.num_key_value_heads = 2
    config.head_dim, config.layer_types = 16, ["full_attention"] * 2
    config.tie_word_embeddings = tied
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config), tokenizer


@pytest.fixture
def model_dir(tmp_path):
    model, tokenizer = tiny_model()
    save_checkpoint(model, tokenizer, tmp_path / "model")
    return tmp_path / "model"


def sample_of(trainer, answer, reward, group):
    """A sample whose one trained token is ``answer``, with the trainer's logprob as the old one."""
    ids = [*PROMPT, answer]
    logprobs = [0.0] * len(PROMPT) + [trainer.logprobs(ids)[-1]]
    return Sample(ids, [0] * len(PROMPT) + [1], logprobs, [0] * len(ids), reward, group)


def test_rewarded_token_becomes_likelier(model_dir):
    trainer = Trainer(model_dir, GrpoConfig(learning_rate=1e-2, warmup_steps=1))
    before = trainer.logprobs([*PROMPT, GOOD])[-1]
    for _ in range(40):
        batch = [sample_of(trainer, GOOD, 1.0, "g"), sample_of(trainer, BAD, 0.0, "g")]
        stats = trainer.step(batch)
    after = trainer.logprobs([*PROMPT, GOOD])[-1]
    assert math.exp(before) < 0.05
    assert math.exp(after) > 0.9
    assert (stats.step, stats.groups, stats.flat_groups, stats.tokens) == (40, 1, 0, 2)


def test_first_step_has_ratio_one_and_clips_nothing(model_dir):
    trainer = Trainer(model_dir)
    stats = trainer.step([sample_of(trainer, GOOD, 1.0, "g"), sample_of(trainer, BAD, 0.0, "g")])
    assert stats.ratio_mean == pytest.approx(1.0, abs=1e-5)
    assert stats.clip_fraction == 0
    assert stats.approx_kl == pytest.approx(0.0, abs=1e-6)
    assert stats.entropy == pytest.approx(math.log(320), rel=0.05)
    assert stats.grad_norm > 0


def test_groups_without_spread_change_nothing(model_dir):
    trainer = Trainer(model_dir)
    before = trainer.state_for_engine()
    before = {name: tensor.clone() for name, tensor in before.items()}
    stats = trainer.step([sample_of(trainer, token, 1.0, "g") for token in (GOOD, BAD)])
    assert (stats.tokens, stats.flat_groups) == (0, 1)
    for name, tensor in trainer.state_for_engine().items():
        assert torch.equal(tensor, before[name]), name


def test_gradient_does_not_depend_on_the_batch_cut(model_dir):
    def weights_after(max_batch_tokens):
        trainer = Trainer(model_dir, GrpoConfig(max_batch_tokens=max_batch_tokens))
        batch = [sample_of(trainer, 100 + i, float(i % 3 == 0), "ab"[i % 2]) for i in range(8)]
        # Different lengths, so that padding is really there.
        for index in (1, 4):
            longer = batch[index]
            longer.token_ids += [65, 66]
            longer.loss_mask += [0, 0]
            longer.logprobs += [0.0, 0.0]
            longer.versions += [0, 0]
        return trainer.step(batch), trainer.state_for_engine()

    whole_stats, whole = weights_after(10_000)
    cut_stats, cut = weights_after(12)
    assert whole_stats.grad_norm == pytest.approx(cut_stats.grad_norm, rel=1e-3)
    for name in whole:
        assert torch.allclose(whole[name], cut[name], atol=1e-4), name


def test_several_gradient_steps_see_the_ratio_move(model_dir):
    trainer = Trainer(model_dir, GrpoConfig(epochs=3, minibatches=2, warmup_steps=1))
    batch = [sample_of(trainer, GOOD + i % 2, float(i % 2), f"g{i // 2}") for i in range(8)]
    stats = trainer.step(batch)
    assert stats.tokens == 3 * 8
    assert stats.ratio_max > 1.01


def test_kl_term_holds_the_policy_back(model_dir):
    def probability_after(kl_coef):
        config = GrpoConfig(learning_rate=3e-3, warmup_steps=1, kl_coef=kl_coef)
        trainer = Trainer(model_dir, config)
        for _ in range(15):
            trainer.step([sample_of(trainer, GOOD, 1.0, "g"), sample_of(trainer, BAD, 0.0, "g")])
        return trainer.logprobs([*PROMPT, GOOD])[-1]

    assert probability_after(3.0) < probability_after(0.0) - 0.5


def test_learning_rate_rises_and_falls(model_dir):
    config = GrpoConfig(learning_rate=1e-3, warmup_steps=2, total_steps=4, final_rate_fraction=0.0)
    trainer = Trainer(model_dir, config)
    rates = [trainer.step([sample_of(trainer, GOOD, 1.0, "g")]).learning_rate for _ in range(6)]
    assert rates == pytest.approx([5e-4, 7.5e-4, 5e-4, 2.5e-4, 0.0, 0.0])


@pytest.mark.parametrize("tied", [False, True])
def test_checkpoint_loads_in_transformers_with_equal_logits(tmp_path, tied):
    model, tokenizer = tiny_model(tied)
    save_checkpoint(model, tokenizer, tmp_path / "model")
    trainer = Trainer(tmp_path / "model", GrpoConfig(warmup_steps=1))
    trainer.step([sample_of(trainer, GOOD, 1.0, "g"), sample_of(trainer, BAD, 0.0, "g")])
    trainer.save(tmp_path / "next")
    ids = torch.tensor([PROMPT])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "next", dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, trainer.model(ids).logits)
        assert not torch.equal(loaded(ids).logits, model(ids).logits)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "next")) == len(tokenizer)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_save_replaces_a_checkpoint(model_dir, tmp_path):
    trainer = Trainer(model_dir, GrpoConfig(warmup_steps=1))
    trainer.save(tmp_path / "kept")
    trainer.step([sample_of(trainer, GOOD, 1.0, "g"), sample_of(trainer, BAD, 0.0, "g")])
    trainer.save(tmp_path / "kept")
    probe = [*PROMPT, GOOD]
    assert Trainer(tmp_path / "kept").logprobs(probe) == trainer.logprobs(probe)


def test_interrupted_save_leaves_the_former_checkpoint(model_dir, tmp_path, monkeypatch):
    trainer = Trainer(model_dir)
    trainer.save(tmp_path / "kept")

    def fail(*_arguments, **_settings):
        raise OSError("no space left on device")

    monkeypatch.setattr(trainer.tokenizer, "save_pretrained", fail)
    with pytest.raises(OSError, match="no space"):
        trainer.save(tmp_path / "kept")
    assert Trainer(tmp_path / "kept").logprobs(PROMPT) == trainer.logprobs(PROMPT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "model"]


def test_publisher_writes_whole_versions_and_keeps_few(model_dir, tmp_path):
    from safetensors.torch import load_file

    trainer = Trainer(model_dir)
    publisher = WeightPublisher(tmp_path / "weights", keep=2)
    paths = [publisher.publish(trainer.state_for_engine(), version) for version in (1, 2, 3)]
    assert [path.exists() for path in paths] == [False, True, True]
    stored = load_file(paths[2] / "model.safetensors")
    for name, tensor in trainer.state_for_engine().items():
        assert torch.equal(stored[name], tensor)
    assert [path.name for path in paths[2].iterdir()] == ["model.safetensors"]
    publisher.close()
    assert not paths[2].exists()


def test_logprobs_are_those_of_the_softmax(model_dir):
    trainer = Trainer(model_dir)
    rng = random.Random(0)
    ids = [rng.randrange(256) for _ in range(12)]
    with torch.no_grad():
        table = torch.log_softmax(trainer.model(torch.tensor([ids])).logits[0], -1)
    expected = [0.0, *(float(table[i, ids[i + 1]]) for i in range(11))]
    assert trainer.logprobs(ids) == pytest.approx(expected, abs=1e-6)
    assert trainer.logprobs([5]) == [0.0]


def test_the_real_policy_is_small_and_depends_on_its_seed_alone():
    tokenizer = build_tokenizer(FIXED_FRAGMENTS)
    one, same, other = (new_policy(tokenizer, seed) for seed in (1, 1, 2))
    assert sum(parameter.numel() for parameter in one.parameters()) <= MAX_PARAMETERS
    assert torch.equal(one.lm_head.weight, same.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    assert one.lm_head.weight.data_ptr() != one.model.embed_tokens.weight.data_ptr()
