//go:build linux

package native

// WithStep returns o with the hook that is called before each step of making and starting a sandbox.
func (o Options) WithStep(f func(name string) error) Options {
	o.step = f
	return o
}
