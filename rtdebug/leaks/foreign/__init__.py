"""Series out of what people already have: `reader` finds the form, one module reads each form."""
