"""What is written into pictures: a caption, and names at the ends of lines instead of a legend, moved apart."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

GAP = 10.5  # points from one name to the next


def spread(heights: list[float], gap: float) -> list[float]:
    """Return heights at least `gap` apart, in the same order, moved as little as can be (least squares).

    Less its rank times the gap, a height may equal the one before but not fall below it: neighbours that do are
    pooled, and every pool stands at its mean.
    """
    order = sorted(range(len(heights)), key=heights.__getitem__)
    pools: list[list[float]] = []
    for rank, i in enumerate(order):
        pools.append([heights[i] - rank * gap])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            upper = pools.pop()
            pools[-1] += upper
    placed = list(heights)
    for rank, (i, level) in enumerate(zip(order, (fmean(pool) for pool in pools for _ in pool), strict=True)):
        placed[i] = level + rank * gap
    return placed


def place(axes: Any, ends: Mapping[str, tuple[float, float]], colours: Mapping[str, str]) -> None:
    """Write each name to the right of the axes, level with the end of its line; thin lines lead there.

    Places are fractions of the axes, because the layout makes the axes narrower to give the names room.
    """
    if not ends:
        return
    axes.figure.draw_without_rendering()  # the scales are final only now
    names = list(ends)
    to_axes = axes.transAxes.inverted()
    heights = [float(to_axes.transform(axes.transData.transform(ends[name]))[1]) for name in names]
    size = axes.get_window_extent().height * 72.0 / axes.figure.dpi
    for name, height in zip(names, spread(heights, GAP / size), strict=True):
        axes.annotate(
            name,
            ends[name],
            xytext=(1.05, height),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=colours[name],
            arrowprops={
                "arrowstyle": "-",
                "color": colours[name],
                "linewidth": 0.5,
                "linestyle": (0, (1, 2)),  # dotted: a leader is no data
                "shrinkA": 0,
                "shrinkB": 2,
                "relpos": (0, 0.5),
            },
            annotation_clip=False,
        )


def caption(figure: Any, text: str) -> None:
    """Write above everything what the picture is of."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=9, color="#444444")
