"""The losslessness certificate: four checks of a target and its drafter on the machine where they run."""
