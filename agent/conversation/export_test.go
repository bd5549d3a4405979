package conversation

import "time"

// WithStep returns options with a function that is called after each step.
func (o Options) WithStep(step func(name string)) Options {
	o.onStep = step
	return o
}

// WithLease returns options with the lease d.
func (o Options) WithLease(d time.Duration) Options {
	o.testLease = d
	return o
}
