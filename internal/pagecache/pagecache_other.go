//go:build !linux

package pagecache

import "errors"

// Reload returns errors.ErrUnsupported.
func Reload(string) error { return errors.ErrUnsupported }
