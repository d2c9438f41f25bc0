"""Throughput of PPO on CartPole where the whole training loop is one compiled JAX program, as PureJaxRL does it.

python benchmarks/peers/purejaxrl.py --mode env,train --num-envs 2048,16384,65536 --horizon 32
python benchmarks/peers/purejaxrl.py --mode solve --num-envs 2048 --horizon 32 --lr 1e-3

    env      random actions, vmapped step with its own reset, in one jitted scan
    rollout  env, policy and sampling
    train    rollout, GAE and PPO's epochs, one jitted scan
    solve    from scratch until the mean return of the episodes that ended in one update reaches --threshold;
             seconds without compiling, which is apart

One JSON line a measurement, median of --repeat. Written from PPO's equations, with PureJaxRL's numbers: 64x64 tanh, lr
2.5e-4, gamma 0.99, lambda 0.95, clip 0.2, entropy 0.01, value 0.5, gradient norm 0.5, 4 epochs, 4 minibatches. The env
is gymnax's, or with --env builtin the same rules in this file. Needs jax, flax and optax.
"""

import argparse
import statistics
import sys
import time
from typing import NamedTuple

from json_lines import emit as emit_line
from json_lines import write_lines

ap = argparse.ArgumentParser()
ap.add_argument("--mode", default="env,rollout,train,solve")
ap.add_argument("--env", default="auto", choices=["auto", "gymnax", "builtin"])
ap.add_argument("--num-envs", default="4,2048,8192,65536")
ap.add_argument("--env-steps", type=int, default=1000)
ap.add_argument("--horizon", type=int, default=128)
ap.add_argument("--updates", type=int, default=10, help="PPO iterations per timed call")
ap.add_argument("--epochs", type=int, default=4)
ap.add_argument("--minibatches", type=int, default=4)
ap.add_argument("--hidden", default="64,64")
ap.add_argument("--lr", type=float, default=2.5e-4)
ap.add_argument("--seeds", type=int, default=1, help="independent runs vmapped together (train mode)")
ap.add_argument("--repeat", type=int, default=5)
ap.add_argument("--threshold", type=float, default=475.0)
ap.add_argument("--max-steps", type=float, default=5e8, help="give up solving after this many env steps")
ap.add_argument("--matmul-precision", default="default", choices=["default", "tensorfloat32", "highest", "bfloat16"])
ap.add_argument("--prng", default="threefry2x32", choices=["threefry2x32", "rbg", "unsafe_rbg"])
ap.add_argument("--budget-s", type=float, default=540.0, help="start no new measurement after this")
ap.add_argument("--out", help="folder of peer_purejaxrl.json, with all lines")
args = ap.parse_args()
T_START = time.time()

import jax  # noqa: E402

jax.config.update("jax_default_prng_impl", args.prng)
if args.matmul_precision != "default":
    jax.config.update("jax_default_matmul_precision", args.matmul_precision)
import flax.linen as nn  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

DEV = jax.devices()[0]


# ------------------------------------------------------------------ environment
class CP(NamedTuple):
    s: jax.Array  # x, x_dot, theta, theta_dot
    t: jax.Array


def builtin_reset(key):
    s = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
    return s, CP(s, jnp.zeros((), jnp.int32))


def builtin_step(key, st, act):
    """Gymnasium CartPole-v1: Euler, tau 0.02, reward 1 per step, 500 steps."""
    x, xd, th, thd = st.s
    force = jnp.where(act == 1, 10.0, -10.0)
    c, s = jnp.cos(th), jnp.sin(th)
    tmp = (force + 0.05 * thd**2 * s) / 1.1
    tha = (9.8 * s - c * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * c**2 / 1.1))
    xa = tmp - 0.05 * tha * c / 1.1
    ns = jnp.stack([x + 0.02 * xd, xd + 0.02 * xa, th + 0.02 * thd, thd + 0.02 * tha])
    t = st.t + 1
    term = (jnp.abs(ns[0]) > 2.4) | (jnp.abs(ns[2]) > 12 * 2 * jnp.pi / 360)
    done = term | (t >= 500)
    ro, rs = builtin_reset(key)
    obs = jnp.where(done, ro, ns)
    return obs, CP(obs, jnp.where(done, rs.t, t)), jnp.float32(1.0), done


def gymnax_env():
    import gymnax

    env, params = gymnax.make("CartPole-v1")

    def reset(key):
        return env.reset(key, params)

    def step(key, st, act):
        out = env.step(key, st, act, params)
        if len(out) == 6:  # 1.x: obs, state, reward, terminated, truncated, info
            obs, st, r, te, tr, _ = out
            return obs, st, r, jnp.logical_or(te, tr)
        obs, st, r, d, _ = out
        return obs, st, r, d

    from importlib.metadata import version

    return reset, step, "gymnax " + version("gymnax")


if args.env == "builtin":
    RESET, STEP, ENVNAME = builtin_reset, builtin_step, "builtin"
else:
    try:
        RESET, STEP, ENVNAME = gymnax_env()
    except ImportError as e:
        if args.env == "gymnax":
            raise
        print(f"gymnax not importable ({e}); using the builtin CartPole", file=sys.stderr)
        RESET, STEP, ENVNAME = builtin_reset, builtin_step, "builtin"
OBS, NACT = 4, 2
HID = tuple(int(h) for h in args.hidden.split(","))


def emit(**kw):
    kw.update(
        framework="purejaxrl-style",
        env="CartPole-v1",
        env_source=ENVNAME,
        jax=jax.__version__,
        device=f"{DEV.platform}:{DEV.device_kind}",
        matmul_precision=args.matmul_precision,
        prng=args.prng,
    )
    emit_line(**kw)


def report(what, n, steps, ts, tc, **extra):
    med = statistics.median(ts)
    emit(
        what=what,
        num_envs=n,
        num_agents=1,
        steps_per_call=steps,
        repeats=len(ts),
        call_s_median=med,
        call_s_min=min(ts),
        call_s_max=max(ts),
        env_steps_per_s=n * steps / med,
        agent_steps_per_s=n * steps / med,
        compile_s=round(tc, 3),
        **extra,
    )


def own(tree):
    """A copy in which no two leaves share a buffer, so that all may be donated."""

    def one(x):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.array(jax.random.key_data(x), copy=True), impl=args.prng)
        return jnp.array(x, copy=True)

    return jax.tree.map(one, tree)


class ActorCritic(nn.Module):
    @nn.compact
    def __call__(self, x):
        def trunk(h):
            for k in HID:
                h = nn.tanh(nn.Dense(k, kernel_init=nn.initializers.orthogonal(float(np.sqrt(2))))(h))
            return h

        logits = nn.Dense(NACT, kernel_init=nn.initializers.orthogonal(0.01))(trunk(x))
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(trunk(x))
        return logits, value[..., 0]


NET = ActorCritic()


def log_prob(logits, act):
    lp = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(lp, act[..., None], axis=-1)[..., 0], lp


def init_roll(key, n):
    key, k0 = jax.random.split(key)
    obs, st = jax.vmap(RESET)(jax.random.split(k0, n))
    z = jnp.zeros(())
    return key, st, obs, jnp.zeros((n,)), z, z


def roll_step(params, c, n):
    key, st, x, epret, rsum, rcnt = c
    key, ka, ks = jax.random.split(key, 3)
    logits, val = NET.apply(params, x)
    act = jax.random.categorical(ka, logits)
    lp, _ = log_prob(logits, act)
    obs, st, r, d = jax.vmap(STEP)(jax.random.split(ks, n), st, act)
    df = d.astype(jnp.float32)
    epret = epret + r
    c = (key, st, obs, epret * (1 - df), rsum + (epret * df).sum(), rcnt + df.sum())
    return c, dict(obs=x, act=act, lp=lp, val=val, rew=r, done=df)


def bench_env(n):
    def one(c, _):
        key, st, _o, ret = c
        key, ka, ks = jax.random.split(key, 3)
        act = jax.random.randint(ka, (n,), 0, NACT)
        obs, st, r, _d = jax.vmap(STEP)(jax.random.split(ks, n), st, act)
        return (key, st, obs, ret + r), None

    def run(c):
        return jax.lax.scan(one, c, None, length=args.env_steps)[0]

    obs, st = jax.jit(jax.vmap(RESET))(jax.random.split(jax.random.key(0), n))
    c = (jax.random.key(1), st, obs + 0, jnp.zeros((n,)))
    t0 = time.perf_counter()
    f = jax.jit(run).lower(c).compile()
    tc = time.perf_counter() - t0
    c = jax.block_until_ready(f(c))
    ts = []
    for _ in range(args.repeat):
        t0 = time.perf_counter()
        c = jax.block_until_ready(f(c))
        ts.append(time.perf_counter() - t0)
    report("env", n, args.env_steps, ts, tc)


def bench_rollout(n):
    T = args.horizon

    def run(params, c):
        return jax.lax.scan(lambda c, _: roll_step(params, c, n), c, None, length=T)

    params = NET.init(jax.random.key(1), jnp.zeros((1, OBS)))
    c = jax.jit(lambda k: init_roll(k, n))(jax.random.key(0))
    t0 = time.perf_counter()
    f = jax.jit(run).lower(params, c).compile()
    tc = time.perf_counter() - t0
    c, tr = jax.block_until_ready(f(params, c))
    ts = []
    k = max(1, args.env_steps // T)
    for _ in range(args.repeat):
        t0 = time.perf_counter()
        for _ in range(k):
            c, tr = f(params, c)
        jax.block_until_ready((c, tr))
        ts.append(time.perf_counter() - t0)
    report("rollout", n, k * T, ts, tc, hidden=args.hidden, horizon=T)


def make_update(n, tx):
    T, B = args.horizon, args.horizon * n
    assert B % args.minibatches == 0

    def loss(params, mb):
        logits, v = NET.apply(params, mb["obs"])
        lp, alp = log_prob(logits, mb["act"])
        ratio = jnp.exp(lp - mb["lp"])
        adv = (mb["adv"] - mb["adv"].mean()) / (mb["adv"].std() + 1e-8)
        pg = -jnp.minimum(ratio * adv, jnp.clip(ratio, 0.8, 1.2) * adv).mean()
        vc = mb["val"] + jnp.clip(v - mb["val"], -0.2, 0.2)
        vl = 0.5 * jnp.maximum((v - mb["ret"]) ** 2, (vc - mb["ret"]) ** 2).mean()
        ent = -(jnp.exp(alp) * alp).sum(-1).mean()
        return pg + 0.5 * vl - 0.01 * ent

    def minibatch(c, mb):
        params, opt = c
        g = jax.grad(loss)(params, mb)
        up, opt = tx.update(g, opt, params)
        return (optax.apply_updates(params, up), opt), None

    def update(c, _):
        params, opt, roll = c
        roll, tr = jax.lax.scan(lambda r, _: roll_step(params, r, n), roll, None, length=T)
        _, lv = NET.apply(params, roll[2])

        def back(a, x):
            adv, nv = a
            d, v, r = x
            adv = r + 0.99 * nv * (1 - d) - v + 0.99 * 0.95 * (1 - d) * adv
            return (adv, v), adv

        _, adv = jax.lax.scan(
            back, (jnp.zeros_like(lv), lv), (tr["done"], tr["val"], tr["rew"]), reverse=True, unroll=16
        )
        flat = dict(
            obs=tr["obs"].reshape(B, OBS),
            act=tr["act"].reshape(B),
            lp=tr["lp"].reshape(B),
            val=tr["val"].reshape(B),
            adv=adv.reshape(B),
            ret=(adv + tr["val"]).reshape(B),
        )

        def epoch(po, key):
            perm = jax.random.permutation(key, B)
            mbs = jax.tree.map(lambda x: x[perm].reshape((args.minibatches, -1) + x.shape[1:]), flat)
            return jax.lax.scan(minibatch, po, mbs)

        key, ke = jax.random.split(roll[0])
        (params, opt), _ = jax.lax.scan(epoch, (params, opt), jax.random.split(ke, args.epochs))
        er = jnp.where(roll[5] > 0, roll[4] / jnp.maximum(roll[5], 1.0), jnp.nan)
        z = jnp.zeros(())
        return (params, opt, (key,) + roll[1:4] + (z, z)), er

    return update


def tx_for(total_updates):
    k = args.epochs * args.minibatches

    def sched(count):
        return args.lr * jnp.maximum(0.0, 1.0 - (count // k) / max(1, total_updates))

    return optax.chain(optax.clip_by_global_norm(0.5), optax.adam(sched if total_updates else args.lr, eps=1e-5))


def build(n, total_updates, updates):
    tx = tx_for(total_updates)
    update = make_update(n, tx)

    def init(key):
        kp, kr = jax.random.split(key)
        p = NET.init(kp, jnp.zeros((1, OBS)))
        return p, tx.init(p), init_roll(kr, n)

    def run(c):
        return jax.lax.scan(update, c, None, length=updates)

    return init, run


def bench_train(n):
    init, run = build(n, 0, args.updates)
    key = jax.random.key(0)
    if args.seeds > 1:
        init, run, key = jax.vmap(init), jax.vmap(run), jax.random.split(key, args.seeds)
    c = own(jax.jit(init)(key))
    t0 = time.perf_counter()
    f = jax.jit(run, donate_argnums=0).lower(c).compile()
    tc = time.perf_counter() - t0
    c, er = jax.block_until_ready(f(c))
    hist, ts = [np.asarray(er).reshape(-1, args.updates).mean(0)], []
    for _ in range(args.repeat):
        t0 = time.perf_counter()
        c, er = jax.block_until_ready(f(c))
        ts.append(time.perf_counter() - t0)
        hist.append(np.asarray(er).reshape(-1, args.updates).mean(0))
    h = np.concatenate(hist)
    h = h[np.isfinite(h)]
    report(
        "train",
        n * args.seeds,
        args.updates * args.horizon,
        ts,
        tc,
        hidden=args.hidden,
        horizon=args.horizon,
        epochs=args.epochs,
        minibatches=args.minibatches,
        seeds=args.seeds,
        updates_done=args.updates * (args.repeat + 1),
        return_first=round(float(h[0]), 2) if len(h) else None,
        return_last=round(float(h[-1]), 2) if len(h) else None,
    )


def bench_solve(n):
    per = args.horizon * n
    init, run = build(n, 0, 1)
    f = None
    for seed in range(3):
        c = own(jax.jit(init)(jax.random.key(seed)))
        if f is None:
            t0 = time.perf_counter()
            f = jax.jit(run, donate_argnums=0).lower(c).compile()
            tc = time.perf_counter() - t0
        jax.block_until_ready(c)
        t0, k, best, ok = time.perf_counter(), 0, 0.0, False
        while k * per < args.max_steps and time.time() - T_START < args.budget_s:
            c, er = f(c)
            k += 1
            e = float(er[0])  # one scalar to the host per update: part of the cost
            best = max(best, e) if e == e else best
            if e >= args.threshold:
                ok = True
                break
        dt = time.perf_counter() - t0
        emit(
            what="solve",
            num_envs=n,
            seed=seed,
            solved=ok,
            threshold=args.threshold,
            wall_s=round(dt, 4),
            env_steps=k * per,
            updates=k,
            env_steps_per_s=k * per / dt,
            best_return=round(best, 2),
            compile_s=round(tc, 3),
            hidden=args.hidden,
            horizon=args.horizon,
            epochs=args.epochs,
            minibatches=args.minibatches,
            lr=args.lr,
        )


def main():
    emit(what="info", numpy=np.__version__, optax=optax.__version__, python=sys.version.split()[0], argv=sys.argv[1:])
    table = dict(env=bench_env, rollout=bench_rollout, train=bench_train, solve=bench_solve)
    for mode in args.mode.split(","):
        for n in (int(x) for x in args.num_envs.split(",")):
            if time.time() - T_START > args.budget_s:
                emit(what="skipped", mode=mode, num_envs=n, reason="budget")
                continue
            try:
                table[mode](n)
            except Exception as e:
                emit(what="error", mode=mode, num_envs=n, error=f"{type(e).__name__}: {e}"[:400])
    write_lines("purejaxrl", args.out, f"{DEV.platform}:{DEV.device_kind}")


if __name__ == "__main__":
    main()
