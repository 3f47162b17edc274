"""`WholePass`: a minibatch from its words to the loss and back in four calls of compiled code.

It gives the very numbers that `Network.begin`, `value_and_grad` and `Encoding.backward` give, which take the same
functions of `kernel/` one by one. What it saves is the way between them: some hundred small operations, each of which
finds the interpreter's memory gone from the caches. Everything it needs is made once, so there is one for each size of
minibatch. It is for the usual network: words, hidden layers in float32, a factored output layer on the CPU.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lstlm.nn.layers import Compiled, SparseEmbedding, way_for
from lstlm.nn.network import Network
from lstlm.spherical import SphericalOutput
from lstlm.spherical.compiled import CompiledLowRank, begin, is_compiled
from lstlm.spherical.host import to_host
from lstlm.spherical.native import Below
from lstlm.spherical.pending import Pending
from lstlm.spherical.rows import outside


class WholePass:
    """Takes minibatches of m examples of n words through a network: the loss and all gradients."""

    def __init__(self, network: Network, way: Compiled, m: int, n: int) -> None:
        """Make room for everything; `make` says whether this is a network for it."""
        output, embedding, E = network.output, network.embedding, network.embedding.table()
        assert isinstance(output, SphericalOutput) and isinstance(embedding, SparseEmbedding)
        self.head, self.kernel, self.state, self.embedding = output, way.kernel, output.state, embedding
        self.parameters = network.hidden.weights()
        matrices = self.parameters[::2]
        self.context, self.ids = (torch.zeros(m, k, dtype=torch.int64) for k in (n, 1))
        self.words = to_host(self.context), to_host(self.ids)[:, 0]  # the same, to write into
        self.x = E.new_empty(m, matrices[0].shape[1]).requires_grad_()
        self.x.grad = torch.empty_like(self.x).detach()
        HT = E.new_ones(self.state.d, m)  # the results of the last layer, and the constant feature

        buffers = self.state.buffers_for_c(E.dtype)
        assert buffers is not None
        self.output = CompiledLowRank(self.state, HT.T, self.ids, self.kernel, buffers)
        self.output.prepare()
        ones, upstream = np.ones((m, 1)), np.full(m, 1 / m)
        self.grad_HT = self.output.aim(output.loss, ones, upstream)
        self.pending = Pending(self.output, torch.from_numpy(ones), upstream=upstream)
        self.losses = to_host(self.output.partials[0])

        results = [*(E.new_empty(A.shape[0], m) for A in matrices[:-1]), HT[: output.hidden]]
        self.gradients = [torch.empty_like(p).detach() for p in self.parameters]
        tensors = zip(matrices, self.parameters[1::2], results, self.gradients[::2], self.gradients[1::2], strict=True)
        activation, count, layers = way.layers_for_c([*tensors])
        largest = max(A.shape[0] for A in matrices)
        spare = E.new_empty(2, largest, m)
        self.kept = results, spare, layers  # C code has their addresses
        each, scale = {"concat": (1, 1.0), "sum": (n, 1.0), "mean": (n, 1 / n)}[embedding.combine]
        self.below = Below(
            m=m,
            D=E.shape[0],
            size=E.shape[1],
            bags=m * n // each,
            each=each,
            scale=scale,
            E=E.data_ptr(),
            context=self.context.data_ptr(),
            activation=activation,
            count=count,
            largest=largest,
            layers=ctypes.addressof(layers),
            x=self.x.data_ptr(),
            dx=self.x.grad.data_ptr(),
            dY=self.grad_HT.data_ptr(),
            spare=spare.data_ptr(),
        )
        self.addresses = self._addresses()

    @classmethod
    def make(cls, network: Network, m: int, n: int) -> WholePass | None:
        """Return one where the network is of the usual kind, and compiled code can read it."""
        output, embedding, parameters = network.output, network.embedding, network.hidden.weights()
        if type(output) is not SphericalOutput or type(embedding) is not SparseEmbedding:
            return None
        if not (is_compiled(output.loss) and all(p.requires_grad for p in parameters)):
            return None
        E, state = embedding.weight, output.state
        combined = E.shape[1] * (n if embedding.combine == "concat" else 1)
        way = way_for(E.new_zeros(m, combined), network.hidden.activation, parameters)
        if not isinstance(way, Compiled) or not E.is_contiguous():
            return None
        step = begin(state, E.new_zeros(m, state.d), torch.zeros(m, 1, dtype=torch.int64), way.kernel)
        return cls(network, way, m, n) if isinstance(step, CompiledLowRank) else None

    def _addresses(self) -> list[int] | None:
        """Return where everything is that C code has the address of and others could move."""
        buffers = self.state.buffers_for_c(self.x.dtype)
        if buffers is None:
            return None
        return [x.data_ptr() for x in (self.embedding.weight, *self.parameters, *buffers)]

    def __call__(self, context: Tensor, ids: Tensor, lap: Callable[[str], None]) -> float | None:
        """Return the mean loss for context (m,n), ids (m,); leave gradients and a pending update behind.

        None, with nothing changed, where ids or numbers are not what they should be: the network's own way knows what
        to say about it. `lap` hears of every phase as it ends.
        """
        output, kernel, given = self.output, self.kernel, (to_host(context), to_host(ids))
        if any(mine.shape != its.shape for mine, its in zip(self.words, given, strict=True)):
            return None
        if self._addresses() != self.addresses:
            return None
        for mine, its in zip(self.words, given, strict=True):
            mine[...] = its
        self.below.by = output.step.by = kernel.products
        if kernel.below_forward(ctypes.byref(self.below)) >= 0 or outside(self.ids, self.state.D) is not None:
            return None
        lap("hidden_forward")
        output.again()
        output.read()
        if not kernel.differentiate(ctypes.byref(output.step)):
            return None
        lap("output")
        total, loss = kernel.below_backward(ctypes.byref(self.below)), float(self.losses.mean())
        if not math.isfinite(total + loss):
            return None
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.embedding.remember(self.context, self.x)
        self.head.await_update(self.pending)
        lap("backward")
        return loss
