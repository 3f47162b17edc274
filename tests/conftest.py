"""How hypothesis draws its examples: the same ones every time, however slow the machine.

To look further than these, now and then: ``scripts/test --hypothesis-profile=wide``.
"""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from lstlm.kernels import choice

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("wide", deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="module", params=["native", "torch"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test of a module with and without compiled code. Of the module's scope: hypothesis asks for that."""
    if request.param == "native" and choice.native is None:
        pytest.skip(f"no compiled code: {choice.problem}")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(choice, "native", None)
        yield
