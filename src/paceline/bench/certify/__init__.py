"""The losslessness certificate: four checks of one pair of models, on the machine where they run."""
