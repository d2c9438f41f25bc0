"""The five games of MinAtar: Atari games on a board of 10 x 10, seen as flags."""
