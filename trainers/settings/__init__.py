"""What a run is made of, as its YAML file says it: the keys, what they must be, and how they fit each other."""
