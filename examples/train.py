"""Trains what a YAML file says: `python examples/train.py --config tag.yaml [key=value ...]`.

The same as `warpdrive train`, without an installation, and configs of this folder are found from anywhere.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # so that it also runs without an installation

from warpdrive.__main__ import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(folder=HERE, command="train"))
