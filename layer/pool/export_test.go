package pool

import "time"

// SetStep has f called after each step.
func (o *Options) SetStep(f func(name string)) { o.step = f }

// Hasten sets how often stock is looked at, and how long to rest after a failure.
func (o *Options) Hasten(look, rest time.Duration) { o.look, o.rest = look, rest }

// Hold sets how long what is reserved is kept.
func (o *Options) Hold(d time.Duration) { o.hold = d }

// Sweep removes what programs that have gone have left, now.
var Sweep = (*Provider).sweep

// Unfit is what a Spec asks for that nothing in a pool can have.
var Unfit = unfit
