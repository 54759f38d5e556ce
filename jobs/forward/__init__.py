"""Passes metrics on to Weights & Biases, TensorBoard, MLflow. May import `jobs.shared` and the parsers of `db.ingest`.

One process for each tool, started by the agent of the first node, reads the attempt's spool as it grows and passes the
lines on. Training and store know nothing of it: a tool that hangs, is missing or cannot reach its server costs neither
of them anything.
"""
