"""``lstlm verify``: the factored and the naive output layer side by side."""

from dataclasses import asdict, fields

import click

from lstlm.cli.common import FROM_0, FROM_1, is_quiet, json_option, option, print_json, print_table
from lstlm.cores import worthwhile_threads
from lstlm.registry import LOSSES

EPILOGUE = """\b
Example:
  lstlm verify
  lstlm verify --steps 1000 --dtype float32
  lstlm verify --loss z --json
"""


@click.command("verify", epilog=EPILOGUE)
@option("--steps", type=FROM_1, default=200, help="Updates of each layer.")
@option("--dtype", type=click.Choice(["float64", "float32"]), default="float64",
        help="Precision of the factored layer; the naive one, the truth, is always in float64.")  # fmt: skip
@option("--loss", "losses", type=click.Choice(LOSSES.names()), multiple=True, help="Only this loss; may be repeated.")
@option("--seed", type=FROM_0, default=1, help="Seed of weights and minibatches.")
@json_option
def command(steps: int, dtype: str, losses: tuple[str, ...], seed: int, as_json: bool) -> None:
    """Train the factored and the naive output layer on the same minibatches, and show how far they are apart.

    Each number is a relative error ‖factored − naive‖ / ‖naive‖: of the weights W and of what is tracked beside them
    (Q = WᵀW, w̄ = Wᵀ1, U⁻ᵀ) after the last update; of the gradients to the hidden layer and of the losses over all
    steps. Exits with 1 if one is above 1e-9 in float64, or 1e-3 in float32.
    """
    import torch

    from lstlm.bar import Bar
    from lstlm.bench.verification import BATCH, BOUND, HIDDEN, VOCAB, Errors, compare
    from lstlm.sealed import finite_or_none

    torch.set_num_threads(worthwhile_threads(3 * BATCH * HIDDEN * VOCAB, torch.get_num_threads()))
    chosen = losses or LOSSES.names()
    with Bar(total=steps * len(chosen), unit="step", desc="verify", leave=False, disable=is_quiet() or None) as bar:
        errors = {loss: compare(loss, steps, dtype, seed, bar.update) for loss in chosen}
    worst = max(found.worst() for found in errors.values())
    agree = worst <= BOUND[dtype]
    if as_json:
        facts = {"dtype": dtype, "steps": steps, "seed": seed, "bound": BOUND[dtype], "agree": agree}
        found = {loss: asdict(error) for loss, error in errors.items()}
        print_json(finite_or_none({"losses": found, **facts}))
    else:
        rows = [[loss, *(f"{value:.1e}" for value in asdict(found).values())] for loss, found in errors.items()]
        print_table([["loss", *(field.name for field in fields(Errors))], *rows], numbers=range(1, len(rows[0])))
        verdict = "the same layer" if agree else "NOT the same layer"
        click.echo(f"\n{verdict}: largest error {worst:.1e}, bound {BOUND[dtype]:.0e} ({dtype}, {steps} steps)")
    if not agree:
        click.get_current_context().exit(1)
