"""Part ``fidelity``: what a program computes on the virtual device against the same GPU natively."""

from __future__ import annotations

from gpu.figures import ATTENTION_CASES, RECURRENT_MODELS, SMALL_MODELS, SWEEP_DTYPES
from gpu.peer import Peer
from gpu.trial import NOT_REHEARSED, Trial
from gpu.worker import Session

NAMES_SHOWN = 12
SWEEP_SHARE = 0.2
"""Of the time that is left: each of the two sides' run of the operators in one dtype."""


def run(trial: Trial, _: float | None) -> None:
    """Takes the part's figures."""
    with trial.native() as native:
        with trial.session() as session:
            for case in ATTENTION_CASES:
                attend(trial, session, native, case)
            train(trial, session, native)
            drop(trial, session)
        for dtype in SWEEP_DTYPES:
            sweep(trial, native, dtype)


def attend(trial: Trial, session: Session, native: Peer, case: str) -> None:
    """Attention takes the kernel that it takes natively, or one as fast, and gives the same."""
    kernel, apart = f"attention {case}: native's kernel, or a fused one for cuDNN's", f"attention {case}, largest difference"
    with trial.report.figures(kernel, apart):
        mine, theirs = str(trial.root / "mine.pt"), str(trial.root / "theirs.pt")
        taken = session.peer.call("operators.attention", case=case, path=mine)
        natively = native.call("operators.attention", case=case, path=theirs)
        trial.report.take(kernel, stands_for(taken, natively), f"{taken}, natively {natively}")
        if case == "dropout":
            trial.report.skip(apart, "each draws its own chance")
        else:
            trial.report.take(apart, native.call("operators.apart", one=mine, other=theirs))


def stands_for(taken: str, natively: str) -> bool:
    """Flash attention serves where cuDNN's would natively, or an efficient kernel with a mask: cuDNN's is not on the allow-list."""
    return taken == natively or ("Cudnn" in natively and any(kernel in taken for kernel in ("Flash", "Efficient")))


def train(trial: Trial, session: Session, native: Peer) -> None:
    """The models' losses are those of native training, as parts of the first one: a batch that is known by heart leaves rounding alone."""
    cases = [(f"training {model}, largest difference of a loss", model, False) for model in (*SMALL_MODELS, *RECURRENT_MODELS)]
    cases.append(("training gpt2 in bf16 autocast, largest difference of a loss", "gpt2", True))
    for name, model, autocast in cases:
        with trial.report.figures(name):
            arguments = {"model": model, "steps": trial.sizes.training_steps, "autocast": autocast}
            mine, theirs = (peer.call("models.losses", **arguments) for peer in (session.peer, native))
            apart = max(abs(one - other) for one, other in zip(mine, theirs, strict=True)) / abs(theirs[0])
            trial.report.take(name, apart, f"last loss {mine[-1]:.4f}, natively {theirs[-1]:.4f}")


def drop(trial: Trial, session: Session) -> None:
    """Chance is the client's: one seed gives the same on another worker, and another one something else."""
    name = "dropout of one seed is the same on two workers"
    with trial.report.figures(name):
        first = session.peer.call("models.dropped", seed=7)
        other_seed = session.peer.call("models.dropped", seed=8)
        with trial.session() as second:
            again = second.peer.call("models.dropped", seed=7)
        note = f"losses {first[-1]:.6f}, {again[-1]:.6f}; another seed {other_seed[-1]:.6f}"
        trial.report.take(name, first == again and first != other_seed, note)


def sweep(trial: Trial, native: Peer, dtype: str) -> None:
    """PyTorch's operator database, as far as the time goes; both sides in step."""
    alike, tried = f"operators alike, {dtype}", f"operators tried, {dtype}"
    if dtype not in trial.sizes.sweep_dtypes:
        for name in (alike, tried):
            trial.report.skip(name, NOT_REHEARSED)
        return
    with trial.report.figures(alike, tried), trial.session() as session:
        names = native.call("operators.entries", dtype=dtype, most=trial.sizes.operators)
        files = {side: str(trial.root / f"{side}-{dtype}.pt") for side in ("virtual", "native", "again")}
        trial.report.need(10, "a sweep")
        seconds = trial.report.seconds_left * (SWEEP_SHARE if dtype == SWEEP_DTYPES[0] else 2 * SWEEP_SHARE)
        session.peer.start("operators.compute", dtype=dtype, names=names, path=files["virtual"], seconds=seconds)
        native.call("operators.compute", 2 * seconds + 60, dtype=dtype, names=names, path=files["native"], seconds=seconds)
        came_to = session.peer.finish(2 * seconds + 60)
        native.call("operators.compute", 2 * seconds + 60, dtype=dtype, names=names[:came_to], path=files["again"], seconds=seconds, seed=1)
        found = native.call("operators.compare", dtype=dtype, virtual=files["virtual"], native=files["native"], again=files["again"])
        different = found["different"]
        shown = ", ".join(f"{name} ({why})" for name, why in list(different.items())[:NAMES_SHOWN])
        more = f" and {len(different) - NAMES_SHOWN} more" if len(different) > NAMES_SHOWN else ""
        trial.report.take(tried, found["compared"], f"{came_to} of {len(names)} entries in time")
        trial.report.take(alike, 100 * found["alike"] / max(1, found["compared"]), f"different: {shown}{more}" if different else "")
