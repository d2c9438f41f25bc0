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
    [
        ["--num-envs", "64"],
        ["--num_envs=64"],
        ["trainer.num_envs=64"],
        ["trainer.num-envs=64"],
        ["--trainer.num-envs", "64"],
        ["--trainer.num_envs=64"],
    ],
)
def test_every_spelling_says_the_same(spelling):
    options, overrides = parsed("--config", "a.yaml", *spelling)
    assert options.config == "a.yaml"
    assert overrides == [("trainer.num_envs", "64")]


def test_own_options_are_spelled_with_either_sign():
    for word in ("--num-frames", "--num_frames"):
        options, overrides = parsed(word, "7", "--quick")
        assert (options.num_frames, options.quick, overrides) == (7, True, [])


def test_keys_and_options_may_stand_among_positional_words():
    options, overrides = parsed("a", "--env.num-taggers", "8", "b", "name=tag_gridworld", "--quick", "c")
    assert options.files == ["a", "b", "c"]
    assert overrides == [("env.num_taggers", "8"), ("name", "tag_gridworld")]


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


def test_deterministic_is_a_key_that_needs_no_value():
    assert parsed("--deterministic")[1] == [("trainer.deterministic", "true")]


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


def test_config_is_looked_for_here_first_and_then_in_the_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.yaml").touch()
    monkeypatch.chdir(tmp_path / "here")
    assert find_config("a.yaml", tmp_path / "there") == tmp_path / "there" / "a.yaml"
    (tmp_path / "here" / "a.yaml").touch()
    assert find_config("a.yaml", tmp_path / "there") == Path("a.yaml")
    with pytest.raises(ConfigError, match=r"^b.yaml: no such file\. Did you mean 'a.yaml'\?$"):
        find_config("b.yaml", tmp_path / "there")


def test_a_config_in_a_folder_below_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "cartpole.yaml").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("cartpole", "cartpole.yaml", "cartpol.yml"):
        with pytest.raises(ConfigError, match=rf"^{name}: no such file. Did you mean 'examples/cartpole.yaml'\?$"):
            find_config(name, None)
    with pytest.raises(ConfigError, match=r"no such file\.$"):
        find_config("nothing_like_it.yaml", None)
