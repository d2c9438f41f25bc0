"""Throughput of JaxMARL's simple_tag: a peer whose whole training loop is one compiled program.

python benchmarks/peers/jaxmarl.py --mode rollout,train --adversaries 4 --hidden 256,256 --num-envs 2000 --horizon 32 \\
    --updates 20
python benchmarks/peers/jaxmarl.py --mode env --num-envs 1024,4096,16384,65536

    env      random actions, vmapped env.step with its own reset, in one jitted scan
    env_py   the same step, called from Python one by one
    rollout  env, policy and sampling, without learning
    train    the whole of IPPO: rollout, GAE, epochs x minibatches of PPO with Adam and clipped gradients, one scan

One JSON line a measurement, median of --repeat; compiling and a first call are apart. All agents share one network, as
in JaxMARL's own baseline (which cannot run simple_tag, whose observations differ in size: here they are padded); actor
and critic have an MLP each. Written from PPO's equations. Needs jaxmarl 0.2.0, jax, flax and optax.
"""

import argparse
import contextlib
import functools
import os
import statistics
import sys
import time
from pathlib import Path

from json_lines import emit as emit_line
from json_lines import write_lines

ap = argparse.ArgumentParser()
ap.add_argument("--mode", default="env,env_py,rollout,train")
ap.add_argument("--num-envs", default="1024,4096,16384,65536")
ap.add_argument("--train-envs", default="", help="defaults to --num-envs")
ap.add_argument("--adversaries", type=int, default=3)
ap.add_argument("--good", type=int, default=1)
ap.add_argument("--landmarks", type=int, default=2)
ap.add_argument("--env-steps", type=int, default=1000, help="scan length, env mode")
ap.add_argument("--horizon", type=int, default=32, help="rollout length, train mode")
ap.add_argument("--updates", type=int, default=20, help="PPO iterations per timed call")
ap.add_argument("--epochs", type=int, default=4)
ap.add_argument("--minibatches", type=int, default=4)
ap.add_argument("--hidden", default="64,64")
ap.add_argument("--activation", default="tanh", choices=["tanh", "relu"])
ap.add_argument(
    "--separate",
    type=int,
    default=1,
    help="1: actor and critic each have their own MLP (JaxMARL); 0: one trunk, two heads",
)
ap.add_argument("--lr", type=float, default=2.5e-4)
ap.add_argument("--seeds", type=int, default=1, help="independent runs vmapped together (train mode)")
ap.add_argument("--repeat", type=int, default=5)
ap.add_argument(
    "--matmul-precision",
    default="default",
    choices=["default", "tensorfloat32", "highest", "bfloat16"],
    help="default means TF32 for float32 dots on an NVIDIA GPU",
)
ap.add_argument("--prng", default="threefry2x32", choices=["threefry2x32", "rbg", "unsafe_rbg"])
ap.add_argument("--budget-s", type=float, default=540.0, help="start no new measurement after this")
ap.add_argument("--out", help="folder of peer_jaxmarl.json, with all lines")
args = ap.parse_args()

os.environ.setdefault("MPLBACKEND", "Agg")
T_START = time.time()

import jax  # noqa: E402

jax.config.update("jax_default_prng_impl", args.prng)
if args.matmul_precision != "default":
    jax.config.update("jax_default_matmul_precision", args.matmul_precision)
import flax  # noqa: E402
import flax.linen as nn  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax_calls import compile_and_warm, own, timed  # noqa: E402

# This file is called as the package that it imports: its folder must not be where packages are looked for.
sys.path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]

# jaxmarl prints while it looks for optional modules: that goes to stderr, by descriptor, as stdout is for JSON alone.
sys.stdout.flush()
_fd = os.dup(1)
os.dup2(2, 1)
import jaxmarl  # noqa: E402

sys.stdout.flush()
os.dup2(_fd, 1)
os.close(_fd)

DEV = jax.devices()[0]


def emit(**kw):
    kw.setdefault("framework", "jaxmarl")
    kw.setdefault("framework_version", getattr(jaxmarl, "__version__", "?"))
    kw.setdefault("jax", jax.__version__)
    kw.setdefault("device", f"{DEV.platform}:{DEV.device_kind}")
    kw.setdefault("matmul_precision", args.matmul_precision)
    kw.setdefault("prng", args.prng)
    emit_line(**kw)


def make_env():
    return jaxmarl.make(
        "MPE_simple_tag_v3", num_good_agents=args.good, num_adversaries=args.adversaries, num_obs=args.landmarks
    )


ENV = make_env()
AGENTS = list(ENV.agents)
A = len(AGENTS)
OBS_DIMS = {a: ENV.observation_space(a).shape[0] for a in AGENTS}
# the declared shape is fixed at 16/14 whatever the counts are: ask an observation
_o, _ = ENV.reset(jax.random.key(0))
OBS_DIMS = {a: int(_o[a].shape[-1]) for a in AGENTS}
OBS = max(OBS_DIMS.values())
NACT = ENV.action_space(AGENTS[0]).n


def stack_obs(obs):  # dict of (N, d_a) -> (A, N, OBS), zero-padded
    return jnp.stack([jnp.pad(obs[a], ((0, 0), (0, OBS - obs[a].shape[-1]))) for a in AGENTS])


def to_dict(act):  # (A, N) -> dict
    return {a: act[i] for i, a in enumerate(AGENTS)}


def report(what, n, steps_per_call, ts, t_compile, **extra):
    med = statistics.median(ts)
    emit(
        what=what,
        env="MPE_simple_tag_v3",
        num_envs=n,
        num_agents=A,
        obs_dim=OBS,
        steps_per_call=steps_per_call,
        repeats=len(ts),
        call_s_median=med,
        call_s_min=min(ts),
        call_s_max=max(ts),
        env_steps_per_s=n * steps_per_call / med,
        agent_steps_per_s=n * A * steps_per_call / med,
        compile_s=round(t_compile, 3),
        **extra,
    )


# ------------------------------------------------------------------- env only
def bench_env(n):
    T = args.env_steps

    def one_step(carry, _):
        key, state, _obs, ret = carry
        key, ka, ks = jax.random.split(key, 3)
        act = jax.random.randint(ka, (A, n), 0, NACT)
        obs, state, rew, _done, _info = jax.vmap(ENV.step)(jax.random.split(ks, n), state, to_dict(act))
        ret = ret + jnp.stack([rew[a] for a in AGENTS])
        # obs stays in the carry: every observation of every step is written out
        return (key, state, obs, ret), None

    def run(carry):
        return jax.lax.scan(one_step, carry, None, length=T)[0]

    def init():
        key = jax.random.key(0)
        obs, state = jax.jit(jax.vmap(ENV.reset))(jax.random.split(key, n))
        return (key, state, obs, jnp.zeros((A, n)))

    fn, carry, tc = compile_and_warm(run, init())
    carry, ts = timed(fn, carry, args.repeat)
    assert bool(jnp.isfinite(carry[3]).all())
    report("env", n, T, ts, tc)


def bench_env_py(n):
    T = min(args.env_steps, 200)

    @functools.partial(jax.jit, donate_argnums=0)
    def one_step(carry):
        key, state, _obs, ret = carry
        key, ka, ks = jax.random.split(key, 3)
        act = jax.random.randint(ka, (A, n), 0, NACT)
        obs, state, rew, _done, _info = jax.vmap(ENV.step)(jax.random.split(ks, n), state, to_dict(act))
        return (key, state, obs, ret + jnp.stack([rew[a] for a in AGENTS]))

    key = jax.random.key(0)
    obs, state = jax.jit(jax.vmap(ENV.reset))(jax.random.split(key, n))
    carry = own((key, state, obs, jnp.zeros((A, n))))
    t0 = time.perf_counter()
    carry = jax.block_until_ready(one_step(carry))
    tc = time.perf_counter() - t0

    def loop(c):
        for _ in range(T):
            c = one_step(c)
        return c

    carry, ts = timed(loop, carry, max(2, args.repeat // 2))
    report("env_py", n, T, ts, tc)


# -------------------------------------------------------------------- policy
HID = tuple(int(h) for h in args.hidden.split(","))
ACT = nn.tanh if args.activation == "tanh" else nn.relu


def mlp(x, sizes):
    for h in sizes:
        x = ACT(nn.Dense(h, kernel_init=nn.initializers.orthogonal(float(np.sqrt(2))))(x))
    return x


class ActorCritic(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = mlp(x, HID)
        logits = nn.Dense(NACT, kernel_init=nn.initializers.orthogonal(0.01))(h)
        hv = mlp(x, HID) if args.separate else h
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(hv)
        return logits, value[..., 0]


NET = ActorCritic()


def log_prob(logits, act):
    lp = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(lp, act[..., None], axis=-1)[..., 0], lp


def rollout_step(params, carry, n):
    key, state, x, epret, done_ret, done_cnt = carry
    key, ka, ks = jax.random.split(key, 3)
    logits, value = NET.apply(params, x)
    act = jax.random.categorical(ka, logits)  # (A, n)
    lp, _ = log_prob(logits, act)
    obs, state, rew, done, _info = jax.vmap(ENV.step)(jax.random.split(ks, n), state, to_dict(act))
    r = jnp.stack([rew[a] for a in AGENTS])
    d = jnp.broadcast_to(done["__all__"], (A, n)).astype(jnp.float32)
    epret = epret + r
    done_ret = done_ret + (epret * d).sum(1)  # per agent
    done_cnt = done_cnt + d[0].sum()
    epret = epret * (1 - d)
    x2 = stack_obs(obs)
    tr = dict(obs=x, act=act, lp=lp, val=value, rew=r, done=d)
    return (key, state, x2, epret, done_ret, done_cnt), tr


def init_roll(key, n):
    key, k0 = jax.random.split(key)
    obs, state = jax.vmap(ENV.reset)(jax.random.split(k0, n))
    return (key, state, stack_obs(obs), jnp.zeros((A, n)), jnp.zeros((A,)), jnp.zeros(()))


def bench_rollout(n):
    T = args.horizon

    def run(carry):
        params, roll, _acc = carry
        roll, tr = jax.lax.scan(lambda c, _: rollout_step(params, c, n), roll, None, length=T)
        # the trajectory is a real output, as a trainer would need it
        return params, roll, tr

    params = NET.init(jax.random.key(1), jnp.zeros((1, OBS)))
    roll = jax.jit(lambda k: init_roll(k, n))(jax.random.key(0))
    zero = dict(
        obs=jnp.zeros((T, A, n, OBS)),
        act=jnp.zeros((T, A, n), jnp.int32),
        lp=jnp.zeros((T, A, n)),
        val=jnp.zeros((T, A, n)),
        rew=jnp.zeros((T, A, n)),
        done=jnp.zeros((T, A, n)),
    )
    fn, carry, tc = compile_and_warm(run, (params, roll, zero))
    k = max(1, args.env_steps // T)

    def many(c):
        for _ in range(k):
            c = fn(c)
        return c

    carry, ts = timed(many, carry, args.repeat)
    report("rollout", n, k * T, ts, tc, hidden=args.hidden, horizon=T)


# --------------------------------------------------------------------- train
GAMMA, LAM, CLIP, ENT, VF, MAXG = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5


def make_update(n, tx):
    T = args.horizon
    B = T * A * n
    assert B % args.minibatches == 0, "horizon*agents*envs must divide by minibatches"

    def gae(tr, last_v):
        def back(carry, x):
            adv, nv = carry
            d, v, r = x
            delta = r + GAMMA * nv * (1 - d) - v
            adv = delta + GAMMA * LAM * (1 - d) * adv
            return (adv, v), adv

        _, adv = jax.lax.scan(
            back, (jnp.zeros_like(last_v), last_v), (tr["done"], tr["val"], tr["rew"]), reverse=True, unroll=8
        )
        return adv, adv + tr["val"]

    def loss(params, mb):
        logits, v = NET.apply(params, mb["obs"])
        lp, all_lp = log_prob(logits, mb["act"])
        ratio = jnp.exp(lp - mb["lp"])
        adv = (mb["adv"] - mb["adv"].mean()) / (mb["adv"].std() + 1e-8)
        pg = -jnp.minimum(ratio * adv, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * adv).mean()
        vc = mb["val"] + jnp.clip(v - mb["val"], -CLIP, CLIP)
        vl = 0.5 * jnp.maximum((v - mb["ret"]) ** 2, (vc - mb["ret"]) ** 2).mean()
        ent = -(jnp.exp(all_lp) * all_lp).sum(-1).mean()
        return pg + VF * vl - ENT * ent, (pg, vl, ent)

    def minibatch(c, mb):
        params, opt = c
        (_, aux), g = jax.value_and_grad(loss, has_aux=True)(params, mb)
        up, opt = tx.update(g, opt, params)
        return (optax.apply_updates(params, up), opt), jnp.stack(aux)

    def update(carry, _):
        params, opt, roll = carry
        roll, tr = jax.lax.scan(lambda c, _: rollout_step(params, c, n), roll, None, length=T)
        _, last_v = NET.apply(params, roll[2])
        adv, ret = gae(tr, last_v)
        flat = dict(
            obs=tr["obs"].reshape(B, OBS),
            act=tr["act"].reshape(B),
            lp=tr["lp"].reshape(B),
            val=tr["val"].reshape(B),
            adv=adv.reshape(B),
            ret=ret.reshape(B),
        )

        def epoch(c, key):
            perm = jax.random.permutation(key, B)
            mbs = jax.tree.map(lambda x: x[perm].reshape((args.minibatches, -1) + x.shape[1:]), flat)
            return jax.lax.scan(minibatch, c, mbs)

        key, ke = jax.random.split(roll[0])
        roll = (key,) + roll[1:]
        (params, opt), aux = jax.lax.scan(epoch, (params, opt), jax.random.split(ke, args.epochs))
        # mean episode return of this update, per agent, then start counting anew
        er = jnp.where(roll[5] > 0, roll[4] / jnp.maximum(roll[5], 1.0), jnp.nan)
        roll = roll[:4] + (jnp.zeros((A,)), jnp.zeros(()))
        return (params, opt, roll), (er, aux.mean((0, 1)))

    return update


def bench_train(n):
    tx = optax.chain(optax.clip_by_global_norm(MAXG), optax.adam(args.lr, eps=1e-5))
    update = make_update(n, tx)

    def init_one(key):
        kp, kr = jax.random.split(key)
        params = NET.init(kp, jnp.zeros((1, OBS)))
        return params, tx.init(params), init_roll(kr, n)

    def run_one(c):
        return jax.lax.scan(update, c, None, length=args.updates)

    if args.seeds == 1:
        init, run = init_one, run_one
        key = jax.random.key(0)
    else:
        init, run = jax.vmap(init_one), jax.vmap(run_one)
        key = jax.random.split(jax.random.key(0), args.seeds)
    state = own(jax.jit(init)(key))
    nparam = sum(x.size for x in jax.tree.leaves(state[0])) // args.seeds
    t0 = time.perf_counter()
    comp = jax.jit(run, donate_argnums=0).lower(state).compile()
    tc = time.perf_counter() - t0
    state, (er, aux) = comp(state)
    jax.block_until_ready(state)
    hist = [np.asarray(er).reshape(-1, args.updates, A).mean(0)]
    ts = []
    for _ in range(args.repeat):
        t0 = time.perf_counter()
        state, (er, aux) = comp(state)
        jax.block_until_ready((state, er))
        ts.append(time.perf_counter() - t0)
        hist.append(np.asarray(er).reshape(-1, args.updates, A).mean(0))
    hist = np.concatenate(hist)
    hist = hist[np.isfinite(hist).all(1)]  # updates in which an episode ended
    k = max(1, len(hist) // 10)
    first, last = hist[:k].mean(0), hist[-k:].mean(0)
    aux = np.asarray(aux).reshape(-1, 3)[-1]
    mem = {}
    with contextlib.suppress(Exception):
        mem = dict(peak_gib=round((DEV.memory_stats() or {}).get("peak_bytes_in_use", 0) / 2**30, 3))
    extra = dict(
        hidden=args.hidden,
        activation=args.activation,
        separate=bool(args.separate),
        horizon=args.horizon,
        epochs=args.epochs,
        minibatches=args.minibatches,
        updates_per_call=args.updates,
        seeds=args.seeds,
        params=int(nparam),
        updates_done=args.updates * (args.repeat + 1),
        return_first=[round(float(x), 3) for x in first],
        return_last=[round(float(x), 3) for x in last],
        agents=AGENTS,
        loss_pg_vf_ent=[round(float(x), 5) for x in aux],
        **mem,
    )
    report("train", n * args.seeds, args.updates * args.horizon, ts, tc, **extra)


def main():
    emit(
        what="info",
        flax=flax.__version__,
        optax=optax.__version__,
        numpy=np.__version__,
        python=sys.version.split()[0],
        agents=AGENTS,
        obs_dims=OBS_DIMS,
        num_actions=int(NACT),
        import_s=round(time.time() - T_START, 2),
        argv=sys.argv[1:],
    )
    envs = [int(x) for x in args.num_envs.split(",")]
    tenvs = [int(x) for x in args.train_envs.split(",")] if args.train_envs else envs
    table = dict(env=bench_env, env_py=bench_env_py, rollout=bench_rollout, train=bench_train)
    for mode in filter(None, args.mode.split(",")):
        for n in tenvs if mode == "train" else envs:
            if time.time() - T_START > args.budget_s:
                emit(what="skipped", mode=mode, num_envs=n, reason="budget")
                continue
            try:
                table[mode](n)
            except Exception as e:  # out of memory at one size must not lose the others
                emit(what="error", mode=mode, num_envs=n, error=f"{type(e).__name__}: {e}"[:400])
    write_lines("jaxmarl", args.out, f"{DEV.platform}:{DEV.device_kind}")


if __name__ == "__main__":
    main()
