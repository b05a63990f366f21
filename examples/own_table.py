"""A table as users have them, to try `fedsaddle fit` on: patients.csv, and new_patients.csv without labels.

    python examples/own_table.py
    fedsaddle fit patients.csv --label died --client hospital --out model
    fedsaddle score model new_patients.csv --out scores.csv
"""

import csv
from pathlib import Path

import numpy as np

random = np.random.Generator(np.random.Philox(0))
effects = random.normal(size=29) / 4
shares = 0.9 * random.dirichlet(np.full(40, 0.5)) + 0.1 / 40  # hospitals of very unequal size


def write(path: Path, rows: int, labelled: bool) -> None:
    """29 numbers, some missing, and the ward; a hospital; one in fifty died."""
    numbers, ward = random.normal(size=(rows, 29)), random.integers(0, 4, rows)
    risk = numbers @ effects + np.array([0, 0.5, 1, -0.5])[ward] + numbers[:, 0] * numbers[:, 1]
    risk += 0.5 * random.logistic(size=rows)
    died = risk > np.quantile(risk, 0.98)
    hospital = random.choice(40, rows, p=shares)
    hospital[died & (hospital % 4 == 0)] += 1  # in every fourth hospital nobody died
    numbers[random.random(numbers.shape) < 0.02] = np.nan
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        names = [f"lab{i}" for i in range(1, 30)]
        table.writerow([*names, "ward", *(["hospital", "died"] if labelled else [])])
        for i in range(rows):
            cells = ["" if np.isnan(value) else f"{value:.4g}" for value in numbers[i]]
            known = [f"hospital {hospital[i] + 1}", "yes" if died[i] else "no"] if labelled else []
            table.writerow([*cells, ("surgery", "medicine", "emergency", "paediatrics")[ward[i]], *known])


if __name__ == "__main__":
    write(Path("patients.csv"), 20_000, labelled=True)
    write(Path("new_patients.csv"), 2_000, labelled=False)
    print("patients.csv and new_patients.csv are written")
