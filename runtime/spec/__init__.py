"""R3: what speculation decides, as pure functions of numbers: no clock, no device, no model."""
