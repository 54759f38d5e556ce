"""Forward metrics to Weights & Biases, TensorBoard, MLflow: one process a tool reads the attempt's spool as it grows.

Training and store do not depend on it: a tool that hangs, is missing or cannot reach its server costs them nothing.
"""
