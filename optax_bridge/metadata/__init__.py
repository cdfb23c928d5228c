"""Names of axes: boxes around arrays, and which axes an optimizer's state keeps."""
