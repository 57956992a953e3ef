"""`python -m kvalet`, the same as `kvalet`."""

import sys

from kvalet.cli import main

sys.exit(main())
