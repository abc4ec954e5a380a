"""Warm-up on a handful of demonstrations: what is learnt, and that the seed decides it."""

import pytest

torch = pytest.importorskip("torch", reason="needs the training requirements")

from venusrl.policy.conversation import conversation_for  # noqa: E402
from venusrl.policy.tokenizer import build_tokenizer  # noqa: E402
from venusrl.policy.warmup import (  # noqa: E402
    WarmupConfig,
    encode_demonstration,
    make_policy,
)
from venusrl.tasks import FIXED_FRAGMENTS, Demonstration, Step, Task, warmup_corpus  # noqa: E402
from venusrl.train.trainer import Trainer  # noqa: E402

SHORT = WarmupConfig(steps=3, batch_size=4, rise_steps=1)


def task(prompt):
    return Task("t", "f", "warmup", prompt, max_turns=2, setup="", verify="")


def test_only_commands_are_learnt():
    conversation = conversation_for(build_tokenizer([]))
    shown = Demonstration((Step("ls", "out\n"), Step("rm x", "ignored")), flaw=None)
    encoded = encode_demonstration(conversation, task("do"), shown)
    tokenizer = conversation.tokenizer
    pairs = list(zip(encoded.token_ids, encoded.loss_mask, strict=True))
    learnt = tokenizer.decode([token for token, keep in pairs if keep])
    context = tokenizer.decode([token for token, keep in pairs if not keep])
    assert learnt == "ls<|end|>rm x<|end|>"
    assert context == "<|task|>do<|act|><|obs|>out\n<|act|>"


def test_progress_is_reported_and_the_result_loads(tmp_path):
    seen = []
    directory = make_policy(1, tmp_path / "policy", seen.append, SHORT)
    assert [(progress.step, progress.steps) for progress in seen] == [(1, 3), (2, 3), (3, 3)]
    assert seen[-1].loss < seen[0].loss
    trainer = Trainer(directory)
    assert len(trainer.tokenizer) == len(build_tokenizer(FIXED_FRAGMENTS))


def test_the_seed_decides_everything(tmp_path):
    def weights(seed, name):
        return Trainer(make_policy(seed, tmp_path / name, None, SHORT)).state_for_engine()

    one, same, other = weights(1, "a"), weights(1, "b"), weights(2, "c")
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_a_corpus_that_ends_early_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="ended after 2 of 3 steps"):
        make_policy(1, tmp_path / "policy", None, SHORT, corpus=warmup_corpus(1, 8))
    assert not (tmp_path / "policy").exists()


def test_it_learns_to_write_what_it_is_shown(tmp_path):
    shown = Demonstration((Step("true", ""),), flaw=None)
    config = WarmupConfig(steps=25, batch_size=4, rise_steps=3)
    corpus = [(task("go"), shown)] * 100
    trainer = Trainer(make_policy(1, tmp_path / "policy", None, config, corpus))
    conversation = conversation_for(trainer.tokenizer)
    context = conversation.start("go")
    command = conversation.write("true")
    assert min(trainer.logprobs(context + command)[len(context) :]) > -0.3
