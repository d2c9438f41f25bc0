"""MinAtar: five small arcade games on 10 x 10 cells, seen as images."""
