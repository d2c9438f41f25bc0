"""The behaviour suite's games against bsuite's own, their chance by law, their scores, and the CSV of an experiment."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from trainers.bsuite import file_name, logged_episodes, rows_between, text_of
from trainers.errors import CallbackError
from trainers.population import Population
from trainers.settings.read_config import read_config
from trainers.trainer import Trainer
from warpdrive.env import load_env
from warpdrive.env_wrapper import EnvWrapper
from warpdrive.errors import ConfigError, EnvError

ORACLES = Path(__file__).parents[1] / "oracles"


@pytest.fixture(scope="module")
def oracle():
    with np.load(ORACLES / "bsuite.npz") as file:
        found = dict(file)
    told = json.loads(found.pop("told").tobytes())
    assert told["bsuite"] == "0.3.6"
    return told, found


def game(oracle, number: int) -> tuple[str, dict, dict[str, np.ndarray]]:
    told, arrays = oracle
    name, config = told["games"][number]
    return name, config, {key.partition("_")[2]: one for key, one in arrays.items() if key.startswith(f"{number}_")}


def parts(arrays: dict[str, np.ndarray], when: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(when): value for key, value in arrays.items() if key.startswith(when)}


@pytest.mark.usefixtures("built_quickly")
@pytest.mark.parametrize("number", range(11))
def test_a_step_equals_bsuites(number, oracle, backend):
    name, config, theirs = game(oracle, number)
    env = EnvWrapper(name, len(theirs["action"]), backend=backend, env_config=config)
    for array, values in parts(theirs, "before_").items():
        env.data[array] = values.astype(env.data.pull(array).dtype)
    env.data["action"] = theirs["action"][:, np.newaxis].astype(np.int32)
    env.prepare_step()()
    for array, values in parts(theirs, "after_").items():
        np.testing.assert_array_equal(env.data.pull(array), values, array)
    last, reward = theirs["last"], env.data.pull("reward")[:, 0]
    np.testing.assert_array_equal(env.data.pull("terminated"), last)
    assert not env.data.pull("truncated").any() and last.any()
    seen, expected = env.data.pull("observation")[:, 0], theirs["observation"].reshape(len(last), -1)
    seen, is_sure = seen.reshape(len(last), -1), np.ones(len(last), bool)
    if name == "umbrella_length":  # the rest is chance
        assert set(np.unique(seen[:, 3:])) <= {0, 1} and set(np.unique(reward[~last])) <= {-1, 1}
        seen, expected, is_sure = seen[:, :3], expected[:, :3], last
    np.testing.assert_array_equal(seen, expected)
    np.testing.assert_array_equal(reward[is_sure], theirs["reward"][is_sure])
    np.testing.assert_array_equal(env.data.pull("num_episodes"), last)
    # bsuite counts the treasure when it is found, and all else when an episode ends.
    for total in env.env.totals:
        np.testing.assert_array_equal(env.data.pull(total), theirs[f"counted_{total}"], total)


def test_there_are_more_than_ten_thousand_transitions_of_every_game(oracle):
    told, arrays = oracle
    assert sum(len(arrays[f"{number}_action"]) for number in range(len(told["games"]))) >= 10_000
    assert {name for name, _ in told["games"]} == {"memory_len", "deep_sea", "catch", "umbrella_length"}


def is_even(values: np.ndarray, options: int) -> None:
    """Each of 0 .. options - 1 as often as the others, within five standard deviations."""
    counts = np.bincount(values.astype(int).ravel(), minlength=options)
    expected = values.size / options
    assert len(counts) == options and (np.abs(counts - expected) < 5 * expected**0.5).all(), counts


@pytest.mark.usefixtures("built_quickly")
def test_starts_and_distractors_are_drawn_evenly(backend):
    num_envs = 4_000
    memory = EnvWrapper("memory_len", num_envs, backend=backend, env_config={"num_bits": 40, "memory_length": 1})
    memory.reset(seed=1)
    is_even(memory.data.pull("query"), 40)
    bits = memory.data.pull("context")
    assert (np.abs(bits.mean(0) - 0.5) < 5 * 0.5 / num_envs**0.5).all()
    correlation = np.corrcoef(bits.T) - np.eye(40)
    assert np.abs(correlation).max() < 6 / num_envs**0.5
    catch = EnvWrapper("catch", num_envs, backend=backend)
    catch.reset(seed=1)
    is_even(catch.data.pull("ball_x"), 5)
    umbrella = EnvWrapper("umbrella_length", num_envs, backend=backend, env_config={"num_distractors": 40})
    umbrella.reset(seed=1)
    is_even(2 * umbrella.data.pull("needs") + umbrella.data.pull("has"), 4)
    umbrella.step(np.zeros((num_envs, 1), np.int32))
    for chance in (umbrella.data.pull("observation")[:, 0, 3:], (umbrella.data.pull("reward") + 1) / 2):
        assert (np.abs(chance.mean(0) - 0.5) < 5 * 0.5 / num_envs**0.5).all()
    assert not umbrella.data.pull("has").any()  # nobody took one


@pytest.mark.usefixtures("built_quickly")
def test_the_wind_of_a_stochastic_sea_fails_one_move_in_size_and_noise_is_at_the_ends_alone(backend):
    num_envs = 4_000
    config = {"size": 4, "deterministic": False, "randomize_actions": False, "unscaled_move_cost": 0.0}
    env = EnvWrapper("deep_sea", num_envs, backend=backend, env_config=config)
    env.reset(seed=2)
    one = np.ones((num_envs, 1), np.int32)
    for _ in range(3):
        before = env.data.pull("column").copy()
        env.step(one)
        assert not env.data.pull("reward").any()
        moved = env.data.pull("column") - before
        assert set(np.unique(moved)) == {0, 1} and abs(moved.mean() - 3 / 4) < 5 * (3 / 16 / num_envs) ** 0.5
    column = env.data.pull("column").copy()
    env.step(one)
    reward = env.data.pull("reward")[:, 0]
    at_an_end = (column == 0) | (column == 3)
    assert (reward[~at_an_end] == 0).all()
    noisy = reward[column == 3]
    assert abs(noisy.mean() - 1) < 5 / len(noisy) ** 0.5 and abs(noisy.std() - 1) < 5 / len(noisy) ** 0.5
    assert env.data.pull("denoised_return").tolist() == (column == 3).tolist()


@pytest.mark.usefixtures("built_quickly")
def test_only_who_always_goes_right_finds_the_treasure(backend):
    """Three steps right: 1 - 0.3; who turns left once on the way has a bad episode, and pays for its two others."""
    config = {"size": 3, "randomize_actions": False, "unscaled_move_cost": 0.3}
    env = EnvWrapper("deep_sea", 2, backend=backend, env_config=config)
    env.reset()
    for action in ([1, 1], [1, 0], [1, 1]):
        env.step(np.array(action, np.int32)[:, np.newaxis])
    assert env.data.pull("total_return").tolist() == pytest.approx([0.7, -0.2])
    assert env.data.pull("total_bad_episodes").tolist() == [0, 1]
    assert env.data.pull("denoised_return").tolist() == [1, 0]
    env.reset()
    assert env.data.pull("num_episodes").tolist() == [1, 1]  # no restart touches them


def test_scores_are_bsuites(oracle):
    told, _ = oracle
    found = [(case["name"], load_env(case["name"]).score(case["rows"]), case["score"]) for case in told["scores"]]
    for name, ours, theirs in found:
        assert ours == pytest.approx(theirs), name
    for name in ("memory_len", "deep_sea", "catch", "umbrella_length"):
        assert {score for one, score, _ in found if one == name} >= {0.0, 1.0} or name == "catch"


def test_every_setting_of_bsuites_sweeps_has_its_id(oracle):
    told, _ = oracle
    names = {"n_distractor": "num_distractors"}
    usual = {"memory_size": {"memory_length": 2}, "umbrella_distract": {"chain_length": 20},
             "deep_sea_stochastic": {"deterministic": False}}  # fmt: skip
    envs = {"memory_size": "memory_len", "umbrella_distract": "umbrella_length", "deep_sea_stochastic": "deep_sea"}
    for bsuite_id, setting in told["settings"].items():
        experiment = bsuite_id.partition("/")[0]
        config = {**usual.get(experiment, {}), **{names.get(key, key): value for key, value in setting.items()}}
        env = load_env(envs.get(experiment, experiment), config)
        assert bsuite_id in {f"{name}/{number}" for name, number in env.experiments().items()}
    assert load_env("catch").bsuite_id == "catch/0"
    with pytest.raises(EnvError, match="no experiment of bsuite has these settings"):
        _ = load_env("catch", {"rows": 7}).bsuite_id


def test_rows_of_an_experiment_are_those_that_bsuite_writes(oracle):
    """One env, looked at after each episode: then nothing is shared out."""
    told, _ = oracle
    experiment = told["experiment"]
    before = {"episode": 0.0, "total_return": 0.0, "total_perfect": 0.0, "total_regret": 0.0}
    rows = []
    for perfect in experiment["perfect"]:
        now = {
            "episode": before["episode"] + 1,
            "total_return": before["total_return"] + 2 * perfect - 1,
            "total_perfect": before["total_perfect"] + perfect,
            "total_regret": before["total_regret"] + 2 * (1 - perfect),
        }
        rows += rows_between(before, now, load_env("memory_len", {"memory_length": 3}).episode_length)
        before = now
    assert file_name("memory_len/2") == experiment["file"]
    ours, theirs = (list(csv.reader(text.splitlines())) for text in (text_of(rows), experiment["text"]))
    assert ours[0] == theirs[0]
    np.testing.assert_array_equal(np.array(ours[1:], float), np.array(theirs[1:], float))


def test_a_row_between_two_looks_has_its_share():
    before, now = {"episode": 90, "total_return": -90, "total_regret": 180}, {
        "episode": 130, "total_return": -70, "total_regret": 200,
    }  # fmt: skip
    rows = list(rows_between(before, now, 9))
    assert [(row["episode"], row["total_regret"], row["total_return"]) for row in rows] == [
        (100, 185, -85), (120, 195, -75),
    ]  # fmt: skip
    assert rows[0]["steps"] == 900 and rows[0]["episode_return"] == 0.5
    assert list(logged_episodes(0, 30)) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 25, 30]


@pytest.mark.usefixtures("built_quickly")
def test_a_run_leaves_the_csv_and_its_score_and_goes_on_with_both(tmp_path):
    def config(num_steps: int):
        return read_config({
            "name": "catch",
            "trainer": {"num_envs": 10, "train_batch_size": 180, "total_timesteps": num_steps, "device": "cpu"},
            "callbacks": [{"trainers.bsuite:BsuiteCsv": {"folder": str(tmp_path / "sweep")}}],
            "saving": {"basedir": str(tmp_path), "metrics_log_freq": 1},
        })  # fmt: skip

    trainer = Trainer(config(540))
    trainer.train()
    file = tmp_path / "sweep" / "bsuite_id_-_catch-0.csv"
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [int(row["episode"]) for row in rows][-3:] == [40, 50, 60]  # 10 envs, 3 iterations of 2 episodes
    caught = trainer.env.data.pull("total_return").sum()
    assert float(rows[-1]["total_return"]) == caught and float(rows[-1]["total_regret"]) == 60 - caught
    reports = [json.loads(line) for line in (trainer.run.path / "metrics.jsonl").read_text().splitlines()]
    assert reports[-1]["bsuite/score"] == pytest.approx(np.clip(1 - (60 - caught) / 60 / 1.6, 0, 1))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        ConfigError, match=r"callbacks\[0\].folder: \S*catch-0.csv is there already. Give another folder"
    ):
        Trainer(config(540))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("built_quickly")
def test_members_of_a_population_have_a_csv_each_and_go_on_with_it(tmp_path):
    """bsuite's analysis takes a folder for each seed. 10 envs play 2 episodes each an iteration."""
    file = tmp_path / "catch.yaml"
    file.write_text(
        "name: catch\n"
        "trainer: {num_envs: 10, train_batch_size: 180, total_timesteps: 180, device: cpu}\n"
        "population: {size: 2}\n"
        "callbacks:\n"
        f"  - trainers.bsuite:BsuiteCsv: {{folder: {tmp_path / 'sweep'}}}\n"
        f"saving: {{basedir: {tmp_path / 'runs'}}}\n"
    )
    population = Population(read_config(file))
    population.train()
    files = [tmp_path / "sweep" / f"member_{number}" / "bsuite_id_-_catch-0.csv" for number in range(2)]
    assert sorted(tmp_path.rglob("*.csv")) == files
    for member, one in zip(population.members, files, strict=True):
        last = list(csv.DictReader(one.read_text().splitlines()))[-1]
        assert last["episode"] == "20" and float(last["total_return"]) == member.env.data.pull("total_return").sum()

    longer, second = [("trainer.total_timesteps", "360")], population.path / "member_1"
    Trainer(read_config(second / "config.resolved.yaml", longer), resume=second).train()
    assert [one.read_text().splitlines()[-1].split(",")[1] for one in files] == ["20", "40"]
    Population(read_config(file, longer), resume=population.path).train()
    assert [one.read_text().splitlines()[-1].split(",")[1] for one in files] == ["40", "40"]

    files[0].unlink()
    before = sorted(tmp_path.rglob("*"))
    wrong = rf"catch.yaml:5: callbacks\[0\].folder: {files[1]} is there already. Give another folder"
    with pytest.raises(ConfigError, match=wrong):
        Population(read_config(file))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("built_quickly")
def test_a_resumed_run_keeps_the_columns_in_their_order(tmp_path):
    """10 envs play 2 episodes each an iteration: 20 at first, 40 when the run is resumed."""

    def config(num_steps: int):
        trainer = {"num_envs": 10, "train_batch_size": 180, "total_timesteps": num_steps, "device": "cpu"}
        callbacks = [{"trainers.bsuite:BsuiteCsv": {"folder": str(tmp_path / "sweep")}}]
        values = {"name": "catch", "trainer": trainer, "callbacks": callbacks, "saving": {"basedir": str(tmp_path)}}
        return read_config(values)

    first = Trainer(config(180))
    first.train()
    file = tmp_path / "sweep" / "bsuite_id_-_catch-0.csv"
    before = file.read_text().splitlines()
    assert before[0] == "steps,episode,total_return,episode_len,episode_return,total_regret"
    Trainer(config(360), resume=first.run.path).train()
    after = file.read_text().splitlines()
    assert after[: len(before)] == before and after[-1].startswith("360,40,")


@pytest.mark.usefixtures("built_quickly")
def test_a_resumed_run_goes_on_where_its_csv_is_and_writes_over_no_other(tmp_path, monkeypatch):
    """10 envs play 2 episodes each an iteration: 20 at first, 40 when the run is resumed."""

    def config(num_steps: int, seed: int = 0, folder: str = "sweep"):
        trainer = {"num_envs": 10, "train_batch_size": 180, "total_timesteps": num_steps, "device": "cpu", "seed": seed}
        callbacks = [{"trainers.bsuite:BsuiteCsv": {"folder": folder}}]
        values = {"name": "catch", "trainer": trainer, "callbacks": callbacks, "saving": {"basedir": str(tmp_path)}}
        return read_config(values)

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    first, second = Trainer(config(180)), Trainer(config(180, 1, "other"))
    first.train(), second.train()
    monkeypatch.chdir("elsewhere")
    Trainer(config(360), resume=first.run.path).train()
    assert not list(Path().iterdir())
    file, other = (tmp_path / name / "bsuite_id_-_catch-0.csv" for name in ("sweep", "other"))
    assert file.read_text().splitlines()[-1].startswith("360,40,")

    before = other.read_bytes()
    with pytest.raises(CallbackError, match=f"{other} is there already. Give another folder"):
        Trainer(config(540, folder=str(other.parent)), resume=first.run.path).train()
    assert other.read_bytes() == before


CATCH = {
    "name": "catch",
    "trainer": {"num_envs": 2, "train_batch_size": 18, "total_timesteps": 18, "device": "cpu"},
}


@pytest.mark.parametrize(
    ("env", "arguments", "lines"),
    [
        ({"name": "cartpole"}, {}, [": env 'cartpole' counts nothing for bsuite. Leave BsuiteCsv out of its config."]),
        (
            {"name": "memory_len", "env": {"memory_length": 11}},
            {},
            [
                ".bsuite_id: env 'memory_len': no experiment of bsuite has these settings: MemoryLenConfig("
                "memory_length=11, num_bits=1). Take one that it sweeps over, or name the experiment yourself, as "
                "`bsuite_id: memory_len/99` of BsuiteCsv does."
            ],
        ),
        (
            {},
            {"bsuite_id": 3, "folder": 7},
            [
                ".bsuite_id: expected an experiment and its number, as catch/3, got 3",
                ".folder: expected the name of a folder, got 7",
            ],
        ),
        (
            {},
            {"bsuite_id": "../../x/1"},
            [".bsuite_id: expected an experiment and its number, as catch/3, got '../../x/1'"],
        ),
        (
            {},
            {"bsuite_id": "memory_len/0"},
            [".bsuite_id: these settings of env 'catch' are catch/0, not memory_len/0"],
        ),
        ({}, {"bsuite_id": "foo"}, [".bsuite_id: expected an experiment and its number, as catch/3, got 'foo'"]),
    ],
)
def test_what_is_wrong_with_a_csv_is_told_when_a_config_is_read(env, arguments, lines):
    with pytest.raises(ConfigError) as caught:
        read_config({**CATCH, **env, "callbacks": [{"trainers.bsuite:BsuiteCsv": arguments}]})
    assert str(caught.value).splitlines() == [f"callbacks[0]{line}" for line in lines]


@pytest.mark.parametrize(
    ("folder", "reason"), [("file", "Not a directory"), ("/proc/nope", "No such file or directory")]
)
def test_a_folder_that_takes_no_csv_is_told_before_a_run_has_one(tmp_path, monkeypatch, folder, reason):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    config = read_config({**CATCH, "callbacks": [{"trainers.bsuite:BsuiteCsv": {"folder": folder}}]})
    wrong = f"nothing can be written in '{folder}' ({reason}). Name a folder that can be written."
    with pytest.raises(ConfigError, match=re.escape(f"callbacks[0].folder: {wrong}")):
        Trainer(config)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.usefixtures("built_quickly")
def test_a_folder_that_is_lost_as_a_run_goes_on_is_a_line(tmp_path):
    folder, runs = tmp_path / "sweep", {"basedir": str(tmp_path)}
    config = read_config(
        {**CATCH, "saving": runs, "callbacks": [{"trainers.bsuite:BsuiteCsv": {"folder": str(folder)}}]}
    )
    trainer = Trainer(config)
    folder.touch()
    with pytest.raises(
        CallbackError, match=r"BsuiteCsv: on_iteration: folder: nothing can be written in .* \(File exists"
    ):
        trainer.train()


@pytest.mark.usefixtures("built_quickly")
def test_an_experiment_of_ones_own_is_named_by_bsuite_id(tmp_path):
    """bsuite has memory_len with 10 and 12 steps, and none with 11."""
    with pytest.raises(EnvError, match=r"or name the experiment yourself, as `bsuite_id: memory_len/99` of BsuiteCsv"):
        _ = load_env("memory_len", {"memory_length": 11}).bsuite_id
    values = {
        "name": "memory_len",
        "env": {"memory_length": 11},
        "trainer": {"num_envs": 2, "train_batch_size": 24, "total_timesteps": 24, "device": "cpu"},
        "callbacks": [{"trainers.bsuite:BsuiteCsv": {"folder": str(tmp_path), "bsuite_id": "memory_len/99"}}],
        "saving": {"basedir": str(tmp_path / "runs")},
    }
    Trainer(read_config(values)).train()
    assert (tmp_path / "bsuite_id_-_memory_len-99.csv").exists()
