"""Both ways to compute: by compiled code, where it was built, and without."""

from collections.abc import Iterator

import pytest
import torch

from lstlm.spherical import native


@pytest.fixture(scope="module", params=["compiled", "interpreted"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test of a module twice. Of the module's scope, because hypothesis asks for that."""
    if request.param == "compiled" and native.kernel_for(torch.zeros(1)) is None:
        pytest.skip("the kernel was not compiled")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "interpreted":
            patch.setattr(native, "_load", lambda dtype: None)
        yield
