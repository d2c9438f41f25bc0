from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Literal

import numpy as np
import pytest

from warpdrive.config import Between, Count, Fraction, Hints, Number, Schedule, build, value_at, wrong_values
from warpdrive.config_file import dump_yaml, load_yaml, override, parse_yaml
from warpdrive.errors import ConfigError, EnvError


@dataclass(frozen=True)
class Wheels:
    sizes: tuple[Count, ...] = (1, 2)
    place: tuple[int, int] | None = None


@dataclass(frozen=True)
class Car:
    num_seats: Count = 4
    weight: float = 1.5
    share: Fraction = 0.5
    is_red: bool = False
    label: str | None = None
    kind: Literal["van", "truck"] = "van"
    tows: Literal[False, "boat"] = False
    speed: Annotated[Number, Between(0)] = 2.0
    wheels: Wheels = field(default_factory=Wheels)
    trailers: dict[str, Wheels] = field(default_factory=dict)
    spare: Wheels | None = None

    def __post_init__(self) -> None:
        if self.label == "forbidden":
            raise EnvError("label must not be forbidden.")


def car(text: str) -> Car:
    return build(Car, parse_yaml(text, "car.yaml"))


def errors(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        car(text)
    return str(caught.value).splitlines()


READ = [
    ("weight: 1e-3", "weight", 0.001),
    ("tows: boat", "tows", "boat"),
    ("tows: false", "tows", False),
    ("weight: 1E+3", "weight", 1000.0),
    ("weight: .5", "weight", 0.5),
    ("weight: 2", "weight", 2.0),
    ("num_seats: 1e3", "num_seats", 1000),
    ("num_seats: 20_000", "num_seats", 20000),
    ("num_seats: +5", "num_seats", 5),
    ("num_seats: 5.", "num_seats", 5),
    ("weight: 1_000.5", "weight", 1000.5),
    ("weight: -0", "weight", 0.0),
    ("weight: 1e-400", "weight", 0.0),
    ("label: NaN", "label", "NaN"),
    ("label: \u0661", "label", "\u0661"),
    ("label: 0x10", "label", "0x10"),
    ("label: ~", "label", None),
    ("is_red: true", "is_red", True),
    ("label: yes", "label", "yes"),
    ("label: '010'", "label", "010"),
    ('label: "12:30:45"', "label", "12:30:45"),
    ("label:", "label", None),
    ("label: 2026-11-21", "label", "2026-11-21"),
    ("wheels: {sizes: [3]}", "wheels", Wheels((3,))),
    ("wheels: {place: [1, 2]}", "wheels", Wheels(place=(1, 2))),
    ("wheels:", "wheels", Wheels()),
    ("trailers: {a: {sizes: [5]}}", "trailers", {"a": Wheels((5,))}),
    ("spare: {sizes: [6]}", "spare", Wheels((6,))),
    ("spare:", "spare", None),
    ("speed: [[0, 1e-3], [10, 0]]", "speed", Schedule(((0, 0.001), (10, 0.0)))),
]


@pytest.mark.parametrize(("text", "key", "value"), READ)
def test_values_are_read_as_people_mean_them(text, key, value):
    found = getattr(car(text), key)
    assert found == value
    assert type(found) is type(value)


WRONG = [  # what tests/bad_configs.py does not have, of configs as users write them
    ("weight: .nan", "car.yaml:1: weight: expected a number, got .nan"),
    ("weight: '1'", "car.yaml:1: weight: expected a number, got '1' as text. Write 1 without quotes."),
    ("share: 1.5", "car.yaml:1: share: expected a number from 0 to 1, got 1.5"),
    ("is_red: 1", "car.yaml:1: is_red: expected true or false, got 1"),
    ("label: 3", "car.yaml:1: label: expected text, got 3"),
    ("label: [1]", "car.yaml:1: label: expected text, got [1]"),
    ("kind: trukc", "car.yaml:1: kind: unknown 'trukc'. Did you mean 'truck'? (van, truck)"),
    ("tows: boot", "car.yaml:1: tows: unknown 'boot'. Did you mean 'boat'? (false, boat)"),
    ("tows: true", "car.yaml:1: tows: unknown true. (false, boat)"),
    ("tows: 0", "car.yaml:1: tows: unknown 0. (false, boat)"),
    ("wheels: 4", "car.yaml:1: wheels: expected keys and values, got 4"),
    ("wheels:\n  sizes: 4", "car.yaml:2: wheels.sizes: expected a list of whole numbers, got 4"),
    ("wheels:\n  sizes: [4, x]", "car.yaml:2: wheels.sizes: expected a whole number of at least 1, got 'x'"),
    ("wheels: {place: [1]}", "car.yaml:1: wheels.place: expected a list of 2 whole numbers, got [1]"),
    ("wheels.sizes: [1]", "car.yaml:1: wheels.sizes: unknown key. In a file write wheels: {sizes: ...}"),
    ("wheels: {size: [1]}", "car.yaml:1: wheels.size: unknown key. Did you mean 'sizes'? (known: sizes, place)"),
    ("speed: -1", "car.yaml:1: speed: expected a number or a schedule of at least 0, got -1"),
    ("speed: [[0, -1]]", "car.yaml:1: speed: expected a number or a schedule of at least 0, got [[0, -1]]"),
    ("speed: [1, 2]", "car.yaml:1: speed: expected a schedule [[step, value], ...], got the point 1"),
    ("speed: []", "car.yaml:1: speed: expected a schedule [[step, value], ...] of at least one point, got []"),
    ("label: forbidden", "car.yaml:1: label must not be forbidden."),
    ("wheels:\n  sizes: [1]\n\n  sizes: [2]", "car.yaml:4: wheels.sizes: given twice (first on line 2)."),
    ("# a comment", "car.yaml: is empty. A config has at least `name: <env>`."),
    ("wheels: {sizes: [1]\n", "car.yaml:1: the bracket '{' is not closed."),
    ("[1]: 2", "car.yaml:1: a key is one word."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), WRONG)
def test_one_line_says_where_and_what(text, line):
    assert errors(text) == [line]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("label: !!str 3", "a tag can run code"),
        ("label: &a x", "'&a' is not allowed"),
        ("a:\n" + "".join(" " * i + "a:\n" for i in range(1, 40)), "nested more than 32 deep"),
    ],
)
def test_what_could_harm_is_refused(text, why):
    (line,) = errors(text)
    assert line.startswith("car.yaml:")
    assert why in line


def test_all_mistakes_come_at_once_with_their_lines_and_twenty_are_enough():
    assert errors("num_seats: x\nweight: y\nwheels:\n  sizes: z\n") == [
        "car.yaml:1: num_seats: expected a whole number of at least 1, got 'x'",
        "car.yaml:2: weight: expected a number, got 'y'",
        "car.yaml:4: wheels.sizes: expected a list of whole numbers, got 'z'",
    ]
    lines = errors("\n".join(f"unknown_{i}: 1" for i in range(25)))
    assert len(lines) == 21
    assert lines[-1] == "... and 5 more"


def test_unknown_keys_are_helped_by_synonym_section_and_sentence():
    hints = Hints({"pace": "speed", "drivers": "num_drivers"}, {"fuel": "say how much."}, {"num_drivers": "team"})
    with pytest.raises(ConfigError) as caught:
        build(Car, {"pace": 1, "num_drivers": 2, "drivers": 3, "fuel": 1, "wieght": 1}, path="car", hints=hints)
    assert [line.partition(" (known")[0] for line in str(caught.value).splitlines()] == [
        "car.pace: unknown key. Did you mean 'speed'?",
        "car.num_drivers: unknown key. Did you mean 'team.num_drivers'?",
        "car.drivers: unknown key. Did you mean 'team.num_drivers'?",
        "car.fuel: say how much.",
        "car.wieght: unknown key. Did you mean 'weight'?",
    ]


def test_missing_key_is_named():
    with pytest.raises(ConfigError, match=r"^must: is missing\.$"):
        build(make_dataclass("Needs", [("must", int)], frozen=True), {})


def test_files_that_are_no_config_are_refused_and_a_missing_one_names_the_nearest(tmp_path):
    (tmp_path / "big.yaml").write_bytes(b"a" * (2**20 + 1))
    for name, why in (("big.yaml", "at most 1 MiB"), (".", "a folder"), ("bg.yaml", "file. Did you mean 'big.yaml'")):
        with pytest.raises(ConfigError, match=why):
            load_yaml(tmp_path / name)


def test_override_replaces_and_makes_sections_and_a_bad_one_is_refused():
    section = parse_yaml("num_seats: 2\n", "car.yaml")
    for path, text, why in (("num_seats.a", "1", "'num_seats' is 2, which holds no keys"),
                            ("wheels.sizes", "[1", "is not closed")):  # fmt: skip
        with pytest.raises(ConfigError, match=f"^command line: {path}: .*{why}"):
            override(section, path, text, "command line")
    override(section, "num_seats", "7", "command line")
    override(section, "wheels.sizes", "[9]", "command line")
    assert build(Car, section) == Car(num_seats=7, wheels=Wheels((9,)))
    override(section, "num_seats", "x", "command line")
    with pytest.raises(ConfigError, match="^command line: num_seats: expected a whole number"):
        build(Car, section)


def test_schedule_is_linear_between_points_and_constant_beyond():
    schedule = Schedule(((10, 1.0), (20, 3.0), (40, 0.0)))
    assert [value_at(schedule, step) for step in (0, 10, 15, 20, 30, 40, 99)] == [1.0, 1.0, 2.0, 3.0, 1.5, 0.0, 0.0]
    assert value_at(0.25, 99) == 0.25


def test_what_is_written_reads_back_as_it_was():
    value = {
        "texts": ["010", "1e-3", "yes", "12:30:45", "null", "true", "", "a: b", "#x"],
        "numbers": [1, 2.5e-7, 1e30, True, None],
        "car": Car(speed=Schedule(((0, 1.0), (5, 0.5)))),
    }
    read = parse_yaml(dump_yaml(value), "written.yaml")
    assert read["texts"] == value["texts"]
    assert read["numbers"] == value["numbers"]
    assert build(Car, read["car"]) == value["car"]


@dataclass(frozen=True)
class Field:
    side: Annotated[int, Between(1, 8)] = 4
    gates: tuple[int, ...] = (0, 3)
    wind: float = 0.5

    def problems(self):
        if any(gate >= self.side for gate in self.gates):
            yield "gates", f"a side has {self.side} places."


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (Field(), []),
        (Field(side=np.int64(8), wind=np.float32(2)), []),
        (Field(side=9, wind=1e39), [
            ("side", "expected a whole number from 1 to 8, got 9"),
            ("wind", "expected a number from -3.4e+38 to 3.4e+38, got 1e+39"),
        ]),
        (Field(side=3), [("gates", "a side has 3 places.")]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_envs_config_is_told_key_by_key(config, wrong):
    assert wrong_values(config) == wrong


def test_large_bounds_are_written_out():
    assert str(Between(-1e6, 2**32 - 1)) == " from -1,000,000 to 4,294,967,295"
    assert str(Between(0, 60, above=True)) == " above 0 and at most 60"
    assert str(Between(1e-6, 10_000)) == " from 1e-06 to 10000"
