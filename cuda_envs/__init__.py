"""Envs. A folder `<env>/` with `<env>.py` and `<env>.cu` is an env named `<env>`; nothing registers it."""
