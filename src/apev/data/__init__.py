"""Logged data: validated columns, pictures stored once, batches drawn on the device."""

from apev.data.batch import Batch, Layout, Observations
from apev.data.dataset import Dataset
from apev.data.sampler import Sampler
from apev.data.source import recover_environment
from apev.data.validate import DataError

__all__ = ["Batch", "DataError", "Dataset", "Layout", "Observations", "Sampler", "recover_environment"]
