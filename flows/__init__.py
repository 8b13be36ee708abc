"""Where the method meets Prefect, MLflow and DVC; no other folder knows them.

DVC decides whether a step runs, Prefect how, MLflow records that it ran. Calls go one way:
deployment -> ``dvc repro`` -> ``python -m flows.stage <step>`` -> ``procap.steps.<step>.run``.
"""
