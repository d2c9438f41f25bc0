"""Envs. A folder `<env>/` with `<env>.py` and `<env>.cu` is an env named `<env>`; nothing registers it. A family of
envs may share a folder, `<family>/`, with such a pair of files each."""
