"""Calls of compiled JAX programs, timed; what goes in is donated, as a training loop would do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def own(tree: Any) -> Any:
    """A copy in which no two leaves share a buffer, so that all may be donated."""

    def one(x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):  # of the default implementation, as all keys here
            return jax.random.wrap_key_data(jnp.array(jax.random.key_data(x), copy=True))
        return jnp.array(x, copy=True)

    return jax.tree.map(one, tree)


def timed(fn: Callable, carry: Any, repeat: int) -> tuple[Any, list[float]]:
    """Seconds of each call to completion; `fn` makes a carry of a carry."""
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        carry = fn(carry)
        jax.block_until_ready(carry)
        seconds.append(time.perf_counter() - start)
    return carry, seconds


def compile_and_warm(fn: Callable, carry: Any) -> tuple[Callable, Any, float]:
    """The compiled function, the carry after a first call, and the seconds of compiling."""
    carry = own(carry)
    start = time.perf_counter()
    compiled = jax.jit(fn, donate_argnums=0).lower(carry).compile()
    seconds = time.perf_counter() - start
    carry = compiled(carry)
    jax.block_until_ready(carry)
    return compiled, carry, seconds
