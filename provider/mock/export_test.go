package mock

// WithStep returns o with a function that can fail the steps of creating and starting sandboxes.
func (o Options) WithStep(step func(name string) error) Options {
	o.step = step
	return o
}
