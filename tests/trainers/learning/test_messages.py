"""What ranks tell each other comes to them as it was, and an exception as the one that it was."""

import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from trainers.errors import NonFiniteError, NotSavedError
from trainers.learning.messages import from_bytes, to_bytes
from warpdrive.errors import ConfigError


def test_values_come_as_they_were():
    value = {"a": [1, 2.5, None, True, "\x1b\0é"], "b": {"path": Path("/x"), "tiny": 5e-324}, "c": [2**70, -math.inf]}
    assert from_bytes(to_bytes(value)) == value
    assert math.isnan(from_bytes(to_bytes(math.nan)))
    assert from_bytes(to_bytes((1, (2,)))) == [1, [2]]
    assert from_bytes(to_bytes([np.float32(0.5), torch.tensor(3)])) == [0.5, 3]
    with pytest.raises(TypeError, match="ranks cannot tell each other a set"):
        to_bytes({1})


ERRORS = [ConfigError("a"), NotSavedError("b"), OSError(28, "No space", "x"), KeyError("k"), ValueError()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_exception_comes_as_what_it_was(error):
    found = from_bytes(to_bytes(error))
    assert (type(found), found.args, str(found)) == (type(error), error.args, str(error))


def test_what_is_known_of_an_exception_comes_with_it_and_one_that_is_not_known_by_its_words():
    found = from_bytes(to_bytes(NonFiniteError("x", {"env": 3})))
    assert (type(found), found.place) == (NonFiniteError, {"env": 3})
    assert OSError(28, "x").errno == from_bytes(to_bytes(OSError(28, "x"))).errno == 28

    class Own(Exception):
        pass

    found = from_bytes(to_bytes(Own("of mine")))
    assert (type(found), str(found)) == (RuntimeError, "Own: of mine")
    odd = ValueError("v")
    odd.held = torch.nn.Linear(1, 1)
    assert str(from_bytes(to_bytes(odd))) == "v"


def test_no_other_class_is_made_whatever_comes():
    for name in ("SystemExit", "print", "os", "Popen", "__class__", "BaseException"):
        content = b'{"\\u0000error": "%s", "arguments": ["x"], "attributes": {}}' % name.encode()
        assert type(from_bytes(content)) is RuntimeError
    with pytest.raises(ValueError, match="Expecting value|decode"):
        from_bytes(pickle.dumps([1]))
