//go:build linux

package native

// WithStep returns o with the hook that is called before each step of making and starting a sandbox.
func (o Options) WithStep(f func(name string) error) Options {
	o.step = f
	return o
}

// WithHalt returns o with the name of the engine's step before which each supervisor stops itself by SIGSTOP.
func (o Options) WithHalt(step string) Options {
	o.halt = step
	return o
}
