package registry

// WithStep returns o with step, which the layer calls after each step of an operation.
func (o Options) WithStep(step func(name string)) Options {
	o.onStep = step
	return o
}
