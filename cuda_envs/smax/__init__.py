"""Two teams of units fight: allies learn, enemies follow rules."""
