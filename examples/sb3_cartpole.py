"""Stable-Baselines3's PPO on our CartPole: python sb3_cartpole.py [device] (pip install 'warpdrive-marl[sb3]').

Its log shows ep_rew_mean rise towards 500, the best there is; then 20 greedy episodes are played.
"""

import sys

from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from warpdrive.adapters.stable_baselines3 import vec_env

device = sys.argv[1] if len(sys.argv) > 1 else "auto"
envs = VecMonitor(vec_env("cartpole", num_envs=16, device=device, seed=1))
model = PPO(
    "MlpPolicy",
    envs,
    n_steps=64,
    batch_size=256,
    gamma=0.98,
    gae_lambda=0.8,
    learning_rate=lambda remaining: 1e-3 * remaining,
    seed=1,
    device="cpu",  # the network is small, and what it sees comes to the host anyway
    verbose=1,
)
model.learn(100_000, log_interval=10)
mean, deviation = evaluate_policy(model, envs, n_eval_episodes=20)
print(f"mean return of 20 greedy episodes: {mean:.1f} +- {deviation:.1f}")
