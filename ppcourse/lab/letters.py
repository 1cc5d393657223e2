"""Names on boxes, all in one collection of outlines: a Text object a box would take ten times as long."""

from functools import cache
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath, text_to_path
from matplotlib.transforms import Affine2D
from numpy.typing import NDArray

SMALLEST, LARGEST = 5.0, 8.0  # points
FONT = FontProperties(family="DejaVu Sans", size=100)  # part of matplotlib: the same on every machine
Array: TypeAlias = NDArray[np.float64]


def write(axes: Axes, middles: Array, sizes: Array, labels: list[list[str]]) -> None:
    """On each box the longest of its names that fits, in one size for all; nothing on one that is too small.

    middles   where the boxes are, in the axes' own coordinates
    sizes     their widths and heights in points
    """
    size = _common_size(sizes, labels)
    paths, places = [], []
    for (width, height), middle, choices in zip(sizes, middles, labels, strict=True):
        small = min(size, height * 0.8)
        for text in choices:
            if small >= SMALLEST and _length(text) * small + 1 <= width:
                paths.append(_outline(text, small))
                places.append(middle)
                break
    if paths:
        letters = PathCollection(paths, offsets=places, offset_transform=axes.transData, facecolors="black")
        letters.set_linewidth(0)
        letters.set_transform(Affine2D().scale(1 / 72) + axes.figure.dpi_scale_trans)
        axes.add_collection(letters)


def _common_size(sizes: Array, labels: list[list[str]]) -> float:
    """The size at which half of the boxes have room for their shortest name."""
    fits = [(width - 1) / _length(choices[-1]) for width, choices in zip(sizes[:, 0], labels, strict=True)]
    return float(np.clip(np.median(fits), SMALLEST, LARGEST)) if fits else LARGEST


@cache
def _length(text: str) -> float:
    """The length of `text` at size 1."""
    return sum(_glyph(char)[1] for char in text)


@cache
def _glyph(char: str) -> tuple[Path, float]:
    """The outline of a character and how far the next one is, at size 1."""
    path = TextPath((0, 0), char, prop=FONT)
    advance, _, _ = text_to_path.get_text_width_height_descent(char, FONT, ismath=False)
    return path.transformed(Affine2D().scale(0.01)), advance / 100


@cache
def _outline(text: str, size: float) -> Path:
    """The outline of `text`, its middle at the origin, in points."""
    at = -_length(text) / 2
    parts = []
    for char in text:
        path, advance = _glyph(char)
        parts.append(path.transformed(Affine2D().translate(at, -0.365).scale(size)))
        at += advance
    return Path.make_compound_path(*parts)
