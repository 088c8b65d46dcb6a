"""Numbers of a Parquet file that are floats: pandas makes them of whole numbers where a column has, or had, a gap."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

EXACT = 2.0**53  # from here on not every whole number is a float64


def spelled(values: pa.Array) -> pa.Array:
    """Floats[n] as text, whole ones as whole numbers are spelled, NaN as null: pyarrow writes 4e+12 of a barcode."""
    if pa.types.is_float16(values.type):  # which has no kernels
        values = values.cast(pa.float32())
    values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    whole = pc.and_(pc.equal(pc.floor(values), values), pc.less(pc.abs(values), EXACT))
    numbers = pc.if_else(whole, values, pa.scalar(None, values.type)).cast(pa.int64())
    return pc.coalesce(numbers.cast(pa.string()), values.cast(pa.string()))
