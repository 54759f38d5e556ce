"""Forward metrics to Weights & Biases, TensorBoard, MLflow.

One process for each tool, started by the agent of the first node, reads the attempt's spool as it grows and forwards
its lines. Training and store do not depend on it: a tool that hangs, is missing or cannot reach its server costs them
nothing.
"""
