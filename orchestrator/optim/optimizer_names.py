"""The optimizers on offer, each with what it does in one line.

They stand apart from `optimizers.py`, which needs torch: the completion of a word and `docs/settings.md` do not.
"""

from __future__ import annotations

from typing import Final

OPTIMIZER_NAMES: Final = {
    "adadelta": "Scales each change by running means of squared gradients and of squared changes.",
    "adafactor": "Adam without momentum, which keeps means of a matrix's rows and columns instead of one for each element.",
    "adagrad": "Divides each gradient by the root of the sum of all its squares so far.",
    "adam": "Running mean of gradients, divided by the root of the running mean of their squares.",
    "adamw": "Adam whose weight decay acts on the parameters, and not through the gradient.",
    "adamax": "Adam with the largest recent gradient in place of the root of the mean square.",
    "asgd": "Gradient descent that also keeps an average of the parameters.",
    "nadam": "Adam with Nesterov's momentum.",
    "radam": "Adam that divides only after enough steps have been seen.",
    "rmsprop": "Divides each gradient by the root of the running mean of its squares.",
    "rprop": "Takes only the signs of gradients; a step grows while its sign stays, and shrinks when it turns.",
    "sgd": "Gradient descent, with momentum if `momentum` is given.",
    "lars": "Gradient descent with momentum, scaled for each tensor by the norms of parameter and gradient; for large batches.",
    "lamb": "Adam, scaled for each tensor to the norm of the parameter; for large batches.",
}
