"""What the objectives do: exact theory on small processes, and measurements on trained models."""
