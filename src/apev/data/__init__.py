"""Logged data: validated columns, files without pickle, and batches sampled on the device."""

from apev.data.batch import Batch, Observations
from apev.data.dataset import Dataset
from apev.data.sampler import Sampler
from apev.data.validate import DataError

__all__ = ["Batch", "DataError", "Dataset", "Observations", "Sampler"]
