package conversation

import "time"

// WithStep has step called after each step.
func (o Options) WithStep(step func(name string)) Options {
	o.step = step
	return o
}

// WithLease has a turn be its server's for d.
func (o Options) WithLease(d time.Duration) Options {
	o.lease = d
	return o
}
