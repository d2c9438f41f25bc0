"""Every error the framework raises on purpose. One base class, so `except WarpDriveError` catches all."""


class WarpDriveError(Exception):
    """Base class. The message is one clear line that names the place and ends in a way out."""


class ArrayError(WarpDriveError):
    """An array is unknown, already there, or of a dtype, shape or device that kernels cannot take."""


class ShapeError(ArrayError):
    """Two arrays that must agree in shape do not."""


class SignatureError(WarpDriveError):
    """A kernel's parameter list cannot be read, or a parameter has a type that no array can have."""


class WiringError(WarpDriveError):
    """A kernel's parameter has no array, or the array does not fit it."""


class CompileError(WarpDriveError):
    """The compiler refused a kernel. Shows file, line, column, source line and caret."""


class BackendError(WarpDriveError):
    """A device or a tool is missing: no GPU, no compiler, no driver."""


class KernelError(WarpDriveError):
    """A kernel failed while it ran: a fault found by debug mode or reported by the driver."""


class EnvError(WarpDriveError):
    """An env's definition contradicts itself."""


class ConfigError(WarpDriveError):
    """A config file, key or value is wrong."""


class CheckpointError(WarpDriveError):
    """A checkpoint is missing, torn, corrupted or of another shape."""
