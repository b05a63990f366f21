"""Run folders and what is shown of them."""
