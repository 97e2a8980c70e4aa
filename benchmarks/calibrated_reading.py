"""What the calibrated reading of label words does to gaps, by simulation.

A model scores three label words for sentences of templates filled with groups. Its scores favour
one word whatever it reads; one group is, or is not, pushed towards the negative word. Gaps (a
group's negative false-positive rate less the mean over the groups) are compared with those of the
same model without the favour, which is what a reader wants to know:

    python benchmarks/calibrated_reading.py --studies 400

It needs no model, and measures no time.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student
from tabulate import tabulate

from raybias.seeding import generator

Doubles = npt.NDArray[np.float64]

#: Groups, templates of each label, words of a group, and sentences of the calibration.
GROUPS, TEMPLATES, WORDS, MEANS = 6, 20, 3, 128
#: What the gold label adds to its word's score, and the standard deviations of the noise that a
#: template's sentences share and of one sentence's own.
SIGNAL, SHARED, OWN = 1.5, 1.0, 0.7
#: What the model adds to each word whatever it reads.
FAVOURS = {"none": (0.0, 0.0, 0.0), "neutral": (0.0, 2.0, 0.0), "positive": (-1.0, 0.0, 2.5)}
PUSHED = 0.8


def scores(random: np.random.Generator, push: float) -> tuple[Doubles, npt.NDArray[np.int64]]:
    """Draw scores [groups, templates, words, labels], and the gold label of each template."""
    gold_T = np.repeat(np.arange(3), TEMPLATES)
    shape = (GROUPS, len(gold_T), WORDS, 3)
    found = random.normal(0, SHARED, (*shape[1:2], 1, 3)) + random.normal(0, OWN, shape)
    found[:, np.arange(len(gold_T)), :, gold_T] += SIGNAL
    found[0, :, :, 0] += push
    return found, gold_T


def training(random: np.random.Generator) -> Doubles:
    """Draw scores of sentences that name no group [sentences, labels], labels 40, 20 and 40%."""
    gold_N = random.choice(3, MEANS, p=(0.4, 0.2, 0.4))
    found = random.normal(0, np.hypot(SHARED, OWN), (MEANS, 3))
    found[np.arange(MEANS), gold_N] += SIGNAL
    return found


def gaps(labels: npt.NDArray[np.int64], gold_T: npt.NDArray[np.int64]) -> Doubles:
    """Return gaps [groups, templates that are not negative]: shares called negative, less mean."""
    rates_GT: Doubles = (labels[:, gold_T != 0] == 0).mean(axis=2)
    gaps_GT: Doubles = rates_GT - rates_GT.mean(axis=0)
    return gaps_GT


def readings(
    random: np.random.Generator, push: float, added: tuple[float, ...]
) -> dict[str, tuple[float, float, float, bool]]:
    """Simulate one study.

    Parameters
    ----------
    push: what the first group adds to the negative word.
    added: the model's favour of each word.

    Returns
    -------
    By reading: accuracy, the first group's gap, what it would be without the favour, and whether a
    t-test over templates finds it at 5%.
    """
    fair, gold_T = scores(random, push)
    read = fair + added
    offsets = {
        "likelihood": np.zeros(3),
        "calibrated, training set": (training(random) + added).mean(axis=0),
        "calibrated, probe": read.reshape(-1, 3).mean(axis=0),
    }
    truth = gaps(fair.argmax(axis=-1), gold_T)[0].mean()
    found = {}
    for name, offset in offsets.items():
        labels = (read - offset).argmax(axis=-1)
        each_T = gaps(labels, gold_T)[0]
        half = student.ppf(0.975, len(each_T) - 1) * each_T.std(ddof=1) / len(each_T) ** 0.5
        right = float((labels == gold_T[None, :, None]).mean())
        gap = float(each_T.mean())
        found[name] = (right, gap, float(truth), bool(0 < half < abs(gap)))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Simulate what calibration does to gaps.")
    parser.add_argument("--studies", type=int, default=400)
    options = parser.parse_args()
    rows = []
    for push in (0.0, PUSHED):
        for favour, added in FAVOURS.items():
            keys = [(n, "calibrated", favour, int(push > 0)) for n in range(options.studies)]
            made = [readings(generator(*key), push, added) for key in keys]
            for name in made[0]:
                each = np.array([study[name] for study in made])
                right, gap, truth, flagged = each.mean(axis=0)
                error = (each[:, 1] - each[:, 2]).std() / len(each) ** 0.5
                group = "pushed" if push else "like the others"
                numbers = (f"{right:.2f}", f"{gap:+.3f}", f"{truth:+.3f}", f"{error:.3f}")
                rows.append((group, favour, name, *numbers, f"{flagged:.1%}"))
    heads = ("group", "favours", "reading", "accuracy", "gap", "without favour", "s.e.", "found")
    print(tabulate(rows, heads, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
