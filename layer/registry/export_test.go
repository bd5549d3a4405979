package registry

// WithStep has step called after each step of what changes a sandbox.
func (o Options) WithStep(step func(name string)) Options {
	o.step = step
	return o
}
