import pytest

from venusrl.episode.action import Command, Finish, Malformed, parse_action

pytestmark = pytest.mark.unit


def parse(text: str, *, complete: bool = True) -> object:
    return parse_action(text, complete=complete, max_characters=20)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ls -l", "ls -l"),
        ("  ls -l\n", "ls -l"),
        ("```\nls\n```", "ls"),
        ("```bash\nls -l\n```", "ls -l"),
        ("<think>first\nlook</think>\n\nls", "ls"),
        ("<think>a</think>```sh\nls```", "ls"),
        ("echo 'ä€'", "echo 'ä€'"),
        ("x" * 20, "x" * 20),
    ],
)
def test_one_command_is_found(text: str, command: str) -> None:
    assert parse(text) == Command(command)


@pytest.mark.parametrize("text", ["", "  \n", "```\n\n```", "<think>done</think>"])
def test_saying_nothing_ends_the_episode(text: str) -> None:
    assert parse(text) == Finish()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * 21, "longer than 20 characters"),
        ("ls\nls", "more than one line"),
        ("ls \0", "not text"),
        ("ls \ufffd", "not text"),
    ],
)
def test_anything_else_is_malformed(text: str, reason: str) -> None:
    action = parse(text)
    assert isinstance(action, Malformed)
    assert reason in action.reason


def test_a_command_cut_off_by_the_token_limit_is_never_run() -> None:
    assert isinstance(parse("rm -rf /tmp/a", complete=False), Malformed)
    assert isinstance(parse("", complete=False), Malformed)
