"""Win rates that JaxMARL's MAPPO with a GRU reaches on SMAX, by its published settings: several seeds side by side.

python benchmarks/peers/smax_mappo.py --map 3m --seeds 5

128 envs, 128 steps an iteration, 10 M env steps, 4 epochs x 4 minibatches, Adam from 2e-3 down to 0, clip 0.2, gradient
norms of 0.25, no entropy bonus; actor and critic have a layer of 128, a GRU of 128 and another layer of 128 each, the
critic on the world state with the agent's number. Written from PPO's equations. An episode is won, as JaxMARL counts
it, if its last reward is 1 or more. A JSON line for every --a-call iterations: each seed's win rate over the last 16,
and the mean by iteration.
Needs jaxmarl 0.2.0, jax, flax and optax.
"""

import argparse
import sys
import time
from pathlib import Path

from json_lines import emit as emit_line

sys.path.remove(str(Path(__file__).resolve().parent))  # or jaxmarl would be the driver of that name

ap = argparse.ArgumentParser()
ap.add_argument("--map", default="3m")
ap.add_argument("--seeds", type=int, default=5)
ap.add_argument("--env-steps", type=float, default=1e7)
ap.add_argument("--num-envs", type=int, default=128)
ap.add_argument("--horizon", type=int, default=128)
ap.add_argument("--lr", type=float, default=2e-3)
ap.add_argument("--a-call", type=int, default=61, help="iterations of one compiled call")
args = ap.parse_args()

import flax.linen as nn  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from jaxmarl.environments.smax import HeuristicEnemySMAX, map_name_to_scenario  # noqa: E402

GAMMA, LAMBDA, CLIP, VF, MAX_NORM, EPOCHS, MINIBATCHES, WIDTH = 0.99, 0.95, 0.2, 0.5, 0.25, 4, 4, 128
N, T = args.num_envs, args.horizon
UPDATES = int(args.env_steps) // (N * T)
ENV = HeuristicEnemySMAX(
    scenario=map_name_to_scenario(args.map), see_enemy_actions=True, walls_cause_death=True, attack_mode="closest"
)
AGENTS = list(ENV.agents)
A = len(AGENTS)
NUM_ACTIONS = ENV.action_space(AGENTS[0]).n
ortho = nn.initializers.orthogonal


def stack(of_agents):
    return jnp.stack([of_agents[agent] for agent in AGENTS])


def rows(x):
    return x.reshape((-1, *x.shape[2:]))


class Forgetful(nn.Module):
    """A GRU over time that starts anew where an episode has begun."""

    @nn.compact
    def __call__(self, memory, x, fresh):
        def cell(gru, memory, now):
            return gru(jnp.where(now[1][:, None], 0.0, memory), now[0])

        scan = nn.scan(cell, variable_broadcast="params", split_rngs={"params": False})
        return scan(nn.GRUCell(WIDTH), memory, (x, fresh))


class Net(nn.Module):
    size: int
    gain: float

    @nn.compact
    def __call__(self, memory, x, fresh):
        x = nn.relu(nn.Dense(WIDTH, kernel_init=ortho(2**0.5))(x))
        memory, x = Forgetful()(memory, x, fresh)
        x = nn.relu(nn.Dense(WIDTH, kernel_init=ortho(2.0))(x))
        return memory, nn.Dense(self.size, kernel_init=ortho(self.gain))(x)


ACTOR, CRITIC = Net(NUM_ACTIONS, 0.01), Net(1, 1.0)
TX = optax.chain(
    optax.clip_by_global_norm(MAX_NORM),
    optax.adam(lambda step: args.lr * (1.0 - step // (EPOCHS * MINIBATCHES) / UPDATES), eps=1e-5),
)


def view(obs, state, fresh):
    """What both networks see of a step, a row an actor."""
    world = jnp.broadcast_to(obs["world_state"][None], (A, N, obs["world_state"].shape[-1]))
    number = jnp.broadcast_to(jnp.eye(A)[:, None], (A, N, A))
    may = stack(jax.vmap(ENV.get_avail_actions)(state))
    seen = {"obs": stack(obs), "world": jnp.concatenate([world, number], -1), "may": may}
    return {**{name: rows(x) for name, x in seen.items()}, "fresh": fresh}


def forward(params, memory, seen):
    actor, logits = ACTOR.apply(params["actor"], memory[0], seen["obs"], seen["fresh"])
    critic, value = CRITIC.apply(params["critic"], memory[1], seen["world"], seen["fresh"])
    return (actor, critic), jnp.where(seen["may"] > 0, logits, -1e10), value[..., 0]


def play(params, c, _):
    key, of_action, of_env = jax.random.split(c["key"], 3)
    seen = view(c["obs"], c["state"], c["fresh"])
    memory, logits, value = forward(params, c["memory"], jax.tree.map(lambda x: x[None], seen))
    action = jax.random.categorical(of_action, logits[0])
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits[0]), action[:, None], -1)[:, 0]
    chosen = {agent: action.reshape(A, N)[i] for i, agent in enumerate(AGENTS)}
    obs, state, reward, done, _ = jax.vmap(ENV.step)(jax.random.split(of_env, N), c["state"], chosen)
    over = done["__all__"]
    won = over & (reward[AGENTS[0]] >= 1.0)
    kept = {"action": action, "log_prob": log_prob, "value": value[0], "reward": rows(stack(reward))}
    c = {**c, "key": key, "obs": obs, "state": state, "memory": memory, "fresh": rows(stack(done))}
    return c, ({**seen, **kept, "over": jnp.tile(over, A)}, over.sum(), won.sum())


def advantages(kept, last):
    def back(later, now):
        advantage, value = later
        goes_on = 1.0 - now["over"]
        delta = now["reward"] + GAMMA * value * goes_on - now["value"]
        advantage = delta + GAMMA * LAMBDA * goes_on * advantage
        return (advantage, now["value"]), advantage

    start = (jnp.zeros_like(last), last)
    return jax.lax.scan(back, start, {name: kept[name] for name in ("reward", "over", "value")}, reverse=True)[1]


def loss(params, memory, kept):
    _, logits, value = forward(params, memory, kept)
    every = jax.nn.log_softmax(logits)
    ratio = jnp.exp(jnp.take_along_axis(every, kept["action"][..., None], -1)[..., 0] - kept["log_prob"])
    advantage = (kept["advantage"] - kept["advantage"].mean()) / (kept["advantage"].std() + 1e-8)
    policy = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    clipped = kept["value"] + jnp.clip(value - kept["value"], -CLIP, CLIP)
    errors = jnp.maximum((value - kept["target"]) ** 2, (clipped - kept["target"]) ** 2)
    return policy + VF * 0.5 * errors.mean()


def minibatch(learned, batch):
    params, optimiser = learned
    gradient = jax.grad(loss)(params, *batch)
    for name in params:
        change, state = TX.update(gradient[name], optimiser[name], params[name])
        params = {**params, name: optax.apply_updates(params[name], change)}
        optimiser = {**optimiser, name: state}
    return (params, optimiser), None


def update(carry, _):
    params, optimiser, c = carry
    start = c["memory"]
    c, (kept, ended, won) = jax.lax.scan(lambda c, x: play(params, c, x), c, None, length=T)
    last = forward(params, c["memory"], jax.tree.map(lambda x: x[None], view(c["obs"], c["state"], c["fresh"])))[2][0]
    kept["advantage"] = advantages(kept, last)
    kept["target"] = kept["advantage"] + kept["value"]
    del kept["reward"], kept["over"]

    def epoch(learned, key):
        order = jax.random.permutation(key, A * N)

        def cut(x, axis):
            x = jnp.take(x, order, axis)
            return jnp.moveaxis(x.reshape((*x.shape[:axis], MINIBATCHES, -1, *x.shape[axis + 1 :])), axis, 0)

        memories = jax.tree.map(lambda x: cut(x, 0), start)
        return jax.lax.scan(minibatch, learned, (memories, jax.tree.map(lambda x: cut(x, 1), kept)))

    key, of_epochs = jax.random.split(c["key"])
    (params, optimiser), _ = jax.lax.scan(epoch, (params, optimiser), jax.random.split(of_epochs, EPOCHS))
    return (params, optimiser, {**c, "key": key}), (ended.sum(), won.sum())


def init(seed):
    key, of_actor, of_critic, of_env = jax.random.split(jax.random.key(seed), 4)
    obs, state = jax.vmap(ENV.reset)(jax.random.split(of_env, N))
    memory, fresh = (jnp.zeros((A * N, WIDTH)), jnp.zeros((A * N, WIDTH))), jnp.zeros((A * N,), bool)
    seen = jax.tree.map(lambda x: x[None, :2], view(obs, state, fresh))
    params = {
        "actor": ACTOR.init(of_actor, memory[0][:2], seen["obs"], seen["fresh"]),
        "critic": CRITIC.init(of_critic, memory[1][:2], seen["world"], seen["fresh"]),
    }
    optimiser = {name: TX.init(params[name]) for name in params}
    return params, optimiser, {"key": key, "obs": obs, "state": state, "memory": memory, "fresh": fresh}


def main() -> None:
    carry = jax.jit(jax.vmap(init))(jnp.arange(args.seeds))
    several = jax.jit(jax.vmap(lambda carry: jax.lax.scan(update, carry, None, length=args.a_call)), donate_argnums=0)
    start = time.perf_counter()
    several = several.lower(carry).compile()
    compiling = time.perf_counter() - start
    ended, won = jnp.zeros((args.seeds, 0), int), jnp.zeros((args.seeds, 0), int)
    for _ in range(UPDATES // args.a_call):
        carry, (of_ended, of_won) = several(carry)
        ended, won = jnp.concatenate([ended, of_ended], 1), jnp.concatenate([won, of_won], 1)
        last = won[:, -16:].sum(1) / jnp.maximum(ended[:, -16:].sum(1), 1)
        by_iteration = won.sum(0) / jnp.maximum(ended.sum(0), 1)
        emit_line(
            what="won", map=args.map, seeds=args.seeds, env_steps=won.shape[1] * N * T,
            won=[round(float(x), 4) for x in last], curve=[round(float(x), 3) for x in by_iteration[::10]],
            compile_s=round(compiling, 1), wall_s=round(time.perf_counter() - start - compiling, 1),
            device=jax.devices()[0].device_kind, jax=jax.__version__,
        )  # fmt: skip


if __name__ == "__main__":
    main()
