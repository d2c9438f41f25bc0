"""Configs that were damaged at random: what is wrong is told by ConfigError, or nothing is; and a test that
hangs is ended by its timeout.

WARPDRIVE_NUM_FUZZED_CONFIGS=10000 makes more of them than a test run does, anew each time.
"""

import os
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainers.settings.read_config import read_config
from warpdrive.config import MAX_ERRORS
from warpdrive.errors import ConfigError

ROOT = Path(__file__).parents[2]
EXAMPLES = [path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))]
assert len(EXAMPLES) >= 10, "they are what is damaged"
NUM_CONFIGS = int(os.environ.get("WARPDRIVE_NUM_FUZZED_CONFIGS", 300))
HOWS = ("drop", "repeat", "indent", "dedent", "rename", "value", "cut", "letter")
SCALARS = [
    "", "~", "null", "yes", "on", "TRUE", "False", "'False'", "0", "-0", "-1", "+5", "1_000", "1__0", "010",
    "0x10", "0o17", "0b1", ".5", "5.", "1e3", "1e-3", "1e400", "-1e400", "1e-400", ".inf", "-.INF", ".nan",
    "NaN", "9" * 30, "9" * 1200, "1e18", "4611686018427387904", "9223372036854775807", "9223372036854775808",
    "12:30:45", "2026-11-21", "1,000", "\u0661", "\uff15", "\u2028", "\ufeff", "\x7f", "\x85", "\0", "\ud800",
    "\U0001f600", "'", '"', '"\\e[31m"', '"\\0"', "a: b", "- a", "[", "]", "{", "}", "[1, 2]",
    "[[0, 1], [0, 2]]", "[[5, 1], [2, 1]]", "[[]]", "[[1, .nan]]", "{a: 1}", "{low: 1}", "{points: [[0, 1]]}",
    "!!python/name:os.system", "!x", "&a 1", "*a", "<<", "|", ">", "|2\n  x", "%A", "@x", "`x`", "? x", "...",
    "---", "#", "cuda:99999999999999999999", "os:system", "../../x:Y", "PPO", "MAPPO", "gru", "mlp", "shared",
    "cartpole", "tag_continuous", "name", "env", "[" * 40, "x" * 5000,
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An example with some of its lines or bytes changed."""
    lines = draw(st.sampled_from(EXAMPLES)).splitlines()
    for _ in range(draw(st.integers(1, 6))):
        if not lines:
            break
        i = draw(st.integers(0, len(lines) - 1))
        j = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(HOWS))
        key, colon, value = lines[i].partition(":")
        if how == "drop":
            del lines[i]
        elif how == "repeat":
            lines.insert(j, lines[i])
        elif how == "indent":
            lines[i] = draw(st.sampled_from([" ", "  ", "    ", "\t"])) + lines[i]
        elif how == "dedent":
            lines[i] = lines[i][draw(st.integers(1, 3)) :]
        elif how == "rename":
            other = lines[j].partition(":")[0].strip() or "x"
            words = [other, "lr", "num_envs", key.strip() + "s", key.strip()[:-1], "learning_rate"]
            lines[i] = key[: len(key) - len(key.lstrip())] + draw(st.sampled_from(words)) + colon + value
        elif how == "value":
            lines[i] = f"{key}: {draw(st.sampled_from(SCALARS))}"
        elif how == "cut":
            lines[i] = lines[i][: draw(st.integers(0, len(lines[i])))]
        else:
            at = draw(st.integers(0, len(lines[i])))
            lines[i] = lines[i][:at] + draw(st.characters()) + lines[i][at + 1 :]
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    content = end.join(lines).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 3)) == 0:  # bytes from anywhere, somewhere
        at = draw(st.integers(0, len(content)))
        content = content[:at] + draw(st.binary(max_size=8)) + content[at + draw(st.integers(0, 8)) :]
    if draw(st.integers(0, 9)) == 0:
        content = content[: draw(st.integers(0, len(content)))]
    return content


@settings(
    max_examples=NUM_CONFIGS, derandomize="WARPDRIVE_NUM_FUZZED_CONFIGS" not in os.environ, database=None,
    deadline=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(content=damaged())
def test_damaged_config_is_read_or_told_in_lines(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(content)
    try:
        read_config(path, allow_import=False)
    except ConfigError as error:
        lines = str(error).splitlines()
        assert 1 <= len(lines) <= MAX_ERRORS + 1
        assert all(line.isprintable() for line in lines)
        assert all(line.startswith((str(path), "... and ")) for line in lines)
