//go:build linux

package gvisor

// WithStep lets step fail the steps of making and starting sandboxes.
func (o Options) WithStep(step func(name string) error) Options {
	o.step = step
	return o
}
