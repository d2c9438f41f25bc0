"""Runs a compiler that ends with the process that asked for it: python compiler_keeper.py FOLDER COMMAND ...

Standard input is a pipe that nobody writes into: it ends when that process does, killed or not. Then the compiler is
killed with all that it has started, and FOLDER, where it worked, is removed. Started anew for every file that is
compiled, so it imports little.
"""

import os
import select
import signal
import sys


def main(folder: str, *command: str) -> int:
    """The compiler's exit code; as a shell has it, 128 + the signal that ended it."""
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    no_input = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    usual = [signal.SIGPIPE, signal.SIGXFSZ]  # which Python ignores
    try:
        compiler = os.posix_spawnp(
            command[0], command, os.environ, file_actions=[no_input], setpgroup=0, setsigdef=usual
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    ready, _, _ = select.select([0, ended], [], [])
    if is_alone := 0 in ready:
        os.killpg(compiler, signal.SIGKILL)
    _, status = os.waitpid(compiler, 0)
    if is_alone:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
