"""The method as a list of steps, in order. ``dvc.yaml``, ``params.yaml`` and ``data/`` use the same names.

Every step is one module here with ``run(params, data, *, report)``: files in, files out. Steps that run once
per captioner (``PER_CAPTIONER``) also take ``captioner``.
"""

STEPS = (
    "prepare",
    "validate",
    "interpolate",
    "sample",
    "tokenizer",
    "tokenize",
    "pretrain",
    "caption",
    "evaluate",
    "register",
)

PER_CAPTIONER = ("caption", "evaluate")
