"""What every database must do alike."""
