package vmdocker

import "time"

// WithReady gives engines so long to answer, where nothing is emulated.
func (o *Options) WithReady(d time.Duration) { o.ready = d }
