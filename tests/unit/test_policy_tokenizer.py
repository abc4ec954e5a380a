"""Encoding is exact for any bytes, and no text can become a special token."""

import pytest

pytest.importorskip("transformers", reason="needs the training requirements")

from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from venusrl.policy.conversation import NativeConversation, conversation_for
from venusrl.policy.tokenizer import (
    END,
    SPECIAL_TOKENS,
    build_tokenizer,
    decode_bytes,
    encode_ordinary,
)
from venusrl.tasks import FIXED_FRAGMENTS

TOKENIZER = build_tokenizer(FIXED_FRAGMENTS)
SPECIAL_IDS = set(TOKENIZER.all_special_ids)
# Text in which fragments, special tokens and pieces of them meet in every order.
TRICKY = st.lists(
    st.one_of(
        st.sampled_from([*SPECIAL_TOKENS, *FIXED_FRAGMENTS, " ", "\n", "/", "<|", "|>", "x"]),
        st.text(max_size=5),
    ),
    max_size=12,
).map("".join)


@given(TRICKY)
def test_text_round_trip(text):
    ids = encode_ordinary(TOKENIZER, text)
    assert decode_bytes(TOKENIZER, ids) == text.encode()
    assert TOKENIZER.decode(ids) == text


@given(st.binary(max_size=60))
def test_any_bytes_round_trip(data):
    assert decode_bytes(TOKENIZER, encode_ordinary(TOKENIZER, data)) == data


@given(TRICKY)
def test_no_text_encodes_to_a_special_token(text):
    assert SPECIAL_IDS.isdisjoint(encode_ordinary(TOKENIZER, text))


@given(TRICKY, TRICKY)
def test_an_observation_cannot_forge_a_turn(prompt, observation):
    conversation = conversation_for(TOKENIZER)
    assert isinstance(conversation, NativeConversation)
    ids = conversation.start(prompt) + conversation.observe(observation)
    specials = [token_id for token_id in ids if token_id in SPECIAL_IDS]
    assert specials == [
        conversation.task_id,
        conversation.act_id,
        conversation.obs_id,
        conversation.act_id,
    ]


@given(TRICKY)
def test_command_is_what_was_written(command):
    conversation = conversation_for(TOKENIZER)
    ids = conversation.write(command)
    assert ids[-1] == conversation.stop_token_ids[0]
    assert conversation.command(ids) == command


def test_lone_surrogates_are_encoded_as_replacements():
    assert TOKENIZER.decode(encode_ordinary(TOKENIZER, "a\ud800b")) == "a\ufffdb"


def test_fragments_are_single_tokens_with_and_without_a_blank():
    tokenizer = build_tokenizer(["move", "mkdir -p", "'"])
    for text in ("move", " move", "mkdir -p", " mkdir -p", " '"):
        assert len(encode_ordinary(tokenizer, text)) == 1


def test_names_stay_bytes_even_when_they_contain_a_fragment():
    tokenizer = build_tokenizer(["move", "cat"])
    for name in ("movement", "cat_x", "concat", "xmove"):
        assert encode_ordinary(tokenizer, name) == list(name.encode())


def test_the_longest_fragment_wins():
    tokenizer = build_tokenizer(["sed", "sed -i"])
    assert len(encode_ordinary(tokenizer, "sed -i")) == 1


def test_a_saved_tokenizer_loads_the_same(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = f"{FIXED_FRAGMENTS[0]} kivo {END} \u00e9 \x00"
    assert encode_ordinary(loaded, text) == encode_ordinary(TOKENIZER, text)
    # Also through the plain call, which other programs use.
    assert SPECIAL_IDS.isdisjoint(loaded.encode(text))
    assert loaded.eos_token_id == TOKENIZER.eos_token_id
