package session

import "time"

// WithLook makes the layer look after sessions so often.
func (o Options) WithLook(every time.Duration) Options {
	o.look = every
	return o
}

// WithStep has step called after each step.
func (o Options) WithStep(step func(name string)) Options {
	o.step = step
	return o
}
