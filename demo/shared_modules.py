"""Makes the project's modules importable, which the demo shares with the scripts."""

import sys
from pathlib import Path


# In a clone they lie in other folders; in a Space all files lie together.
sys.path += [str(Path(__file__).resolve().parent.parent / folder) for folder in ("", "scripts")]
