package vmdocker

import "time"

// WithReady sets the time in which an engine on hardware must answer.
func (o *Options) WithReady(d time.Duration) { o.ready = d }
