"""Bugs that kernels have are found by `check_env`, or by a sanitizer, and named by their line where it can be known.

Of the kinds that debug mode finds in any kernel (test_cpu_debug.py) these are where an env differs: in its reset, in
what it includes, among its envs, late in an episode.
"""

from dataclasses import dataclass

import pytest
from planted_env import line_of_mistake, planted

from warpdrive.errors import BackendError, WarpDriveError
from warpdrive.testing import Play, check_env, check_sanitizers, processes

TIMED = "    const int time = time_step[env] + 1;\n"
PAID = "        reward[i] = 1.0f;\n"
COUNTED = "        count[i] = time;\n"
SEEN = "        see(observation, 2 * i, place[i]);\n"
NEIGHBOUR = "        observation[2 * i + 1] = moved[(agent + 1) % NUM_AGENTS];\n"
OWN = "        observation[2 * i + 1] = moved[agent];\n"  # of which a missing barrier leaves the time alone to race
WRITTEN = "    observation[i] = value;\n"  # in the function that is included
SYNC = "    env_sync();  // everyone has read the time, and has moved\n"
COUNT_RESET = "        count[i] = 0;\n"
AN_ENV = "count[env * NUM_AGENTS]"


@dataclass(frozen=True)
class Bug:
    """`words` are of the message; a line marked HERE must be in it, too."""

    mistakes: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    episode_length: int = 10
    tool: str = "kit"


def bug(old: str, new: str, *words: str, **how: object) -> Bug:
    return Bug(((old, new),), words, **how)


BUGS = {
    # memory
    "write out of range, in a function that is included": bug(WRITTEN, "    observation[i - 7] = value;  // HERE\n",
        "index -1 is out of range of 'observation', which has 42 el"),
    "write out of range in a reset": bug(COUNT_RESET, "        count[i + 100] = 0;  // HERE\n", "'restart_ended'",
                                         "out of range of 'count', which has 21"),
    # the order of threads
    "race in a function that is included, called by a reset": Bug(
        ((COUNT_RESET, "        see(observation, 2 * env * NUM_AGENTS, 0.1f * agent);\n"),
         (WRITTEN, f"{WRITTEN[:-1]}  // HERE\n")),
        ("'restart_ended'", "race: this thread and ", "'observation'[0, 0, 0] (env 0)"),
    ),
    "race with another env": bug(NEIGHBOUR,
        "        observation[2 * i + 1] = place[(i + NUM_AGENTS) % (NUM_ENVS * NUM_AGENTS)];  // HERE\n",
        "race: this thread reads 'place'"),
    "race near the end of a long episode": bug(COUNTED, f"        if (time > 480) {AN_ENV} = agent;  // HERE\n",
                                               "race: this thread and", episode_length=500),
    "lost += beside an atomic": bug(COUNTED,
        f"        atomicAdd(&{AN_ENV}, 1);\n        count[env * NUM_AGENTS + 1] += 1;  // HERE\n", "lost update"),
    "lost += beside a fence": bug(COUNTED, f"        {AN_ENV} += 1;  // HERE\n        __threadfence();\n", "data race",
                                  tool="thread"),
    # what debug mode may not see, or is not asked for
    "write out of range, under a sanitizer": bug(PAID, "        reward[i + NUM_ENVS * NUM_AGENTS] = 1.0f;  // HERE\n",
                                                 "heap-buffer-overflow", tool="address"),
    "overflow of an int": bug(COUNTED, "        count[i] = 2147483647 + time;  // HERE\n", "signed integer overflow",
                              tool="undefined"),
    "missing barrier": Bug(((SYNC, ""), (TIMED, f"{TIMED[:-1]}  // HERE\n"), (NEIGHBOUR, OWN)), ("data race",),
                           tool="thread"),
    # what agents see and get
    "NaN that is seen": bug(WRITTEN, "    observation[i] = sqrtf(value - 0.2f);  // HERE\n",
        "'observation' of group 'walker' is nan (step 0, env 0, agent 1, feature [0]), which is in no space"),
    "observation outside its space": bug(NEIGHBOUR,
        "        observation[2 * i + 1] = time == 7 && agent == 2 ? 1.5f : 0.0f;  // HERE\n",
        "is 1.5 (step 7, env 0, agent 2, feature [1]), outside its space [0.0, 1.0], written at "),
    "reward that is no number": bug(PAID, "        reward[i] = 1.0f / (time - 3 + agent);  // HERE\n",
                                    "the reward is inf (step 1, env 0, agent 2), which is not finite, written at "),
    "feature that only a reset writes": bug(NEIGHBOUR, "",
                                            "in step 1 'observation' of env 0, agent 0, feature [1] is left unwritten",
                                            "Write it in every step."),
    "reward that adds to what was there": bug(PAID, "        reward[i] += 1.0f;\n",
                                              "in step 1 'reward' of env 0, agent 0 is left unwritten"),
    "end that is never taken back": bug("        truncated[env] = time >= 10;\n",
                                        "        if (time >= 10) truncated[env] = true;\n",
                                        "in step 1 'truncated' of env 0"),
    "both ends at once": bug("terminated[env] = false", "terminated[env] = time >= 10",
                             "both terminated and truncated in st"),
    "end before the time that is declared": bug("time >= 10", "time >= 4",
                                                "truncated after 4 steps, but episode_length is 10"),
    # what an env depends on
    "number of threads": bug(PAID, "        reward[i] = 1.0f / THREADS_PER_ENV;\n", "threads an env and 1 envs a block",
                             "array 'reward'"),
    "number of envs": bug("Random(seed, env,", "Random(seed, NUM_ENVS + env,", "7 envs against 70", "array 'place'"),
    "reset of an env that goes on": bug("!(terminated[env] || truncated[env])", "false",
                                        "the reset wrote 'place' of env 1, which had not ended"),
    "state that a reset forgets, from step 45 on": Bug(
        ((COUNTED, "        if (time > 45) count[i] = time;\n"), (COUNT_RESET, "")),
        ("after a reset in step ", "'count' of env 0 still shows"),
        episode_length=200,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_it_is_found_and_named_by_its_line(device, tmp_path, monkeypatch, name):
    planted_bug = BUGS[name]
    length = planted_bug.episode_length
    mistakes = [*planted_bug.mistakes, *([("time >= 10", f"time >= {length}")] if length != 10 else [])]
    env = planted(tmp_path, *mistakes, episode_length=length)
    with pytest.raises(WarpDriveError) as caught:
        if planted_bug.tool == "kit":
            check_env(env, device)
        else:
            monkeypatch.setattr(processes, "SANITIZERS", (planted_bug.tool,))
            try:
                check_sanitizers(env, Play(num_steps=10))
            except BackendError as error:
                pytest.skip(str(error))
    message = str(caught.value)
    assert [words for words in (*planted_bug.words, line_of_mistake(tmp_path)) if words not in message] == [], message
