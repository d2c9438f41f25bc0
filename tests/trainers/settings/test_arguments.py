"""What the words after a command mean."""

import argparse
from pathlib import Path

import pytest

from trainers.settings.arguments import Parser, add_config_arguments, find_config, parse
from warpdrive.errors import ConfigError


def parser() -> Parser:
    """Of a command with a config, a number, a flag and positional arguments."""
    made = Parser(prog="warpdrive do", allow_abbrev=False)
    add_config_arguments(made)
    made.add_argument("--num-frames", type=int)
    made.add_argument("--quick", action="store_true")
    made.add_argument("files", nargs="*")
    return made


def parsed(*words: str) -> tuple[argparse.Namespace, list[tuple[str, str]]]:
    return parse(parser(), words)


@pytest.mark.parametrize(
    "spelling",
    ["--num-envs 64", "--num_envs=64", "trainer.num_envs=64", "trainer.num-envs=64",
     "--trainer.num-envs 64", "--trainer.num_envs=64"],
)  # fmt: skip
def test_every_spelling_says_the_same(spelling):
    options, overrides = parsed("--config", "a.yaml", *spelling.split())
    assert options.config == "a.yaml"
    assert overrides == [("trainer.num_envs", "64")]


def test_own_options_are_spelled_with_either_sign():
    for word in ("--num-frames", "--num_frames"):
        options, overrides = parsed(word, "7", "--quick")
        assert (options.num_frames, options.quick, overrides) == (7, True, [])


def test_keys_and_options_may_stand_among_positional_words_and_deterministic_needs_no_value():
    words = ("a", "--env.num-taggers", "8", "b", "name=tag_gridworld", "--quick", "--deterministic", "c")
    options, overrides = parsed(*words)
    assert options.files == ["a", "b", "c"]
    assert overrides == [("env.num_taggers", "8"), ("name", "tag_gridworld"), ("trainer.deterministic", "true")]


@pytest.mark.parametrize("value", ["a=b", "-5", "[[0, 1e-3]]", "", "two words", "a/b=c.yaml"])
def test_value_of_an_option_is_taken_as_it_is(value):
    options, overrides = parsed("--config", value, "--trainer.seed", value, f"env.x={value}")
    assert options.config == value
    assert overrides == [("trainer.seed", value), ("env.x", value)]


def test_typed_length_goes_before_the_length_of_the_file():
    _, overrides = parsed("--total-timesteps", "9")
    assert overrides == [("trainer.total_timesteps", "9"), ("trainer.num_episodes", "null")]
    _, overrides = parsed("trainer.num_episodes=9")
    assert overrides == [("trainer.num_episodes", "9"), ("trainer.total_timesteps", "null")]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--trainer.seed"], "--trainer.seed needs a value. See warpdrive do --help."),
        (["--trainer.seed", "--quick"], "--trainer.seed needs a value. See warpdrive do --help."),
        (["--num_frames"], "--num_frames needs a value. See warpdrive do --help."),
        (["--num-frames", "x"], "--num-frames: expected a whole number, got 'x'. See warpdrive do --help."),
        (["--num-frame", "1"], "unknown option '--num-frame'. Did you mean '--num-frames'? See warpdrive do --help."),
    ],
)
def test_mistakes_are_one_line(words, line):
    with pytest.raises(ConfigError) as caught:
        parsed(*words)
    assert str(caught.value) == f"command line: {line}"


def test_config_is_looked_for_here_and_then_in_the_folder_and_named_where_a_folder_below_has_it(tmp_path, monkeypatch):
    (tmp_path / "here" / "examples").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "tag.yaml").touch()
    monkeypatch.chdir(tmp_path / "here")
    assert find_config("tag.yaml", tmp_path / "there") == tmp_path / "there" / "tag.yaml"
    (tmp_path / "here" / "tag.yaml").touch()
    assert find_config("tag.yaml", tmp_path / "there") == Path("tag.yaml")
    with pytest.raises(ConfigError, match=r"^tags.yaml: no such file\. Did you mean 'tag.yaml'\?$"):
        find_config("tags.yaml", tmp_path / "there")
    (tmp_path / "here" / "examples" / "cartpole.yaml").touch()
    for name in ("cartpole", "cartpole.yaml", "cartpol.yml"):
        with pytest.raises(ConfigError, match=rf"^{name}: no such file. Did you mean 'examples/cartpole.yaml'\?$"):
            find_config(name, None)
    with pytest.raises(ConfigError, match=r"no such file\.$"):
        find_config("nothing_like_it.yaml", None)
