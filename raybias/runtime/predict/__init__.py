"""Predict with Ray Data and Ray Serve: fixed-row shards streamed through replicas."""
