"""The shipped envs' kernels are tested as users build them."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def as_users_build(built_for_speed: None) -> None: ...
