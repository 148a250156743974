"""R4: the target's and the draft's side of a round. Each worker's work runs on its own stream."""
