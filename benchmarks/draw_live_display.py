"""Draws what a terminal shows while a short run trains: docs/pictures/live_display.svg and, by Chromium, .png.

python benchmarks/draw_live_display.py
"""

import argparse
import io
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from report import ROOT
from rich.console import Console

from trainers.settings.read_config import read_config
from trainers.trainer import Trainer

WIDTH = 84
AT = 0.62
"""Part of the run after which the picture is taken."""


class Screen(io.StringIO):
    """A terminal that nobody looks at."""

    def isatty(self) -> bool:
        return True


def draw(config: str, num_iterations: int) -> str:
    """Trains, and gives the SVG."""
    picture = Console(record=True, force_terminal=True, color_system="truecolor", width=WIDTH, file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder:
        read = read_config(
            ROOT / "examples" / config, [("saving.basedir", f"{folder}/runs"), ("trainer.device", "cpu")]
        )
        size = read.trainer.train_batch_size
        overrides = [("trainer.total_timesteps", str(num_iterations * size)), ("saving.basedir", f"{folder}/runs")]
        overrides += [("trainer.device", "cpu"), ("saving.model_params_save_freq", str(num_iterations // 4))]
        overrides += [("evaluation.eval_freq", str(num_iterations // 4)), ("evaluation.greedy", "false")]
        trainer = Trainer(read_config(ROOT / "examples" / config, overrides))
        trainer.run.console = Console(force_terminal=True, width=WIDTH, file=Screen())
        iterate = trainer.iterate

        def iterate_and_look() -> dict:
            if trainer.iteration == round(AT * num_iterations):
                said = (trainer.run.path / "log.txt").read_text().replace(f"{folder}/", "").splitlines()
                for line in said:
                    if not line.startswith(("device: ", "env steps ")):
                        picture.print(line, highlight=False)
                picture.print(trainer.reporter.display)
                picture.print()  # the last line's descent would else be cut off
            return iterate()

        trainer.iterate = iterate_and_look
        trainer.train()
    svg = picture.export_svg(title=f"train.py --config {config}")
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # it must load nothing from outside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="tag.yaml", help="one of examples/")
    parser.add_argument("--num-iterations", type=int, default=200)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures" / "live_display.svg")
    arguments = parser.parse_args()
    svg = draw(arguments.config, arguments.num_iterations)
    arguments.out.write_text(svg, encoding="utf-8")
    print(f"drawn in {arguments.out}")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium here: no .png")
        return
    width, height = (int(float(one)) + 1 for one in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    png = arguments.out.with_suffix(".png")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--default-background-color=00000000"]
    command = [chromium, *flags, f"--window-size={width},{height}", f"--screenshot={png}", arguments.out.as_uri()]
    subprocess.run(command, check=True, capture_output=True)
    print(f"drawn in {png}")


if __name__ == "__main__":
    main()
