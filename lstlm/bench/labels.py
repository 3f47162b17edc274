"""What is written into pictures: a caption, and names at the ends of lines instead of a legend, moved apart."""

from collections.abc import Mapping
from typing import Any

GAP = 10.5  # points from one name to the next


def spread(heights: list[float], gap: float) -> list[float]:
    """Return heights at least `gap` apart, in the same order, moved as little as a simple rule can.

    Heights that are too close form a block with even gaps around its mean; blocks that then touch are merged.
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    blocks: list[tuple[float, list[int]]] = []  # (centre, members from below)
    for i in order:
        blocks.append((heights[i], [i]))
        while len(blocks) > 1 and _top(blocks[-2], gap) + gap > _bottom(blocks[-1], gap):
            (_, lower), (_, upper) = blocks[-2], blocks[-1]
            members = lower + upper
            blocks[-2:] = [(sum(heights[j] for j in members) / len(members), members)]
    placed = list(heights)
    for block in blocks:
        for position, i in enumerate(block[1]):
            placed[i] = _bottom(block, gap) + position * gap
    return placed


def _bottom(block: tuple[float, list[int]], gap: float) -> float:
    return block[0] - gap * (len(block[1]) - 1) / 2


def _top(block: tuple[float, list[int]], gap: float) -> float:
    return block[0] + gap * (len(block[1]) - 1) / 2


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
