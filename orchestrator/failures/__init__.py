"""What an ended attempt was, with the proof: evidence → class. Pure; may import executors and below."""
