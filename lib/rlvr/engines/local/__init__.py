"""The local engine: sampling and updates in this process, on CPU cores (or one GPU later)."""
