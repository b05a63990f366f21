"""`python -m fedsaddle`."""

from fedsaddle.cli import main

main()
