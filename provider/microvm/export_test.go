//go:build linux

package microvm

import "time"

// WithStep makes step fail the steps of making and starting sandboxes.
func (o Options) WithStep(step func(name string) error) Options {
	o.step = step
	return o
}

// WithEmulation says that machines are emulated behind the driver's back.
func (o Options) WithEmulation(emulated bool) Options {
	o.emulated = emulated
	return o
}

// WithAnswer gives guests so long to answer.
func (o Options) WithAnswer(d time.Duration) Options {
	o.answer = d
	return o
}
