"""The demo: a real S3 server, painted pictures, and a small training run with a restart."""
