"""What a terminal shows of a run."""

import contextlib
import io
import sys

import pytest
from rich.console import Console

from trainers.report.display import LiveDisplay
from trainers.trainer import Trainer
from warpdrive.errors import printable

METRICS = {
    "time/total_timesteps": 620_000, "time/fps": 245_000.4, "time/agent_steps_per_s": 1_225_002.0,
    "rollout/tagger/ep_rew_mean": 5.25, "rollout/runner/ep_rew_mean": -1.5, "rollout/ep_len_mean": 23.5,
    "perf/env_ms": 2.0, "perf/policy_ms": 3.0, "perf/learn_ms": 4.0, "perf/log_ms": 1.0, "health/nonfinite": 0.0,
    "health/invalid_actions": 0.0, "health/gpu_mem_mb": 812.0,
}  # fmt: skip
GROUPS = ["tagger", "runner"]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(width: int = 100, height: int = 30, **options: object) -> Console:
    return Console(file=Screen(), force_terminal=True, width=width, height=height, **options)


def display_on(console: Console) -> LiveDisplay:
    return LiveDisplay(console, "tag_gridworld  A2C", train_batch_size=10_000, num_iterations=100)


def picture(display: LiveDisplay, width: int = 100, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding)
    console = Console(file=file, width=width)
    console.print(display)
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()


def test_it_shows_all_that_a_report_says():
    display = display_on(terminal())
    display.advance(62)
    display.report(METRICS, GROUPS)
    display.report({**METRICS, "rollout/tagger/ep_rew_mean": 5.5, "rollout/runner/ep_rew_mean": -2.0}, GROUPS)
    display.saved("step_000000620000")
    title, bar, progress, *rows = (line.rstrip() for line in picture(display))
    assert title == "tag_gridworld  A2C"
    assert set(bar) <= set("━╸╺ ")
    assert progress.startswith("progress    62%  620,000 of 1,000,000 env steps  0:00:00 gone  0:00:0")
    assert rows == [
        "speed       245,000 env steps/s  1,225,002 agent steps/s",
        "return          +5.500  ↑  tagger",
        "                -2.000  ↓  runner",
        "length            23.5  steps",
        "time        env 20%  policy 30%  learn 40%  log 10%  of 10.0 ms an iteration",
        "memory      812 MiB on the GPU at most",
        "health      nonfinite 0  invalid actions 0",
        "checkpoint  step_000000620000  0:00:00 ago",
    ]


def test_before_the_first_report_it_shows_how_far_it_is_and_what_is_not_known_yet_is_left_out():
    display = display_on(terminal())
    display.advance(1)
    lines = picture(display)
    assert len(lines) == 4
    assert lines[2].startswith("progress    1%  10,000 of 1,000,000")
    assert lines[3].startswith("checkpoint  none yet")
    metrics = {name: value for name, value in METRICS.items() if not name.startswith("rollout")}
    display.report({**metrics, "perf/env_ms": float("nan"), "perf/policy_ms": float("nan")}, GROUPS)
    lines = "\n".join(picture(display))
    assert "return" not in lines
    assert "time        learn 80%  log 20%" in lines


@pytest.mark.parametrize(
    ("value", "encoding", "shown"), [(5.26, "utf-8", "→  tagger"), (6.0, "ascii", "+6.000  +  tagger")]
)
def test_a_return_that_hardly_moved_has_no_direction_and_a_terminal_of_ascii_gets_ascii(value, encoding, shown):
    display = display_on(terminal())
    display.report(METRICS, GROUPS)
    display.report({**METRICS, "rollout/tagger/ep_rew_mean": value}, GROUPS)
    assert shown in "\n".join(picture(display, encoding=encoding))


@pytest.mark.parametrize("width", [20, 40, 57, 60, 100, 250])
def test_no_line_is_wider_than_the_terminal_and_numbers_stay_whole(width):
    display = display_on(terminal())
    display.advance(62)
    display.report({**METRICS, "eval/mean_reward": 1.25}, GROUPS)
    lines = picture(display, width)
    assert max(len(line) for line in lines) <= width
    if width >= 40:
        whole = "\n".join(lines)
        short = width < 60
        for words in ("env steps/s", "agent steps/s", "learn 40%", "invalid actions 0", "620k" if short else "620,000"):
            assert words in whole


def test_a_narrow_terminal_has_units_beyond_10_to_the_12():
    display = LiveDisplay(terminal(), "cartpole", train_batch_size=2 * 10**10, num_iterations=100)
    display.advance(62)
    assert "1.2T of 2.0T env steps" in "\n".join(picture(display, 40))


def test_neither_a_name_nor_a_line_that_is_said_can_command_the_terminal(tiny, capsys):
    name = "a\x1b[2J\x07b"
    display = LiveDisplay(terminal(), name, 1, 1)
    display.report({**METRICS, f"rollout/{name}/ep_rew_mean": 1.0}, [name])
    lines = picture(display)
    assert lines[0].rstrip() == r"a\x1b[2J\x07b"
    assert not any("\x1b" in line or "\x07" in line for line in lines)
    trainer = Trainer(tiny())
    trainer.run.say("a\x1b]0;title\x07 b\tc\r\x9b2J")
    assert capsys.readouterr().out.splitlines()[-1] == "a\\x1b]0;title\\x07 b\tc\\r\\x9b2J"
    assert printable("pages of \u00e9 \u65e5\u672c") == "pages of \u00e9 \u65e5\u672c"


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_the_last_state_stays_and_the_cursor_is_there_all_the_time(error):
    """A process that is killed cannot bring it back."""
    console = terminal()
    display = display_on(console)
    with contextlib.suppress(KeyboardInterrupt, RuntimeError), display:
        assert is_cursor_shown(console)
        display.advance(7)
        if error is not None:
            raise error
    assert "none yet" in console.file.getvalue().rpartition("progress")[2]
    assert is_cursor_shown(console) and sys.stdout is not console.file


def is_cursor_shown(console: Console) -> bool:
    written = console.file.getvalue()
    return written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")


def test_what_others_print_stands_above_it(monkeypatch):
    console = terminal(no_color=True)
    monkeypatch.setattr(sys, "stdout", console.file)
    monkeypatch.setattr(sys, "stderr", console.file)
    display = display_on(console)
    with display:
        print("a line from elsewhere")
        print("mind the gap", file=sys.stderr)  # as warnings do
        console.print("a line of the run")
        display._live.refresh()
    written = console.file.getvalue()
    for words in ("a line from elsewhere", "mind the gap", "a line of the run"):
        before, _, after = written.partition(words)
        assert "\x1b[1A" in before.rpartition("tag_gridworld")[2] or "\x1b[2K" in before, "the picture was taken away"
        assert "tag_gridworld  A2C" in after, "and drawn anew below"


def test_it_is_drawn_after_a_resize():
    console = terminal(100)
    display = display_on(console)
    with display:
        console.width = 30
        display._live.refresh()
        console.width = 120
        display._live.refresh()
    assert console.file.getvalue().count("tag_gridworld") >= 3


@pytest.mark.parametrize(
    ("variables", "is_terminal", "fits"),
    [
        ({"TERM": "xterm-256color"}, True, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm-256color"}, False, False),
        ({"TERM": "xterm-256color", "FORCE_COLOR": "1"}, False, False),
    ],
)
def test_it_needs_a_terminal_whose_cursor_moves(variables, is_terminal, fits):
    file = Screen() if is_terminal else io.StringIO()
    assert LiveDisplay.fits(Console(file=file, _environ=variables)) == fits


def test_no_color_means_no_colour():
    console = Console(file=Screen(), width=100, height=30, _environ={"TERM": "xterm-256color", "NO_COLOR": "1"})
    display = display_on(console)
    with display:
        display.report({**METRICS, "health/nonfinite": 1.0}, GROUPS)
        display._live.refresh()
    codes = {code for part in console.file.getvalue().split("\x1b[")[1:] for code in part.partition("m")[0].split(";")}
    assert not any(code.isdigit() and 30 <= int(code) <= 107 for code in codes)


def test_a_run_on_a_terminal_shows_it_and_keeps_its_lines_in_the_log(tiny):
    trainer = Trainer(tiny(saving__model_params_save_freq=1))
    trainer.run.console = terminal()
    trainer.train()
    shown = trainer.run.console.file.getvalue()
    for words in ("100%", "env steps/s", "tagger", "step_000000000180", "mean return of tagger: "):
        assert words in shown
    assert "env steps          180" not in shown, "the plain lines are in the log alone"
    log = (trainer.run.path / "log.txt").read_text()
    assert log.count("env steps ") >= 3
    assert "env steps          180" in log
