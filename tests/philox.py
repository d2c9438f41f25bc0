"""Philox4x32-10 by its definition, in Python's own whole numbers."""


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> int:
    """The first word, by the paper's definition (Salmon et al. 2011)."""
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        x, y = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = y >> 32 ^ b ^ k, y & 0xFFFFFFFF, x >> 32 ^ d ^ m, x & 0xFFFFFFFF
        k, m = k + 0x9E3779B9 & 0xFFFFFFFF, m + 0xBB67AE85 & 0xFFFFFFFF
    return a
