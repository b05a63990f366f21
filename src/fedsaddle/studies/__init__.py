"""Many runs for one question: a paper's experiment over seeds, a search over settings."""
