"""Are APE-V's members sound? APE-V with default settings beside behaviour cloning, on every log."""
