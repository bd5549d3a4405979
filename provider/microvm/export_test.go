//go:build linux

package microvm

import "time"

// WithStep makes step fail the steps of making and starting sandboxes.
func (o Options) WithStep(step func(name string) error) Options {
	o.step = step
	return o
}

// WithAnswer gives guests so long to answer.
func (o Options) WithAnswer(d time.Duration) Options {
	o.answer = d
	return o
}
