"""What compiled code is given is checked where it is entered; nothing is written when something does not fit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lstlm.errors import ConfigError
from lstlm.kernels import choice, ops, step_ops
from lstlm.kernels.choice import native
from lstlm.kernels.layout import Layout
from lstlm.kernels.targets import Targets
from tests.helpers import PATIENCE_S

SOURCES = Path(choice.__file__).parent / "native"
pytestmark = pytest.mark.skipif(native is None, reason=f"no compiled code: {choice.problem}")


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(*shape, dtype=dtype)


@pytest.mark.parametrize(
    ("table", "ids", "out", "error"),
    [
        (floats(5, 4), torch.tensor([1, 5]), floats(2, 4), IndexError),
        (floats(5, 4), torch.tensor([1, -1]), floats(2, 4), IndexError),
        (floats(5, 4), torch.tensor([1, 2]), floats(2, 3), ValueError),
        (floats(5, 4), torch.tensor([1, 2]), floats(3, 4), ValueError),
        (floats(5, 4), torch.tensor([1, 2]), floats(2, 4, dtype=torch.float64), TypeError),
        (floats(5, 4), torch.tensor([1, 2], dtype=torch.int32), floats(2, 4), TypeError),
        (floats(5, 4), torch.tensor([1, 9, 2, 9])[::2], floats(2, 4), ValueError),
        (floats(4, 5).T, torch.tensor([1, 2]), floats(2, 4), ValueError),
        (floats(1, 4).expand(5, 4), torch.tensor([1, 2]), floats(1, 4).expand(2, 4), ValueError),
        (floats(5), torch.tensor([1, 2]), floats(2, 4), ValueError),
        (floats(5, 4).to(torch.bfloat16), torch.tensor([1, 2]), floats(2, 4), TypeError),
        (floats(5, 4).to(torch.complex64), torch.tensor([1, 2]), floats(2, 4), TypeError),
        ([floats(5, 4)], torch.tensor([1, 2]), floats(2, 4), TypeError),
        (None, torch.tensor([1, 2]), floats(2, 4), TypeError),
    ],
)
def test_what_does_not_fit_is_refused(table: Tensor, ids: Tensor, out: Tensor, error: type[Exception]) -> None:
    before = out.clone()
    with pytest.raises(error):
        native.sum_rows(table, ids, 1, 2.0, out, 1)
    assert torch.equal(out, before)


def test_numbers_and_counts_of_arguments() -> None:
    table, ids, out = floats(5, 4), torch.tensor([1, 2]), floats(2, 4)
    for wrong in ((table, ids, 1, 2.0), (table, ids, 1, 2.0, out, 1, 0), ()):
        with pytest.raises(TypeError):
            native.sum_rows(*wrong)
    for each, scale in ((0, 1.0), (-1, 1.0), (3, 1.0)):
        with pytest.raises(ValueError, match="each"):
            native.sum_rows(table, ids, each, scale, out, 1)
    with pytest.raises(TypeError):
        native.sum_rows(table, ids, "1", 1.0, out, 1)
    with pytest.raises(OverflowError):
        native.sum_rows(table, ids, 2**70, 1.0, out, 1)
    with pytest.raises(TypeError):
        native.adagrad([table], (table,), [table], [], 0.1, 1e-10, 1)
    with pytest.raises(ValueError, match="64"):
        native.adagrad([table] * 65, [table] * 65, [table] * 65, [], 0.1, 1e-10, 1)
    with pytest.raises((BufferError, RuntimeError)):
        native.sum_rows(table.to("meta"), ids, 1, 1.0, out, 1)


def test_a_tensor_in_name_only_is_left_to_torch() -> None:
    class Named(Tensor):
        pass

    table = floats(5, 4).as_subclass(Named)
    assert choice.native_for("auto", table) is None
    with pytest.raises(TypeError, match="tensor"):
        native.sum_rows(table, torch.tensor([1]), 1, 1.0, floats(1, 4), 1)
    with pytest.raises(ConfigError, match="impl='native'"):
        ops.read_rows(table, torch.tensor([1]), impl="native")


def test_rows_may_be_apart_and_parameters_are_tensors() -> None:
    table = torch.arange(30.0).view(5, 6)
    parameter = torch.nn.Parameter(table)
    for given in (table[:, :4], parameter[:, :4].detach()):
        assert torch.equal(ops.read_rows(given, torch.tensor([3, 0]), impl="native"), table[[3, 0], :4])
    assert torch.equal(ops.read_rows(parameter, torch.tensor([2]), impl="native"), table[[2]])


@pytest.mark.parametrize("d", [1, 2, 37])
def test_both_forms_have_one_layout(d: int) -> None:
    at = Layout(d)
    assert native.layout(d) == (at.Q.start, at.omega, at.w_bar, at.U_inv_T.start, at.U.start, at.recent.start)
    assert at.table_rows == at.recent.stop and at.product_rows == at.table_rows + d
    shifted = {"HQ": at.Q, "HU_inv": at.U_inv_T, "HU": at.U, "of_read": at.read, "HU_and_steps": at.U_and_recent}
    for name, block in shifted.items():
        assert getattr(at, name) == slice(block.start + d, block.stop + d)


def test_compiled_code_has_no_numbers_of_its_own() -> None:
    """It works in tensors of the caller's, so that whoever watches what torch allocates sees all of it."""
    for path in SOURCES.iterdir():
        code = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"\b(malloc|calloc|realloc|alloca|std::vector|std::unique_ptr|make_unique)\b", code), path
        made = re.findall(r"\bnew (\w+)", code)
        assert made == (["Threads", "Threads"] if path.name == "threads.h" else []), path


def test_a_failed_load_is_told(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['lstlm.kernels._native'] = None\n"
        "from lstlm.kernels import choice\n"
        "said = choice.describe()\n"
        "assert said['kernels'] == 'torch' and '_native' in said['why_not_native'], said\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S).returncode == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("d", "m"), [(3, 2), (17, 8), (40, 33)])
def test_a_step_in_both_forms_under_one_error_budget(d: int, m: int, dtype: torch.dtype) -> None:
    """Operation by operation: compiled code is about as near to the truth, torch in float64, as torch itself."""
    found = {impl: one_step(d, m, dtype, impl) for impl in ("native", "torch")}
    exact = one_step(d, m, torch.float64, "torch")
    for name, truth in exact.items():
        errors = [float((found[impl][name].double() - truth).abs().max()) for impl in ("native", "torch")]
        scale = float(truth.abs().max()) + 1
        assert errors[0] <= 2 * errors[1] + 30 * torch.finfo(dtype).eps * scale, name


def one_step(d: int, m: int, dtype: torch.dtype, impl: choice.Impl) -> dict[str, Tensor]:
    """Return everything that the operations of a low-rank step give, from the same numbers."""
    draw = torch.Generator().manual_seed(d)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(dtype)

    at, width = Layout(d), ops.aligned_width(d)
    table, base = (torch.zeros(rows, width, dtype=dtype) for rows in (at.table_rows, d + 2))
    deviation = random(2, d)
    table[:, :d] = 0.3 * random(at.table_rows, d)
    base[:, :d] = random(d + 2, d)
    for block, apart in ((at.U_inv_T, deviation[0]), (at.U, deviation[1])):
        table[block, :d].diagonal().copy_(apart).add_(1)
    ids = torch.arange(2 * m) // 3
    targets = Targets(
        ids, torch.ones(2 * m), m, torch.cat([torch.zeros(1), torch.arange(1, m) * 2 - 1, 2 * torch.ones(1) * m]).long()
    )
    h, rows, p = random(m, d - 1), random(len(ids.unique()), d), random(2 * m).abs() + 0.5
    partials = 0.1 * random(5 * m)
    HT, products, outputs = step_ops.low_rank_outputs(table, h, rows, targets, p, impl=impl)
    gradient = step_ops.low_rank_backward(table, rows, targets, p, partials, products, impl=impl)
    shrinking = step_ops.low_rank_shrink(HT, partials[m : 2 * m], 0.05, impl=impl)
    result = {"outputs": outputs, "gradient": gradient, "A": shrinking.A.clone(), "HT": HT}
    result["bounds"] = torch.tensor([shrinking.absolute, shrinking.trace, shrinking.products])
    tables = step_ops.Tables(table, base, deviation)
    J = step_ops.low_rank_update(tables, targets, HT, partials, products, 7.0, shrinking, 0.05, 4, impl=impl)
    X, Y, alphas = random(2, d).double(), random(2, d).double(), torch.tensor([0.5, -0.2], dtype=torch.float64)
    result |= {"J": J, "table": table.clone(), "deviation": deviation.clone()}
    step_ops.repair_frame(tables, X / d, alphas, Y / d, impl=impl)
    result |= {"repaired": table[:, :d], "repaired_deviation": deviation}
    start = torch.eye(d, dtype=torch.float64)[:2] + 0.01
    for name, value in zip(("X", "image"), step_ops.power_iteration(base[:d, :d], start, 1, impl=impl), strict=True):
        result[name] = value
    missed, seen = random(9, d), torch.tensor([0, 3, 1, 2, 0, 3, 3, 1, 0])
    step_ops.repair_rows(missed, seen, 0.3 * random(5, d), 0.3 * random(5, d), 1, 3, impl=impl)
    result["missed"] = missed
    return result
