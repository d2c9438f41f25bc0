"""What of a C source is no code."""

from __future__ import annotations

import functools
import re

_NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


@functools.lru_cache(maxsize=128)  # each source is read by many, and for each env anew
def blank_comments(text: str, keep_strings: bool = True) -> str:
    """`text` with comments (and, if asked, strings) turned to spaces; lines and columns stay where they were."""

    def blank(match: re.Match[str]) -> str:
        found = match.group(0)
        if found.startswith('"') and keep_strings:
            return found
        return re.sub(r"[^\n]", " ", found)

    return _NOT_CODE.sub(blank, text)
