"""Throughput of WarpDrive, unmodified: a peer that trains on the GPU through PyCUDA or Numba, and torch.

python benchmarks/peers/warpdrive.py --env tag_continuous --num-envs 2000 --num-taggers 10 --num-runners 90 --iters 6 \\
    --backend pycuda --warpdrive-path FOLDER

A process measures one configuration, as the package keeps generated modules by name. FOLDER holds warp_drive/ and
example_envs/, as the wheel of rl-warp-drive 2.7.1 does once it is unpacked; it is not needed where that is installed.
One JSON line a measurement; what the package prints goes to stderr.

    meta         versions, sizes, what was replaced, seconds of set-up
    sim_step     the step kernel and the resets alone, with the same actions again and again
    sim_sampled  with actions drawn from a uniform policy, without a network
    rollout      trainer._generate_rollout_batch(): network, sampler, step
    train        the body of trainer.train(): rollout, loss, backward, optimiser
    memory       of torch at most, and of the device

env_steps_per_s counts steps of one env, agent_steps_per_s these times the agents.
"""

import argparse
import contextlib
import logging
import os
import shutil
import sys
import time

from json_lines import emit, write_lines
from warpdrive_package import patch_numba, patch_pycuda, patch_setup, private_copy, provide_gym

sys.dont_write_bytecode = True  # env_config.py is rewritten: a stale .pyc would be poison


def parse_args(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--env", choices=["tag_continuous", "tag_gridworld"], required=True)
    p.add_argument("--num-envs", type=int, default=2000)
    p.add_argument("--num-taggers", type=int, default=None)
    p.add_argument("--num-runners", type=int, default=None, help="tag_gridworld always has exactly one runner")
    p.add_argument("--iters", type=int, default=10, help="timed training iterations")
    p.add_argument("--warmup", type=int, default=2, help="untimed iterations first")
    p.add_argument("--backend", choices=["numba", "pycuda"], default="numba")
    p.add_argument(
        "--steps-per-iter",
        type=int,
        default=None,
        help="time steps per environment and iteration; default: the YAML's "
        "train_batch_size / num_envs, lowered until --mem-gib suffices",
    )
    p.add_argument(
        "--mem-gib", type=float, default=60.0, help="memory budget for the training batch and its activations"
    )
    p.add_argument("--episode-length", type=int, default=None)
    p.add_argument("--obs", choices=["yaml", "full", "partial"], default="yaml")
    p.add_argument("--neighbours", type=int, default=None, help="tag_continuous: num_other_agents_observed (YAML: 10)")
    p.add_argument("--algorithm", choices=["A2C", "PPO"], default=None)
    p.add_argument("--fc-dims", default=None, help="e.g. 256,256 (default: the YAML's)")
    p.add_argument("--modes", default="sim_step,sim_sampled,rollout,train")
    p.add_argument(
        "--sim-steps",
        type=int,
        default=None,
        help="time steps for the two sim modes (default steps_per_iter*iters, at most 1000)",
    )
    p.add_argument("--seed", type=int, default=20240519)
    p.add_argument(
        "--max-registers",
        type=int,
        default=-1,
        help="cap registers per thread of kernels; -1 = automatic "
        "(64 above 768 agents: the step kernel needs about 70 registers and "
        "would otherwise not launch), 0 = never cap",
    )
    p.add_argument("--gym", choices=["auto", "gym", "gymnasium", "stub"], default="auto")
    p.add_argument(
        "--warpdrive-path",
        default=None,
        help="directory that holds warp_drive/ and example_envs/ (an unpacked "
        "wheel); default: the importable installation",
    )
    p.add_argument("--keep-workdir", action="store_true")
    p.add_argument("--out", help="folder of peer_warpdrive_ENV_AGENTS.json, with all lines")
    a = p.parse_args(argv)
    if a.env == "tag_gridworld" and a.num_runners not in (None, 1):
        p.error("tag_gridworld has exactly one runner")
    return a


def build_config(args, work):
    import yaml

    path = os.path.join(work, "warp_drive", "training", "run_configs", args.env + ".yaml")
    with open(path, encoding="utf8") as fp:
        cfg = yaml.safe_load(fp)
    env = cfg["env"]
    yaml_steps = cfg["trainer"]["train_batch_size"] // cfg["trainer"]["num_envs"]
    if args.num_taggers is not None:
        env["num_taggers"] = args.num_taggers
    if args.env == "tag_continuous":
        if args.num_runners is not None:
            env["num_runners"] = args.num_runners
        n_agents = env["num_taggers"] + env["num_runners"]
        if args.neighbours is not None:
            env["num_other_agents_observed"] = args.neighbours
        env["num_other_agents_observed"] = min(env["num_other_agents_observed"], n_agents - 1)
        if args.obs != "yaml":
            env["use_full_observation"] = args.obs == "full"
        k = n_agents - 1 if env["use_full_observation"] else env["num_other_agents_observed"]
        obs_size = 7 * k + 1
        heads = [env["num_acceleration_levels"] + 1, env["num_turn_levels"] + 1]
    else:
        n_agents = env["num_taggers"] + 1
        env["use_full_observation"] = args.obs != "partial"
        obs_size = 4 * n_agents + 1 if env["use_full_observation"] else 6
        heads = [5]
    if args.episode_length is not None:
        env["episode_length"] = args.episode_length
    for pol in cfg["policy"].values():
        if args.algorithm:
            pol["algorithm"] = args.algorithm
        if args.fc_dims:
            pol["model"]["fc_dims"] = [int(v) for v in args.fc_dims.split(",")]
    fc = max(sum(p["model"]["fc_dims"]) for p in cfg["policy"].values())
    per_sample = 4 * obs_size + 10 * fc + 32 * sum(heads) + 64  # bytes, rough upper bound
    if args.steps_per_iter:
        steps = args.steps_per_iter
    else:
        fit = int(args.mem_gib * 2**30 // (per_sample * args.num_envs * n_agents))
        steps = max(2, min(yaml_steps, fit))
    steps = max(2, steps)  # warp-drive builds no observation batch for a single step
    cfg["trainer"].update(
        num_envs=args.num_envs,
        train_batch_size=steps * args.num_envs,
        num_episodes=10**9,
        env_backend=args.backend,
        seed=int(args.seed),  # the default np.int32 seed makes random.seed() fail on py >= 3.11
        num_gpus=1,
    )
    cfg["saving"].update(
        metrics_log_freq=10**9,
        model_params_save_freq=10**9,
        basedir=os.path.join(work, "results"),
    )
    return cfg, dict(
        n_agents=n_agents,
        obs_size=obs_size,
        action_heads=heads,
        steps_per_iter=steps,
        yaml_steps_per_iter=yaml_steps,
        bytes_per_sample_estimate=per_sample,
    )


def build_trainer(args, cfg):
    from warp_drive.env_wrapper import EnvWrapper
    from warp_drive.training.trainers.trainer_a2c import TrainerA2C

    if args.env == "tag_continuous":
        from example_envs.tag_continuous.tag_continuous import TagContinuous as Env
    else:
        from example_envs.tag_gridworld.tag_gridworld import CUDATagGridWorld as Env
    wrapper = EnvWrapper(Env(**cfg["env"]), num_envs=args.num_envs, env_backend=args.backend)
    if args.backend == "pycuda" and args.env == "tag_gridworld":
        wrapper.env.cuda_data_manager.add_shared_constants({"kIndexToActionArr": wrapper.env.step_actions})
        wrapper.env.cuda_function_manager.initialize_shared_constants(
            wrapper.env.cuda_data_manager, constant_names=["kIndexToActionArr"]
        )
    names = list(cfg["policy"])
    if len(names) == 1:
        mapping = {names[0]: sorted(list(wrapper.env.taggers) + list(wrapper.env.runners))}
    else:
        mapping = {"tagger": list(wrapper.env.taggers), "runner": list(wrapper.env.runners)}
    trainer = TrainerA2C(
        env_wrapper=wrapper,
        config=cfg,
        policy_tag_to_agent_id_map=mapping,
        results_dir="bench",
        verbose=False,
    )
    wrapper.reset_all_envs()
    return trainer


PERF_KEYS = ("policy_eval_time", "action_sample_time", "env_step_time", "training_time")


class Bench:
    def __init__(self, args, trainer, shape, emit):
        import torch

        self.torch, self.args, self.trainer, self.shape, self.emit = (torch, args, trainer, shape, emit)
        self.iteration = 0

    def timed(self, fn, count):
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            fn()
        self.torch.cuda.synchronize()
        return time.perf_counter() - start

    def report(self, record, seconds, env_time_steps, **extra):
        env_steps = env_time_steps * self.args.num_envs
        self.emit(
            record=record,
            seconds=round(seconds, 6),
            time_steps=env_time_steps,
            env_steps=env_steps,
            env_steps_per_s=env_steps / seconds,
            agent_steps_per_s=env_steps * self.shape["n_agents"] / seconds,
            us_per_time_step=seconds / env_time_steps * 1e6,
            **extra,
        )

    # --- simulation without a network
    def sim(self, sampled):
        torch, tr = self.torch, self.trainer
        envs = tr.cuda_envs
        done = envs.cuda_data_manager.data_on_device_via_torch("_done_")
        probs = {
            "uniform": [
                torch.full((self.args.num_envs, self.shape["n_agents"], int(n)), 1.0 / n).cuda()
                for n in self.shape["action_heads"]
            ]
        }
        tr._sample_actions(probs, batch_index=-1)

        def step():
            if sampled:
                tr._sample_actions(probs, batch_index=-1)
            envs.step_all_envs()
            if done.any():  # the trainer's own test before it launches the reset kernels
                envs.reset_only_done_envs()

        total = self.args.sim_steps or min(1000, self.shape["steps_per_iter"] * self.args.iters)
        self.timed(step, max(3, min(50, total // 5)))
        self.report("sim_sampled" if sampled else "sim_step", self.timed(step, total), total)

    # --- warp-drive's own loop
    def rollout(self):
        self.trainer._generate_rollout_batch()

    def train_iteration(self):
        tr = self.trainer
        self.iteration += 1  # never 0: iteration 0 logs and saves
        params = tr._generate_rollout_batch()
        metrics = tr._update_model_params(self.iteration)
        tr._log_metrics(metrics, params)
        tr.save_model_checkpoint(self.iteration)

    def loop(self, record, fn):
        self.timed(fn, self.args.warmup)
        stats = self.trainer.perf_stats
        before = {k: getattr(stats, k) for k in PERF_KEYS}
        seconds = self.timed(fn, self.args.iters)
        inner = {
            k.replace("_time", "_ms_per_iter"): round((getattr(stats, k) - before[k]) * 1e3 / self.args.iters, 4)
            for k in PERF_KEYS
        }
        self.report(
            record,
            seconds,
            self.shape["steps_per_iter"] * self.args.iters,
            iterations=self.args.iters,
            ms_per_iteration=seconds / self.args.iters * 1e3,
            warpdrive_event_timers=inner,
        )

    def run(self, modes):
        for mode in modes:
            if mode == "sim_step":
                self.sim(sampled=False)
            elif mode == "sim_sampled":
                self.sim(sampled=True)
            elif mode == "rollout":
                self.loop("rollout", self.rollout)
            elif mode == "train":
                self.loop("train", self.train_iteration)
            else:
                raise SystemExit(f"unknown mode {mode!r}")


def versions(args):
    import platform

    import numpy
    import torch

    out = {
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
    }
    for name in ("numba", "numba_cuda", "pycuda"):
        with contextlib.suppress(Exception):
            mod = __import__(name)
            out[name] = getattr(mod, "__version__", None) or getattr(mod, "VERSION_TEXT", "?")
    with contextlib.suppress(Exception):
        out["gpu"] = torch.cuda.get_device_name(0)
    with contextlib.suppress(Exception):
        from importlib.metadata import version

        out["rl_warp_drive"] = version("rl-warp-drive")
    return out


def main(argv=None):
    args = parse_args(argv)
    logging.getLogger().setLevel(logging.ERROR)
    applied = []
    work = None
    with contextlib.redirect_stdout(sys.stderr):
        try:
            work = private_copy(args)
            applied.append("gym: " + provide_gym(args.gym))
            import torch

            cfg, shape = build_config(args, work)
            patch_numba(args, shape["n_agents"], applied)
            patch_pycuda(args, shape["n_agents"], applied)
            patch_setup(applied)
            start = time.perf_counter()
            trainer = build_trainer(args, cfg)
            torch.cuda.synchronize()
            setup = time.perf_counter() - start
            emit(
                record="meta",
                env=args.env,
                backend=args.backend,
                num_envs=args.num_envs,
                **shape,
                env_config={k: v for k, v in cfg["env"].items()},
                policies={
                    k: {"algorithm": v["algorithm"], "fc_dims": v["model"]["fc_dims"]} for k, v in cfg["policy"].items()
                },
                iters=args.iters,
                warmup=args.warmup,
                setup_seconds=round(setup, 3),
                patches=applied,
                versions=versions(args),
            )
            bench = Bench(args, trainer, shape, emit)
            bench.run([m for m in args.modes.split(",") if m])
            with contextlib.suppress(Exception):
                free, total = torch.cuda.mem_get_info()
                emit(
                    record="memory",
                    torch_peak_gib=torch.cuda.max_memory_allocated() / 2**30,
                    device_used_gib=(total - free) / 2**30,
                )
            trainer.graceful_close()
            write_lines(f"warpdrive_{args.env}_{shape['n_agents']}", args.out, torch.cuda.get_device_name(0))
        finally:
            if work and not args.keep_workdir:
                shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
