"""Output layers behind one protocol: factored, naive, softmax, hierarchical, adaptive, sampled."""

from lstlm.outputs.adaptive import AdaptiveSoftmax
from lstlm.outputs.hierarchical import HierarchicalSoftmax, assign_classes
from lstlm.outputs.protocol import OutputLayer, make_output
from lstlm.outputs.sampled import SampledSoftmax
from lstlm.outputs.softmax import FullSoftmax

__all__ = [
    "AdaptiveSoftmax",
    "FullSoftmax",
    "HierarchicalSoftmax",
    "OutputLayer",
    "SampledSoftmax",
    "assign_classes",
    "make_output",
]
