"""The word vectors of a trained network: input table, output weights, or their sum."""

from collections.abc import Sequence

from lstlm.errors import ConfigError
from lstlm.nn.network import Network
from lstlm.vectors import Vectors

WHICH = ("input", "output", "sum")


def word_vectors(
    network: Network, words: Sequence[str], which: str = "input", counts: Sequence[int] | None = None
) -> Vectors:
    """`input`: embeddings (D,embedding); `output`: weights of the last layer (D,hidden); `sum`: both, row by row."""
    if which not in WHICH:
        raise ConfigError(f"--which {which!r}: one of {', '.join(WHICH)}")
    table = network.output_vectors() if which == "output" else network.input_vectors()
    if which == "sum":
        output = network.output_vectors()
        if output.shape != table.shape:
            raise ConfigError(
                f"--which sum needs input and output vectors of one length; these have {table.shape[1]} and "
                f"{output.shape[1]}: train with model.embedding equal to the last of model.hidden, or use --which input"
            )
        table = table + output
    return Vectors(words, table.detach().cpu().numpy(), counts)
