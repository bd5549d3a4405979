package pool

import "time"

// SetStep sets a function that the layer calls after each step.
func (o *Options) SetStep(f func(name string)) { o.onStep = f }

// Hasten sets the interval between checks of the stock, and the wait after a failure.
func (o *Options) Hasten(look, rest time.Duration) { o.checkEvery, o.backoff = look, rest }

// Hold sets the lifetime of a reservation.
func (o *Options) Hold(d time.Duration) { o.reserveTTL = d }

// Sweep removes the stock of dead programs, now.
var Sweep = (*Provider).sweepRecords

// Unfit returns the field of a Spec that no sandbox of a pool can have.
var Unfit = unpoolableField
