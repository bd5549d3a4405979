package filesync

import (
	"strings"
	"time"
)

// WithStep has step called after each step.
func (o Options) WithStep(step func(name string)) Options {
	o.step = step
	return o
}

// WithExpire has locks that do not change hold for d.
func (o Options) WithExpire(d time.Duration) Options {
	o.expire = d
	return o
}

// WithNow sets the clock.
func (o Options) WithNow(now func() time.Time) Options {
	o.now = now
	return o
}

// Ignores reports whether rules, as in IgnoreName, leave a path out.
func Ignores(rules, path string, dir bool) (bool, error) {
	i, err := newIgnore(nil, strings.NewReader(rules))
	return err == nil && i.match(path, dir), err
}
