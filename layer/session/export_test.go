package session

import "time"

// WithLook returns o with another interval between checks of all sessions.
func (o Options) WithLook(every time.Duration) Options {
	o.checkEvery = every
	return o
}

// WithStep returns o with step, which the layer calls after each step.
func (o Options) WithStep(step func(name string)) Options {
	o.onStep = step
	return o
}
