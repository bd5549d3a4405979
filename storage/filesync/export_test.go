package filesync

import (
	"strings"
	"time"
)

// WithStep calls step after each step.
func (o Options) WithStep(step func(name string)) Options {
	o.step = step
	return o
}

// WithExpire sets the lifetime of unrenewed locks to d.
func (o Options) WithExpire(d time.Duration) Options {
	o.expire = d
	return o
}

// WithNow sets the clock.
func (o Options) WithNow(now func() time.Time) Options {
	o.now = now
	return o
}

// Ignores reports whether rules, as in IgnoreName, exclude a path.
func Ignores(rules, path string, dir bool) (bool, error) {
	i, err := newIgnore(nil, strings.NewReader(rules))
	return err == nil && i.Match(path, dir), err
}
