"""Tables, figures and claims: what the stages measured, laid beside what the papers state."""
