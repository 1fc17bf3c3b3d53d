"""What a turn wants done next: four effects, decided from the state alone."""
