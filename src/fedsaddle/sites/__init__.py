"""The same algorithms across real machines: a narrow wire, a coordinator above it, a resident worker below it."""
