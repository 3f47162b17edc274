"""Which method has which colour and dash, in every picture."""

# Okabe and Ito's colours, which the colour-blind tell apart, without the yellow that vanishes on paper.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#777777",
)  # fmt: skip
COLOURS = {
    "factored": BLUE,
    "naive": BLACK,
    "naive-blocked": GREY,
    "softmax": VERMILION,
    "hierarchical": GREEN,
    "adaptive": PURPLE,
    "sampled": ORANGE,
    "shortlist": SKY,
}
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
DASHES = ("-", "--", "-.", ":")
