"""The colours of a chart's boxes, drawn with matplotlib or as SVG."""

from ppcourse.analysis.timeline import Timeline
from ppcourse.schedules.action import Op

Colour = tuple[float, float, float]
"""Red, green, blue, each from 0 to 1."""

# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = {Op.F: "#56B4E9", Op.B: "#D55E00", Op.I: "#F0E442", Op.W: "#009E73"}
MEANINGS = {Op.F: "F  forward", Op.B: "B  backward", Op.I: "I  input gradient", Op.W: "W  weight gradient"}
IDLE = "#E6E6E6"
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # for curves
LATER = "(lighter: the rank's later stages)"


def shades(timeline: Timeline) -> dict[tuple[int, int, Op], Colour]:
    """The colour of an op of a stage on a rank: lighter for the later ones of the rank's stages."""
    found = {}
    for rank, row in enumerate(timeline.by_rank):
        stages = sorted({span.action.stage for span in row})
        for chunk, stage in enumerate(stages):
            white = 0.6 * chunk / max(1, len(stages) - 1)
            for op, colour in COLOURS.items():
                red, green, blue = (white + (1 - white) * part for part in parts(colour))
                found[rank, stage, op] = (red, green, blue)
    return found


def parts(colour: str) -> Colour:
    """`#56B4E9` as three numbers from 0 to 1."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def written(colour: Colour) -> str:
    """Three numbers from 0 to 1 as `#56B4E9`."""
    return "#" + "".join(f"{round(255 * part):02X}" for part in colour)
