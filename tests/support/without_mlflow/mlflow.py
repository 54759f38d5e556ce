"""First on a PYTHONPATH, it hides MLflow from the launcher, which loads DeepSpeed, which loads MLflow for a second."""

raise ImportError("hidden by the tests")
