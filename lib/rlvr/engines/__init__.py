"""Engines sample from a policy and update it: ``local`` (torch, this process)."""
