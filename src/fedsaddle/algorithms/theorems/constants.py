"""The constants that the papers' theorems are stated in, by the symbols of each paper."""

from __future__ import annotations

from fedsaddle.algorithms.theorems.statement import Constant

COMMON = {
    "mu": Constant("PL constant of f in y (Assumption 3)"),
    "sigma_1": Constant("gradient dissimilarity of the clients in x (Assumption 1)", zero=True),
    "sigma_2": Constant("gradient dissimilarity of the clients in y (Assumption 1)", zero=True),
    "G_1": Constant("deviation of the gradients in x within a client (Assumption 4)", zero=True),
    "G_2": Constant("deviation of the gradients in y within a client (Assumption 4)", zero=True),
    "L_0": Constant("Phi(x_0) - Phi(x*) + c (Phi(x_0) - f(x_0, y_0)), Phi(x) = max_y f(x, y); c = 1/20, in cdma's "
                    "Theorem 3 c = 1/7"),
    "S": Constant("clients that answer in a phase, at least", whole=True),
    "K": Constant("local steps in a round", whole=True),
    "T": Constant("rounds", whole=True),
}
CDMA = {**COMMON, "L_f": Constant("Lipschitz constant of the gradients (Assumption 2)")}
CD_MAGE = {
    **COMMON,
    "L_1": Constant("Lipschitz constant of the gradient in x, in x (Assumption 2)"),
    "L_2": Constant("Lipschitz constant of the gradient in y, in y (Assumption 2)"),
    "L_12": Constant("Lipschitz constant of the gradient in x, in y (Assumption 2)"),
    "L_21": Constant("Lipschitz constant of the gradient in y, in x (Assumption 2)"),
}
CODASCA = {
    "L": Constant("Lipschitz constant of the gradient of phi(v) = max_alpha f(v, alpha)"),
    "ell": Constant("Lipschitz constant of the gradients of f in v and alpha"),
    "mu": Constant("PL constant of phi"),
    "mu_2": Constant("strong concavity in alpha: 2 p (1 - p), p the share of positives"),
    "K": Constant("number of clients", whole=True),
    "D": Constant("drift of the clients (Assumption 2); 0: identical clients", zero=True),
    "M": Constant("rows in the batch of a step", whole=True),
    "epsilon": Constant("accuracy wanted"),
    "eta_0": Constant("step of the first stage; left out: the largest that one stage allows"),
    "eta_tilde": Constant("eta_l eta_g I; left out: the largest that the theorem allows"),
    "I_0": Constant("local steps in a round of the first stage", whole=True),
}
CYCLIC_AUC = {
    **CODASCA,
    "K": Constant("number of groups", whole=True),
    "M": Constant("clients asked in a group", whole=True),
}
DRFA = {
    "L": Constant("Lipschitz constant of the gradients (Assumption 1)"),
    "mu": Constant("strong convexity or PL constant in w, and strong concavity in lambda"),
    "T": Constant("local steps in the whole run: rounds times tau", whole=True),
    "m": Constant("clients asked in a round", whole=True),
    "tau": Constant("local steps in a round; left out: sqrt(T / m), as in the corollary", whole=True),
}
