"""Output layers behind one protocol: factored, naive, shortlist, softmax, hierarchical, adaptive, sampled."""

from lstlm.outputs.adaptive import AdaptiveSoftmax
from lstlm.outputs.dropin import ShortlistSoftmax
from lstlm.outputs.hierarchical import HierarchicalSoftmax, assign_classes
from lstlm.outputs.making import make_output
from lstlm.outputs.sampled import SampledSoftmax
from lstlm.outputs.shortlist import ShortlistOutput
from lstlm.outputs.softmax import FullSoftmax
from lstlm.protocol.output_layer import OutputLayer

__all__ = [
    "AdaptiveSoftmax",
    "FullSoftmax",
    "HierarchicalSoftmax",
    "OutputLayer",
    "SampledSoftmax",
    "ShortlistOutput",
    "ShortlistSoftmax",
    "assign_classes",
    "make_output",
]
