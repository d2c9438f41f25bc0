"""What lets rl-warp-drive 2.7.1 run as it is: a copy of its own to write into, a stand-in for gym, names replaced.

The package is not edited. It writes generated sources into its own folder, so it is imported from a copy; a few of its
names are replaced while it runs, which only makes its set-up faster, or lets it start on new GPUs. See warpdrive.py.
"""

import os
import shutil
import sys
import tempfile
import types


def private_copy(args):
    """Copy warp_drive/ and example_envs/ to a writable temporary folder; import from there."""
    if args.warpdrive_path:
        root = os.path.abspath(args.warpdrive_path)
    else:
        import importlib.util

        spec = importlib.util.find_spec("warp_drive")
        if spec is None:
            raise SystemExit(
                "warp_drive is not importable: pip install --no-deps rl-warp-drive==2.7.1, or give --warpdrive-path"
            )
        root = os.path.dirname(next(iter(spec.submodule_search_locations)))
    for name in ("warp_drive", "example_envs"):
        if not os.path.isdir(os.path.join(root, name)):
            raise SystemExit(f"no {name}/ under {root}")
    work = tempfile.mkdtemp(prefix="bench_wd_")
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", "rlchemists")
    for name in ("warp_drive", "example_envs"):
        shutil.copytree(os.path.join(root, name), os.path.join(work, name), ignore=ignore)
    sys.path.insert(0, work)
    for mod in [m for m in sys.modules if m.split(".")[0] in ("warp_drive", "example_envs")]:
        del sys.modules[mod]
    return work


def provide_gym(choice):
    """warp-drive imports the unmaintained `gym`, only for its space classes."""
    order = {"auto": ["gym", "gymnasium", "stub"]}.get(choice, [choice])
    for name in order:
        if name == "stub":
            sys.modules.update(stub_gym())
            return "stub"
        try:
            if name == "gym":
                import gym
                import gym.spaces

                return f"gym {gym.__version__}"
            import gymnasium
            import gymnasium.spaces

            sys.modules["gym"] = gymnasium
            sys.modules["gym.spaces"] = gymnasium.spaces
            return f"gymnasium {gymnasium.__version__} (aliased)"
        except ImportError:
            continue
    raise SystemExit(f"--gym {choice}: not importable")


def stub_gym():
    import numpy as np

    class Box:
        def __init__(self, low, high, shape=None, dtype=np.float32):
            self.shape = tuple(shape) if shape is not None else np.shape(low)
            self.dtype = np.dtype(dtype)
            self.low = np.full(self.shape, low, dtype=self.dtype)
            self.high = np.full(self.shape, high, dtype=self.dtype)

    class Discrete:
        def __init__(self, n):
            self.n = int(n)

    class MultiDiscrete:
        def __init__(self, nvec):
            self.nvec = np.asarray(nvec, dtype=np.int64)

    class Dict(dict):
        pass

    gym = types.ModuleType("gym")
    gym.__path__ = []
    gym.__version__ = "stub"
    spaces = types.ModuleType("gym.spaces")
    for cls in (Box, Discrete, MultiDiscrete, Dict):
        setattr(spaces, cls.__name__, cls)
    gym.spaces = spaces
    return {"gym": gym, "gym.spaces": spaces}


def register_cap(args, n_agents):
    if args.max_registers == -1:
        return 64 if n_agents > 768 else 0
    return args.max_registers


def patch_numba(args, n_agents, applied):
    cap = register_cap(args, n_agents)
    if args.backend != "numba" or not cap:
        return
    import numba.cuda as nc

    plain = nc.jit

    def jit(func_or_sig=None, *a, **kw):
        if not kw.get("device"):
            kw.setdefault("max_registers", cap)
        return plain(func_or_sig, *a, **kw)

    nc.jit = jit
    applied.append(f"numba.cuda.jit: max_registers={cap} for kernels")


def find_nvcc():
    """Put nvcc on PATH (warp-drive calls plain `nvcc`): PATH, CUDA_HOME, toolkit, wheels."""
    if shutil.which("nvcc"):
        return shutil.which("nvcc")
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for base in sys.path:
        nv = os.path.join(base, "nvidia")
        if os.path.isdir(nv):
            roots += [os.path.join(nv, d) for d in sorted(os.listdir(nv))]
    for root in filter(None, roots):
        if os.access(os.path.join(root, "bin", "nvcc"), os.X_OK):
            os.environ["PATH"] = os.path.join(root, "bin") + os.pathsep + os.environ["PATH"]
            return os.path.join(root, "bin", "nvcc")
    raise SystemExit("--backend pycuda needs nvcc (and a host g++); none was found")


def patch_pycuda(args, n_agents, applied):
    """Device table for new GPUs; a device heap big enough for one RNG object per agent."""
    if args.backend != "pycuda":
        return
    applied.append("nvcc: " + find_nvcc())
    cap = register_cap(args, n_agents)
    if cap:
        flags = os.environ.get("NVCC_APPEND_FLAGS", "")
        os.environ["NVCC_APPEND_FLAGS"] = f"{flags} -maxrregcount={cap}".strip()
        applied.append(f"NVCC_APPEND_FLAGS: -maxrregcount={cap}")
    import pycuda.driver as drv
    from warp_drive.utils import architecture_validate as av
    from warp_drive.utils import autoinit_pycuda  # noqa: F401  (creates the context)

    for arch in ("sm_89", "sm_90", "sm_100", "sm_103", "sm_120"):
        av.DeviceArchitectures.MaxBlocksPerSM.setdefault(arch, 32)
        av.DeviceArchitectures.MaxThreadsPerSM.setdefault(arch, 2048)
    need = 64 * 2**20 + 256 * args.num_envs * n_agents
    if need > drv.Context.get_limit(drv.limit.MALLOC_HEAP_SIZE):
        drv.Context.set_limit(drv.limit.MALLOC_HEAP_SIZE, need)
        applied.append(f"CUDA malloc heap = {need >> 20} MiB")


def patch_setup(applied):
    """Replace warp-drive's O(num_envs) Python resets at set-up by one reset, broadcast.

    Only set-up time changes: every environment starts from the same state in warp-drive, so
    the arrays are identical.
    """
    import numpy as np
    from warp_drive import env_wrapper as ew
    from warp_drive.training.utils import data_loader as dl

    plain_reset = ew.EnvWrapper.obs_at_reset

    def obs_at_reset(self):
        if getattr(self, "_bench_first_obs", None) is None:
            self._bench_first_obs = plain_reset(self)
        return self._bench_first_obs

    ew.EnvWrapper.obs_at_reset = obs_at_reset
    applied.append("EnvWrapper.obs_at_reset: first result cached")

    def placeholders(env_wrapper, agent_ids, obs_dim_corresponding_to_num_agents, policy_suffix=""):
        obs = env_wrapper.obs_at_reset()
        one = dl.get_obs(obs, agent_ids, obs_dim_corresponding_to_num_agents)
        one = np.asarray(one, dtype=np.float32)
        many = np.ascontiguousarray(np.broadcast_to(one, (env_wrapper.n_envs, *one.shape)))
        feed = dl.DataFeed()
        feed.add_data(name=dl._OBSERVATIONS + policy_suffix, data=many, save_copy_and_apply_at_reset=True)
        env_wrapper.cuda_data_manager.push_data_to_device(feed, torch_accessible=True)

    dl._create_observation_placeholders_helper = placeholders
    applied.append("data_loader: observations broadcast from one environment")

    def batches(env_wrapper, agent_ids, training_batch_size_per_env, batch_suffix=""):
        # float32 zeros stay untouched pages on the host; warp-drive makes float64 and casts
        name = f"{dl._PROCESSED_OBSERVATIONS}_batch{batch_suffix}"
        size = dl.get_flattened_obs_size(env_wrapper.env.observation_space[agent_ids[0]])
        feed = dl.DataFeed()
        feed.add_data(
            name=name,
            data=np.zeros((training_batch_size_per_env, env_wrapper.n_envs, len(agent_ids), size), np.float32),
        )
        env_wrapper.cuda_data_manager.push_data_to_device(feed, torch_accessible=True)

    dl._create_processed_observation_batches_helper = batches
    applied.append("data_loader: observation batch allocated as float32")
