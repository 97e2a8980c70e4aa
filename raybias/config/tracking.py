"""Which experiment trackers are told of a study."""

from __future__ import annotations

from raybias.config.section import Section


class Tracking(Section):
    """Where runs and tables are written down besides OUT; never changes what is computed."""

    mlflow: str | None = None
    """Tracking URI of MLflow, such as http://server:5000 or sqlite:///mlflow.db; off without it.
    It holds no password: MLflow reads MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or
    MLFLOW_TRACKING_TOKEN."""
    wandb: str | None = None
    """Project of Weights & Biases; off without it."""
