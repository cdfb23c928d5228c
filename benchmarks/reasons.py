"""Why a figure is above its bar, where that is understood; it stands beside the row."""

import re

from benchmarks.figures import Figure

# Section, what the subject and the ratio are like -> why.
_REASONS: tuple[tuple[str, str, str, str], ...] = (
    (
        "step time",
        "bfloat16",
        "exact / torch",
        "the old API rounds to bfloat16 after every operation (Adam 15 times an element), PyTorch "
        "once an array by a fused kernel (3 times), else after each of its fewer calls; XLA rounds "
        "by integer arithmetic, one_loop by less of it: CPU step",
    ),
    (
        "step time",
        "400 x 64x64|transformer",
        "exact / torch",
        "JAX takes and returns the arrays one by one; joined in one they take a third: CPU step",
    ),
    (
        "step time",
        "float32",
        "exact / torch",
        "XLA makes a loop for each array of the state, which together read and write 10 arrays for "
        "Adam where 7 would do (Adagrad 7 for 5, momentum 6 for 5); one_loop joins them: CPU step",
    ),
    (
        "step time",
        "^(adam|adabelief|adadelta),",
        "exact / stock",
        "the old API subtracts lr * weight_decay * p even where the decay is 0 (of an infinity "
        "that makes NaN): without these two operations there are no more than in Optax's step",
    ),
    (
        "growth",
        "^compile,",
        "exact / ",
        "LLVM compiles as many loops as for Optax (one more where more than 32 parameters are "
        "alike), but XLA's passes before it have more to read: the decay that is subtracted even "
        "at 0, and each parameter's own bias correction, which they join at their end: 8,726 "
        "instructions for Optax's 6,164 after fusion with 8 groups, 8,838 for 7,172 with 64, 686 "
        "for 492 of 10 leaves (README: what was tried)",
    ),
    (
        "tools",
        "^convert to orbax",
        "peak memory",
        "Orbax takes all arrays at once, as JAX's; it needs 11 to 17 MiB besides, whatever the "
        "file's size",
    ),
    (
        "tools",
        "^the trainer's step",
        "/ bare TrainState$",
        "it looks at each loss when the next step has begun, so that no undefined one goes by, and "
        "wakes for that in each step: some 1.5 ms of Python for 0.3, where XLA wants all cores. "
        "The compiled steps do the same; a bare loop that looks at each loss takes as long",
    ),
    (
        "CPU step",
        "^16 .*, bfloat16: one_loop",
        "",
        "it rounds after each of 16 operations; without any, which is other bits, the same loop "
        "took 0.94. Rounding by lax.reduce_precision took 4.2, by a comparison in place of the "
        "shift 1.9, and with XLA's own conversion where arrays become bfloat16 again 3.5. No flag "
        "makes XLA round by the processor's own instruction",
    ),
    (
        "CPU step",
        "^400 x 64x64.*: one_loop(,|$)(?! one flat)",
        "",
        "not the loops take the time, but to take and return 1,600 arrays",
    ),
)


def reason(figure: Figure) -> str:
    """Why a figure is above its bar; empty where it is not, or where nobody knows."""
    if figure.kept:
        return ""
    for section, subject, what, text in _REASONS:
        fits = re.search(subject, figure.subject) and re.search(what, figure.what)
        if figure.section == section and fits:
            return text
    return ""
