"""Several processes, one model: rows of the large matrices by turns, everything else on every rank."""

from lstlm.distributed.embedding import ShardedEmbedding
from lstlm.distributed.ranks import TIMEOUT_S, RankLost, Ranks

__all__ = ["TIMEOUT_S", "RankLost", "Ranks", "ShardedEmbedding"]
