"""Networks: ensembles as one, encoders of pictures, value functions."""
